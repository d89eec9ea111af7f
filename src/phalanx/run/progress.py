"""Showing how a run goes: a live line on a terminal, plain lines elsewhere, nothing when switched off."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

from phalanx.mesh.processes import is_first

FIRST_WAIT, WIDER, LONGEST_WAIT = 2.0, 1.5, 60.0
"""Seconds between the first plain lines, by how much longer they grow from line to line, and how long at most."""


@dataclass(frozen=True)
class Report:
    """How far a phase has come.

    Attributes:
        phase: "warm-up" or "sampling".
        done, total: iterations of every chain.
        chains: number of chains.
        acceptance_rate: mean over chains since the last report; NaN for a kernel that refuses nothing.
        divergences: divergences of the phase so far, over all chains.
        rate: draws per second of all chains together, in runs that store none; else 0.
        so_far: makes a posterior of the draws so far, which can be saved, and gone on with: to the draws of this run,
            if it should be lost. Within warm-up, and in runs that store none, it goes on from a moment before.
    """

    phase: str
    done: int
    total: int
    chains: int
    acceptance_rate: float
    divergences: int
    rate: float = 0.0
    so_far: Callable[[], Any] | None = None

    @property
    def what(self) -> str:
        """What is counted, as it is shown before the count."""
        return f"{self.chains} chains x"

    def __str__(self) -> str:
        told = (
            "" if math.isnan(self.acceptance_rate) else f"acceptance {self.acceptance_rate:.2f}",
            f"{self.divergences} divergences" if self.divergences else "",
            f"{self.rate:,.0f} draws per second" if self.rate else "",
        )
        return ", ".join(filter(None, told))


class Progress(Protocol):
    """Something that shows reports. A context manager, so that a live display ends whatever happens."""

    def __enter__(self) -> Progress: ...

    def __exit__(self, *exception: Any) -> None: ...

    def show(self, report: Report) -> None:
        """Show how far the run has come."""
        ...

    def say(self, line: str) -> None:
        """Show a line of text."""
        ...


def make_progress(enabled: bool) -> Progress:
    """The progress display for where this process writes to."""
    if not enabled or not is_first():
        return Silent()
    if not _is_live():
        return Lines()
    from phalanx.run.live import Live  # here, because Rich is optional and slow to import

    return Live()


def waiting(enabled: bool, words: str) -> AbstractContextManager[Any]:
    """Show, as a context manager, that something goes on of which nobody knows how long it takes.

    A terminal counts the seconds; elsewhere one line says so, if it takes longer than two.
    """
    if not enabled:
        return nullcontext()
    if not _is_live():
        return _late_line(words)
    from phalanx.run.live import counting

    return counting(words)


def _is_live() -> bool:
    return find_spec("rich") is not None and sys.stderr.isatty()


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
        self._last, self._wait = now, min(self._wait * WIDER, LONGEST_WAIT)
        self._done, self._over = report.done, finished
        left = (now - self._began) / report.done * (report.total - report.done)
        told = ", ".join(filter(None, (str(report), "" if finished else f"{left:.0f} s left")))
        self.say(f"{report.phase:>8}  {report.what} {report.done}/{report.total}  {told}".rstrip())

    def say(self, line: str) -> None:
        """Print a line."""
        print(line, file=sys.stderr, flush=True)
