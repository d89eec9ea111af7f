"""Progress displays: a live line on a terminal, one output in a notebook, plain lines elsewhere, or none."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

from phalanx.mesh.output import STDERR, never_fatal
from phalanx.mesh.processes import is_first
from phalanx.run.progress.report import Progress, Report

FIRST_WAIT = 2.0
"""Seconds before the first plain line."""

WIDER = 1.5
"""Factor by which the wait grows from line to line."""

LONGEST_WAIT = 60.0
"""Most seconds between two lines."""


def make_progress(enabled: bool) -> Progress:
    """Return the display that suits this process's standard error; a silent one if not `enabled`."""
    if not enabled or not is_first():
        return Silent()
    if not STDERR.isatty():
        # a Jupyter kernel is no terminal, but replaces the output of a cell
        in_notebook = "ipykernel" in sys.modules and "IPython" in sys.modules
        return Overwritten() if in_notebook else Lines()
    from phalanx.run.progress.live import Live  # Rich is slow to import

    return Live()


def waiting(enabled: bool, text: str) -> AbstractContextManager[None]:
    """Return a context manager that shows `text` while a step of unknown length runs.

    A terminal counts the seconds; elsewhere a line appears after two seconds. The first process shows it.
    """
    if not enabled or not is_first():
        return nullcontext()
    if not STDERR.isatty():
        return _late_line(text)
    from phalanx.run.progress.live import counting

    return counting(text)


@contextmanager
def _late_line(text: str) -> Iterator[None]:
    timer = threading.Timer(FIRST_WAIT, Lines().say, [f"{text} ..."])
    timer.daemon = True  # does not keep the process alive
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Silent:
    """Display that shows nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def show(self, report: Report) -> None:
        """Ignore a report."""

    def say(self, line: str) -> None:
        """Ignore a line."""


class Lines(Silent):
    """Plain lines on standard error at growing intervals, and one at the end of a phase."""

    widens: ClassVar[float] = WIDER

    def __init__(self) -> None:
        self._phase = ""
        self._began = 0.0
        self._last = 0.0
        self._wait = FIRST_WAIT
        self._done = 0
        self._over = False

    def show(self, report: Report) -> None:
        """Print a line if it is due, or at the end of the phase."""
        now = time.monotonic()
        if report.phase != self._phase:
            self._phase = report.phase
            self._began = now
            self._last = now
            self._wait = FIRST_WAIT
            self._done = 0
            self._over = False
        finished = report.done >= report.total
        due = now - self._last >= self._wait or (finished and not self._over)
        if report.done in (0, self._done) or not due:  # blocks may follow after the last draw was counted
            return
        self._last, self._wait = now, min(self._wait * self.widens, LONGEST_WAIT)
        self._done = report.done
        self._over = finished
        seconds_left = (now - self._began) / report.done * (report.total - report.done)
        rest = ", ".join(filter(None, (str(report), "" if finished else f"{seconds_left:.0f} s left")))
        self._write(f"{report.phase:>8}  {report.what} {report.done}/{report.total}  {rest}".rstrip(), finished)

    def say(self, line: str) -> None:
        """Print a line."""
        STDERR.say(line)

    def _write(self, line: str, finished: bool) -> None:
        self.say(line)


class Overwritten(Lines):
    """One output of a notebook cell, which each report replaces: a saved notebook holds the last state alone."""

    widens: ClassVar[float] = 1.0

    def __init__(self) -> None:
        super().__init__()
        self._closed: list[str] = []
        self._open = ""  # line of the phase under way
        self._handle: Any = None

    def show(self, report: Report) -> None:
        """Replace the phase's line."""
        if report.phase != self._phase:
            self._close()
        super().show(report)

    def say(self, line: str) -> None:
        """Add a line above that of the phase."""
        self._closed.append(line)
        self._display()

    def _write(self, line: str, finished: bool) -> None:
        self._open = line
        if finished:
            self._close()
        self._display()

    def _close(self) -> None:
        self._closed += [self._open] if self._open else []
        self._open = ""

    def _display(self) -> None:
        from IPython.display import display  # pyright: ignore[reportMissingImports]  # every kernel has it

        bundle = {"text/plain": "\n".join([*self._closed, *([self._open] if self._open else [])])}
        with never_fatal():
            if self._handle is None:
                self._handle = display(bundle, raw=True, display_id=True)
            else:
                self._handle.update(bundle, raw=True)
