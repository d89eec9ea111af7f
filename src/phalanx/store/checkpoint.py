"""Checkpoint: a folder of saves, the thread that writes them, and the times at which they are due."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from phalanx.mesh.processes import agreed, is_first
from phalanx.store.policy import SavePolicy
from phalanx.store.saves import BackgroundWriter, Saves

SAVE_FRACTION = 0.02
"""The most of a training's time that temporary saves may take."""


class Checkpoint:
    """Folder that one run or training is saved to.

    Args:
        policy: the folder, and when to save.
        kind: noun for what is saved: "run", "fit" or "ensemble".
        title: the folder's name in messages.
        index: name of the index that earlier releases wrote.
    """

    def __init__(self, policy: SavePolicy, kind: str, title: str, index: str = ""):
        self.policy = policy
        self.kind = kind
        self.called = title
        self.saves = Saves(policy.folder.absolute(), title, kind, index)
        self._writer = BackgroundWriter(self.saves.folder, title, "run" if kind == "run" else "training")
        self._saved = time.monotonic()
        self._took = 0.0
        self._permanent = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder in a `with` block, which ends when the save under way has.

        Raises:
            FileExistsError: when the folder holds something else.
            ValueError: when another process writes to it.
        """
        with self.saves.locked() if is_first() else nullcontext(), self._writer.held():
            self._permanent = self.saves.last_permanent
            yield

    def is_due(self, num_done: int) -> bool:
        """Return whether to save after so many draws or steps, the same in all processes."""
        late = time.monotonic() - self._saved >= max(self.policy.seconds, self._took / SAVE_FRACTION)
        return self.policy.passes(self._permanent, num_done) or bool(agreed(late and self._writer.is_idle))

    def permanent_at(self, num_done: int) -> int | None:
        """Return the number of draws or steps if the save after them is permanent; None otherwise."""
        return num_done if self.policy.passes(self._permanent, num_done) else None

    def note(self, at: int | None, took: float = 0.0) -> None:
        """Note a save, permanent if `at` is given, and the seconds that the caller has waited for it."""
        self._saved = time.monotonic()
        self._took = took
        self._permanent = self._permanent if at is None else at
