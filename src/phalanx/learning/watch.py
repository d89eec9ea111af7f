"""Log and checkpoint of a training that is evaluated now and then; the evaluation itself is the caller's."""

from __future__ import annotations

import csv
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from phalanx.learning.checkpoint import Checkpoint
from phalanx.learning.identity import Comparison, Identity
from phalanx.mesh.processes import agreed

SAVE_SECONDS, SAVE_SHARE = 10.0, 0.02
"""Seconds between two saves at least, and the most of a training's time that saves may take."""

L = TypeVar("L")


@dataclass
class Watch(Generic[L]):
    """Evaluations of a training, with its log and its checkpoint.

    Attributes:
        log: CSV file with a line for each evaluation; None without.
        columns: an evaluation as a line of the log.
        checkpoint: where states are saved; None without.
        identity: makes the identity of the training, which is needed with a checkpoint only.
        comparison: how two identities are compared.
        looks: all evaluations, those before a resumption included.
    """

    log: Path | None
    columns: Callable[[L], Mapping[str, Any]]
    checkpoint: Checkpoint | None
    identity: Callable[[], Identity]
    comparison: Comparison
    looks: list[L] = field(default_factory=list)
    _saved: float = field(default_factory=time.monotonic)
    _took: float = 0.0
    _identity: Identity | None = None

    def resume(self) -> dict[str, Any] | None:
        """Return the record in the checkpoint; None without one.

        Warns about what of the two trainings could not be compared.

        Raises:
            FileExistsError: when the folder holds something else.
            ValueError: when the checkpoint is damaged, or of another training; the message names what differs.
        """
        checkpoint = self.checkpoint
        if checkpoint is None:
            return None
        here = self._identity = self.identity()
        record = checkpoint.read()
        if record is None:
            return None
        if checkpoint.kind not in record:
            raise ValueError(
                f"{checkpoint.called} holds a saved {checkpoint.kind} and no training of it. Name another folder."
            )
        there: Identity = record[checkpoint.kind]
        if found := self.comparison.differences(there, here):
            raise ValueError(
                f"{checkpoint.called} holds another {checkpoint.kind}: {found}. Give what it was made with, or another "
                f"folder."
            )
        if opaque := self.comparison.not_compared(there, here):
            warnings.warn(
                f"{checkpoint.called} may be of another {checkpoint.kind}: not compared were {opaque}. Make sure that "
                f"they are those it was made with.",
                stacklevel=3,
            )
        return record

    def add(self, look: L) -> None:
        """Add an evaluation, and write the log anew."""
        self.looks.append(look)
        if self.log is not None:
            rows = [self.columns(each) for each in self.looks]
            names = dict.fromkeys(name for row in rows for name in row)
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(names))
                writer.writeheader()
                writer.writerows(rows)

    @property
    def is_due(self) -> bool:
        """True if the last save is so long ago that another one is due; the same in all processes."""
        if self.checkpoint is None:
            return False
        return bool(agreed(time.monotonic() - self._saved >= max(SAVE_SECONDS, self._took / SAVE_SHARE)))

    def save(self, states: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        """Write states by name, and a record with the identity of the training, to the checkpoint if there is one."""
        if self.checkpoint is None:
            return
        began = time.monotonic()
        self.checkpoint.write(states, {**record, self.checkpoint.kind: self._identity})
        self._saved = time.monotonic()
        self._took = self._saved - began
