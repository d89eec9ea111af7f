"""Report of a run, as an HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.diagnostics.judging.checks import high_rhat, least_ess
from phalanx.report.headline import headline_cards
from phalanx.report.page import Page, Picture, file_to_write, picture
from phalanx.report.plots.figures import draw_figures
from phalanx.report.reported import Reported
from phalanx.report.tables import facts_of, phases_of, summary_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from phalanx.diagnostics import Check

_PICTURES = {
    "traces": (
        "Traces",
        "The log density and the elements with the worst R-hat, along the draws; their distributions on the right. "
        "Chains that have converged look alike and do not wander.",
    ),
    "ranks": (
        "Ranks",
        "Where each chain's draws rank among all draws. Chains that have converged take even shares; draws that depend "
        "on one another stray somewhat further than independent ones would.",
    ),
    "pairs": (
        "Pairs",
        "The elements whose values tell most about divergences (or energies), and those with the worst R-hat, two by "
        "two. Where divergent draws crowd, as in the neck of a funnel, the sampler cannot follow the density. The "
        "outermost draws may lie beyond the ends of an axis.",
    ),
    "energy": (
        "Energy and acceptance",
        "Energies should spread no wider than one draw moves them. Dots are the means of each chain, bars hold nine "
        "tenths of its draws.",
    ),
    "warmup": (
        "Warm-up",
        "What was tuned, round by round. Where the step size still moves at the end, a longer warm-up will do better. "
        "Dashed: a new metric; dotted: chains moved.",
    ),
}


def write_report(
    posterior: Reported,
    path: str | PathLike[str],
    figures: Mapping[str, Figure] | None = None,
    checks: Sequence[Check] = (),
) -> Path:
    """Write the report of a run as one self-contained HTML file.

    It holds the verdict, headline figures and what they mean, the summary table, trace, rank, pair, energy and
    acceptance plots, and what was run where.

    Args:
        posterior: the run.
        path: the file to write; folders on the way are made.
        figures: the user's, by title, after ours.
        checks: the user's, for the verdict.

    Returns:
        The path written.

    Raises:
        ValueError: when there are no draws, or `path` is a folder.
        ImportError: when matplotlib or Jinja is not installed.

    Example:
        >>> from phalanx.report import write_report
        >>> write_report(posterior, "report.html")  # doctest: +SKIP
        PosixPath('report.html')
    """
    file = file_to_write("report", path, "report.html")
    record, summary = posterior.record, posterior.summary()
    verdict = posterior.verdict(checks)
    ours = [_picture(*_PICTURES[name], figure) for name, figure in draw_figures(posterior).items()]
    made, asked = f"{posterior.num_draws:,}", f"{record.num_samples:,}"
    return Page(
        title=f"Posterior of {record.model}" if record.model else "Posterior",
        subtitle=" · ".join(filter(None, [record.kernel, f"seed {record.seed}", record.started])),
        verdict=verdict,
        interrupted=f"The run was interrupted after {made} of {asked} draws." if record.interrupted else "",
        cards=headline_cards(posterior, verdict),
        summary=summary_table(
            summary,
            has_log_density="log_density" in posterior.stats,
            needed=least_ess(posterior.num_chains),
            high=high_rhat(posterior.num_chains, posterior.num_draws, len(summary)),
        ),
        pictures=[*ours, *(_picture(title, "", figure) for title, figure in (figures or {}).items())],
        phases=phases_of(posterior.timing),
        facts=facts_of(posterior),
        source=record.source,
        version=record.versions.get("phalanx", ""),
    ).write(file)


def _picture(title: str, note: str, figure: Figure) -> Picture:
    return picture(title, figure, note, " of the run")
