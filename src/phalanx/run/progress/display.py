"""Showing how a run goes: a live line on a terminal, plain lines elsewhere, nothing when switched off."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from phalanx.mesh.processes import is_first
from phalanx.run.progress.report import Progress, Report

FIRST_WAIT, WIDER, LONGEST_WAIT = 2.0, 1.5, 60.0
"""Seconds between the first plain lines, by how much longer they grow from line to line, and how long at most."""


def make_progress(enabled: bool) -> Progress:
    """The progress display for where this process writes to."""
    if not enabled or not is_first():
        return Silent()
    if not _is_live():
        return Overwritten() if _is_notebook() else Lines()
    from phalanx.run.progress.live import Live  # Rich is slow to import

    return Live()


def waiting(enabled: bool, words: str) -> AbstractContextManager[Any]:
    """Show, as a context manager, that something goes on of which nobody knows how long it takes.

    A terminal counts the seconds; elsewhere one line says so, if it takes longer than two.
    """
    if not enabled:
        return nullcontext()
    if not _is_live():
        return _late_line(words)
    from phalanx.run.progress.live import counting

    return counting(words)


def _is_notebook() -> bool:
    """Return whether a Jupyter kernel runs this process: no terminal, but a carriage return writes over a line."""
    return "ipykernel" in sys.modules and "IPython" in sys.modules


def _is_live() -> bool:
    return sys.stderr.isatty()


@contextmanager
def _late_line(words: str) -> Iterator[None]:
    timer = threading.Timer(FIRST_WAIT, Lines().say, [f"{words} ..."])
    timer.daemon = True  # so that it keeps no process alive
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *exception: Any) -> None:
        pass

    def show(self, report: Report) -> None:
        """Show nothing."""

    def say(self, line: str) -> None:
        """Say nothing."""


class Lines(Silent):
    """Plain lines on standard error, ever fewer of them, and one when a phase is over."""

    def __init__(self) -> None:
        self._phase, self._began, self._last, self._wait = "", 0.0, 0.0, FIRST_WAIT
        self._done, self._over = 0, False

    def show(self, report: Report) -> None:
        """Print a line if the last was long ago, or the phase is over."""
        now = time.monotonic()
        if report.phase != self._phase:
            self._phase, self._began, self._last, self._wait = report.phase, now, now, FIRST_WAIT
            self._done, self._over = 0, False
        finished = report.done >= report.total
        due = now - self._last >= self._wait or (finished and not self._over)
        if report.done in (0, self._done) or not due:  # a phase may go on for a while after its last draw was counted
            return
        self._last, self._wait = now, self._longer(self._wait)
        self._done, self._over = report.done, finished
        left = (now - self._began) / report.done * (report.total - report.done)
        told = ", ".join(filter(None, (str(report), "" if finished else f"{left:.0f} s left")))
        self._write(f"{report.phase:>8}  {report.what} {report.done}/{report.total}  {told}".rstrip(), finished)

    def say(self, line: str) -> None:
        """Print a line."""
        print(line, file=sys.stderr, flush=True)

    def _longer(self, wait: float) -> float:
        return min(wait * WIDER, LONGEST_WAIT)

    def _write(self, line: str, finished: bool) -> None:
        self.say(line)


class Overwritten(Lines):
    """One line per phase, written over by the next report: for notebooks."""

    def __init__(self) -> None:
        super().__init__()
        self._open = 0  # length of the line that the next one writes over

    def __exit__(self, *exception: Any) -> None:
        self._close()

    def show(self, report: Report) -> None:
        """Write over the phase's line."""
        if report.phase != self._phase:
            self._close()
        super().show(report)

    def say(self, line: str) -> None:
        """Print a line below."""
        self._close()
        super().say(line)

    def _longer(self, wait: float) -> float:
        return wait

    def _write(self, line: str, finished: bool) -> None:
        print(f"\r{line:<{self._open}}", end="", file=sys.stderr, flush=True)
        self._open = len(line)
        if finished:
            self._close()

    def _close(self) -> None:
        if self._open:
            print(file=sys.stderr, flush=True)
        self._open = 0
