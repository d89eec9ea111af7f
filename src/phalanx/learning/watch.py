"""Log and checkpoint of a training that is evaluated now and then; the evaluation itself is the caller's."""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from phalanx.learning.checkpoint import TrainingCheckpoint
from phalanx.mesh.agreement import check_same
from phalanx.mesh.processes import is_first
from phalanx.mesh.specs import PyTree
from phalanx.store.identity import Comparison, Identity

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
    checkpoint: TrainingCheckpoint | None
    identity: Callable[[], Identity]
    comparison: Comparison
    looks: list[L] = field(default_factory=list)
    _written: tuple[Any, ...] = ()
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
        check_same(checkpoint.called, lambda: {"the newest save": repr(record)})
        if record is None:
            return None
        if checkpoint.kind not in record:
            raise ValueError(
                f"{checkpoint.called} holds a saved {checkpoint.kind} and no training of it. Name another folder."
            )
        self.comparison.check(checkpoint.called, checkpoint.kind, record[checkpoint.kind], here)
        return record

    def add(self, look: L) -> None:
        """Add an evaluation, and have the first process write the log anew."""
        self.looks.append(look)
        if self.log is not None and is_first():
            rows = [self.columns(each) for each in self.looks]
            names = dict.fromkeys(name for row in rows for name in row)
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(names))
                writer.writeheader()
                writer.writerows(rows)

    def is_due(self, num_steps: int) -> bool:
        """Return whether to save after so many steps, the same in all processes."""
        return self.checkpoint is not None and self.checkpoint.is_due(num_steps)

    def until_next(self, num_steps: int) -> float:
        """Return the steps up to the next permanent save; infinity without."""
        return math.inf if self.checkpoint is None else self.checkpoint.policy.until_next(num_steps)

    def save(self, states: Mapping[str, PyTree], record: Mapping[str, Any], num_steps: int) -> None:
        """Save states by name, and a record with the identity of the training, if there is a checkpoint.

        Args:
            states: trees of arrays by name.
            record: entries, as JSON has them.
            num_steps: steps that the training has made.
        """
        if self.checkpoint is None:
            return
        at = self.checkpoint.permanent_at(num_steps)
        what_is_saved = (*states, len(self.looks), at)
        if what_is_saved == self._written:  # saved after the same step
            return
        began = time.monotonic()
        self.checkpoint.save(states, {**record, self.checkpoint.kind: self._identity}, at)
        self._written = what_is_saved
        self.checkpoint.note(at, time.monotonic() - began)
