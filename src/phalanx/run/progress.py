"""Showing how a run goes: a live line on a terminal, plain lines elsewhere, nothing when switched off."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any, Protocol

try:  # part of the `cli` extra; without it the plain lines do
    from rich import progress as rich_progress
except ImportError:
    rich_progress = None


@dataclass(frozen=True)
class Report:
    """How far a phase has come.

    Attributes:
        phase: "warm-up" or "sampling".
        done, total: iterations of every chain.
        chains: number of chains.
        acceptance_rate: mean over chains since the last report.
        divergences: divergences of the phase so far, over all chains.
    """

    phase: str
    done: int
    total: int
    chains: int
    acceptance_rate: float
    divergences: int

    def __str__(self) -> str:
        divergences = f", {self.divergences} divergences" if self.divergences else ""
        return f"acceptance {self.acceptance_rate:.2f}{divergences}"


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
    if not enabled:
        return Silent()
    return Live() if rich_progress is not None and sys.stderr.isatty() else Lines()


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
    """Plain lines on standard error: at every tenth of a phase, but at most one every two seconds."""

    def __init__(self) -> None:
        self._phase, self._began, self._last = "", 0.0, 0.0

    def show(self, report: Report) -> None:
        """Print a line when a tenth of the phase is over."""
        now = time.monotonic()
        if report.phase != self._phase:
            self._phase, self._began, self._last = report.phase, now, now
        finished = report.done >= report.total
        if not report.done or (not finished and now - self._last < 2.0):
            return
        self._last = now
        left = (now - self._began) / report.done * (report.total - report.done)
        self.say(
            f"{report.phase:>8}  {report.chains} chains x {report.done}/{report.total}  {report}"
            + ("" if finished else f", {left:.0f} s left")
        )

    def say(self, line: str) -> None:
        """Print a line."""
        print(line, file=sys.stderr, flush=True)


class Live:
    """A bar per phase, with Rich."""

    def __init__(self) -> None:
        assert rich_progress is not None
        from_text = rich_progress.TextColumn
        self._bars = rich_progress.Progress(
            from_text("{task.description:>8}"),
            rich_progress.BarColumn(bar_width=30),
            from_text("{task.fields[chains]} chains x {task.completed}/{task.total}"),
            from_text("{task.fields[report]}"),
            rich_progress.TimeElapsedColumn(),
            from_text("left"),
            rich_progress.TimeRemainingColumn(),
            console=_console(),
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Live:
        self._bars.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._bars.stop()

    def show(self, report: Report) -> None:
        """Move the phase's bar."""
        if report.phase not in self._tasks:
            self._tasks[report.phase] = self._bars.add_task(
                report.phase, total=report.total, chains=report.chains, report=""
            )
        self._bars.update(self._tasks[report.phase], completed=report.done, report=str(report))

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(line, highlight=False)


def _console() -> Any:
    from rich.console import Console  # noqa: PLC0415  # only where Rich is installed

    return Console(stderr=True)
