"""A run on a terminal: its summary, the time it took, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phalanx.errors.words import count
from phalanx.report.reported import Reported

if TYPE_CHECKING:
    from rich.console import Console

    from phalanx.diagnostics import Check


def console() -> Console:
    """Return where to print: standard output, as wide as the terminal."""
    from rich.console import Console  # as slow to import as a small model takes to trace

    return Console()


def print_run(posterior: Reported, checks: Sequence[Check] = ()) -> None:
    """Print the summary, the time that the run took, and the verdict.

    A run that stored no draws has no summary; its verdict is that of its reducers.

    Args:
        posterior: the run.
        checks: the user's, for the verdict.
    """
    to = console()
    if posterior.num_draws:
        # The verdict comes last, after the user's own checks.
        to.print(posterior.summary().rows_to_text(), markup=False, highlight=False, soft_wrap=True)
    timing = posterior.timing
    to.print(
        f"\n{timing.compile:.1f} s compiling, {timing.warmup:.1f} s warm-up, {timing.sampling:.1f} s sampling; "
        f"{count(timing.gradient_evaluations, 'gradient')}, {count(posterior.num_divergences, 'divergence')}",
        highlight=False,
        soft_wrap=True,
    )
    if posterior.num_draws or posterior.record.folded_draws:
        verdict = posterior.verdict(checks)
        # names of elements have brackets, which are no markup
        to.print(str(verdict), style="green" if verdict else "yellow", highlight=False, markup=False, soft_wrap=True)
