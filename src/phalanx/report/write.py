"""Report of a run as an HTML page: its sections and their explanations."""

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
        "The log density and the elements with the worst R-hat, draw by draw; histograms on the right. Chains that "
        "have converged overlap and do not drift.",
    ),
    "ranks": (
        "Ranks",
        "Histograms of the ranks of each chain's draws among all draws. Chains that have converged are close to the "
        "even share; autocorrelated draws deviate somewhat more than independent ones.",
    ),
    "pairs": (
        "Pairs",
        "Pairs of the elements that predict divergences (else the energy) best, and of those with the worst R-hat. "
        "The sampler cannot follow the density in regions where divergent draws cluster, as in the neck of a "
        "funnel. The outermost draws may lie beyond the ends of an axis.",
    ),
    "energy": (
        "Energy and acceptance",
        "The change of energy from one draw to the next should be as wide as the distribution of all energies; E-BFMI "
        "compares the two. Acceptance rate: dots are the means of the chains, bars hold 90% of their draws.",
    ),
    "warmup": (
        "Warm-up",
        "The tuned quantities, round by round. If the step size still changes at the end, run a longer warm-up. Dashed "
        "lines: a new metric; dotted lines: chains moved beside others.",
    ),
}


def write_report(
    posterior: Reported,
    path: str | PathLike[str],
    figures: Mapping[str, Figure] | None = None,
    checks: Sequence[Check] = (),
) -> Path:
    """Write the report of a run as one self-contained HTML file.

    The page contains the verdict with advice, headline numbers, the summary table, trace, rank, pair, energy and
    warm-up plots, and the record of the run.

    Args:
        posterior: the run.
        path: the file to write; missing folders are made.
        figures: the user's figures by title, after the built-in ones.
        checks: the user's checks for the verdict.

    Returns:
        The path written.

    Raises:
        ValueError: if there are no draws, or `path` is a folder.
        ImportError: if matplotlib or Jinja is not installed.

    Example:
        >>> from phalanx.report import write_report
        >>> write_report(posterior, "report.html")  # doctest: +SKIP
        PosixPath('report.html')
    """
    file = file_to_write("report", path, "report.html")
    record, summary = posterior.record, posterior.summary()
    verdict = posterior.verdict(checks)
    built_in = [_picture(*_PICTURES[name], figure) for name, figure in draw_figures(posterior).items()]
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
        pictures=[*built_in, *(_picture(title, "", figure) for title, figure in (figures or {}).items())],
        phases=phases_of(posterior.timing),
        facts=facts_of(posterior),
        source=record.source,
        version=record.versions.get("phalanx", ""),
    ).write(file)


def _picture(title: str, note: str, figure: Figure) -> Picture:
    return picture(title, figure, note, " of the run")
