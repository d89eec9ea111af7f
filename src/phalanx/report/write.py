"""The report of a run: one HTML file that needs nothing beside it, neither scripts nor style sheets nor pictures."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.diagnostics.checks import high_rhat, least_ess
from phalanx.report.figures import draw_figures, png
from phalanx.report.files import file_to_write
from phalanx.report.headline import headline_html
from phalanx.report.reported import Reported
from phalanx.report.tables import phases_html, record_html, summary_html

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
        ImportError: when matplotlib is not installed.

    Example:
        >>> from phalanx.report import write_report
        >>> write_report(posterior, "report.html")  # doctest: +SKIP
        PosixPath('report.html')
    """
    file = file_to_write("report", path, "report.html")
    file.write_text(_page(posterior, figures or {}, checks), encoding="utf-8")
    return file


def _page(posterior: Reported, others: Mapping[str, Figure], checks: Sequence[Check]) -> str:
    """Return the whole page."""
    record = posterior.record
    summary = posterior.summary()
    table = summary_html(
        summary,
        has_log_density="log_density" in posterior.stats,
        needed=least_ess(posterior.num_chains),
        high=high_rhat(posterior.num_chains, posterior.num_draws, len(summary)),
    )
    title = f"Posterior of {record.model}" if record.model else "Posterior"
    subtitle = " · ".join(filter(None, [record.kernel, f"seed {record.seed}", record.started]))
    ours = [_picture(*_PICTURES[name], png(figure)) for name, figure in draw_figures(posterior).items()]
    pictures = "\n".join([*ours, *(_picture(title, "", png(figure)) for title, figure in others.items())])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{files("phalanx.report").joinpath("page.css").read_text(encoding="utf-8")}</style>
</head>
<body>
<main>
<header><h1>{escape(title)}</h1><p>{escape(subtitle)}</p></header>
<section>{headline_html(posterior, checks)}</section>
<section><h2>Summary</h2>
{table}</section>
{pictures}
<section><h2>What was run where</h2>
{phases_html(posterior)}
{record_html(posterior)}</section>
<footer>Written by Phalanx {escape(record.versions.get("phalanx", ""))}</footer>
</main>
</body>
</html>
"""


def _picture(title: str, note: str, image: bytes) -> str:
    data, title = b64encode(image).decode("ascii"), escape(title)
    said = f'<p class="note">{note}</p>\n' if note else ""
    return (
        f'<section><h2>{title}</h2>\n{said}<img alt="{title} of the run" src="data:image/png;base64,{data}"></section>'
    )
