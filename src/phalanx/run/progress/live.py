"""Live display on a terminal, with Rich."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from phalanx.mesh.output import STDERR
from phalanx.report import terminal
from phalanx.run.progress.report import Report


class Live:
    """Display with a progress bar for each phase."""

    def __init__(self, console: Console | None = None) -> None:
        self._bars = Progress(
            TextColumn("{task.description:>8}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[what]} {task.completed}/{task.total}"),
            TextColumn("{task.fields[report]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console or terminal.console(STDERR),
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Live:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def show(self, report: Report) -> None:
        """Advance the bar of the report's phase."""
        if report.phase not in self._tasks:
            self._tasks[report.phase] = self._bars.add_task(
                report.phase, total=report.total, what=report.what, report=""
            )
        self._bars.update(self._tasks[report.phase], completed=report.done, report=str(report))

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(line, highlight=False)


@contextmanager
def counting(text: str, console: Console | None = None) -> Iterator[None]:
    """Show `words` and the elapsed seconds until the context ends."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console or terminal.console(STDERR), transient=True) as progress:
        progress.add_task(text, total=None)
        yield
