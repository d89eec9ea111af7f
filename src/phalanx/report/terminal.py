"""Summary, seconds and verdict of a run, printed on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phalanx.errors.message_text import count
from phalanx.mesh.output import STDOUT, Output
from phalanx.report.posterior_protocol import Reported

if TYPE_CHECKING:
    from rich.console import Console

    from phalanx.diagnostics import Check, Verdict


def console(output: Output = STDOUT) -> Console:
    """Return the console of standard output or standard error, as wide as the terminal."""
    from rich.console import Console  # as slow to import as a small model takes to trace

    return Console(file=output)  # pyright: ignore[reportArgumentType]


def print_run(posterior: Reported, checks: Sequence[Check] = ()) -> None:
    """Print the summary, the seconds and the verdict of a run.

    Without stored draws there is no summary, and the verdict is that of the reducers.

    Args:
        posterior: the run.
        checks: the user's checks for the verdict.
    """
    to = console()
    if posterior.num_draws:
        # Without its verdict, which lacks the user's checks and is printed last.
        to.print(posterior.summary().rows_to_text(), markup=False, highlight=False, soft_wrap=True)
    timing = posterior.timing
    to.print(
        f"\n{timing.compile:.1f} s compiling, {timing.warmup:.1f} s warm-up, {timing.sampling:.1f} s sampling; "
        f"{count(timing.gradient_evaluations, 'gradient')}, {count(posterior.num_divergences, 'divergence')}",
        highlight=False,
        soft_wrap=True,
    )
    for note in posterior.record.notes:
        to.print(note, highlight=False, markup=False, soft_wrap=True)
    if posterior.num_draws or posterior.record.reduced_draws:
        print_verdict(posterior.verdict(checks))


def print_verdict(verdict: Verdict) -> None:
    """Print a verdict, green if it is good."""
    style = "green" if verdict else "yellow"
    # markup=False: names of elements have brackets
    console().print(str(verdict), style=style, highlight=False, markup=False, soft_wrap=True)
