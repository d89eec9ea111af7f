"""Writer of saves in a thread, beside the devices' work; a save that fails is reported and ends nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phalanx.mesh.output import warn
from phalanx.store.saves import is_manifest


class BackgroundWriter:
    """Thread that writes one save at a time.

    Args:
        folder: the folder.
        called: its name in messages.
        goes_on: noun for what continues after a save that failed.
    """

    def __init__(self, folder: Path, called: str, goes_on: str):
        self._folder, self._called, self._goes_on = folder, called, goes_on
        self._thread = ThreadPoolExecutor(1, "phalanx-checkpoint")
        self._writing: Future[Any] | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the thread in a `with` block, which ends when the save under way has."""
        with self._thread:
            try:
                yield
            finally:
                self.wait()

    @property
    def is_idle(self) -> bool:
        """True if no save is under way."""
        return self._writing is None or self._writing.done()

    def submit(self, write: Callable[..., Any], *arguments: Any) -> None:
        """Call `write` in the thread, after the save under way."""
        self.wait()
        self._writing = self._thread.submit(write, *arguments)

    def wait(self) -> None:
        """Wait for the save under way; one that fails is reported."""
        writing, self._writing = self._writing, None
        if writing is None:
            return
        try:
            writing.result()
        except Exception as failure:  # a disk's, or of a user's reducer whose results no file can hold
            self.report(failure)

    def report(self, failure: Exception) -> None:
        """Warn of a save that failed."""
        is_there = self._folder.is_dir()
        before = "there is no save before it"
        if not is_there:
            before = "the folder and its saves are gone"
        elif any(map(is_manifest, self._folder.iterdir())):
            before = "the save before it is unharmed"
        advice = "Make room on the disk, or restore the right to write to the folder."
        advice = advice if is_there else "Make the folder again: the next save writes everything."
        warn(
            f"{self._called}: a save failed ({failure}); {before}, and the {self._goes_on} continues."
            f"{f' {advice}' if isinstance(failure, OSError) else ''}",
            stacklevel=4,
        )
