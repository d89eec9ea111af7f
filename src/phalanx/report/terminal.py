"""A run on a terminal: the rows of its summary that matter most, and what it took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phalanx.extras import require
from phalanx.report.chosen import worst_first
from phalanx.report.reported import Reported

if TYPE_CHECKING:
    from phalanx.diagnostics import Check

SHOWN_ROWS = 8
"""Rows of the summary that are printed: the log density and those that have mixed worst."""


def console() -> Any:
    """Return where to print: standard output, as wide as the terminal."""
    return require("rich.console", "cli").Console()


def print_run(posterior: Reported, checks: Sequence[Check] = ()) -> None:
    """Print the log density and the elements that have mixed worst, what the run took, and the verdict.

    Args:
        posterior: the run.
        checks: the user's, for the verdict.

    Of a run that stored no draw there is no summary; the verdict is that of its reducers.

    Raises:
        ImportError: when Rich is not installed.
    """
    to = console()
    if posterior.num_draws:
        _print_summary(to, posterior.summary())
    timing = posterior.timing
    to.print(
        f"\n{timing.compile:.1f} s compiling, {timing.warmup:.1f} s warm-up, {timing.sampling:.1f} s sampling; "
        f"{timing.gradient_evaluations:,} gradients, {posterior.num_divergences} divergences",
        highlight=False,
        soft_wrap=True,
    )
    if posterior.num_draws or posterior.record.folded_draws:
        verdict = posterior.verdict(checks)
        # names of elements have brackets, which are no markup
        to.print(str(verdict), style="green" if verdict else "yellow", highlight=False, markup=False, soft_wrap=True)


def _print_summary(to: Any, table: Any) -> None:
    # a copy ends with no verdict: it comes last
    shown = table.copy() if len(table) <= SHOWN_ROWS else _worst(table)
    to.print(repr(shown), markup=False, highlight=False, soft_wrap=True)
    if left := len(table) - len(shown):
        to.print(
            f"({left} more rows; these are the log density and the highest R-hats)", highlight=False, soft_wrap=True
        )


def _worst(table: Any) -> Any:
    from pandas import concat  # as slow to import as all of Phalanx

    first, rest = table.iloc[:1], worst_first(table.iloc[1:])
    return concat([first, rest.iloc[: SHOWN_ROWS - 1]])
