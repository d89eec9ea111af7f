"""Report of a run: an HTML page, and a folder with the page, its pictures and the record in JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.diagnostics.judging.checked_run import high_rhat, least_ess
from phalanx.extras import is_installed
from phalanx.report.model_draws import draw_from_model
from phalanx.report.page import Page, Section, file_to_write, section, section_of_users
from phalanx.report.plots.figures import draw_panels, save_figures, save_pictures
from phalanx.report.posterior_protocol import Reported
from phalanx.report.sections import (
    check_section,
    comparison_section,
    facts_of,
    headline_cards,
    loo_section,
    phases_of,
    summary_section,
    variables_section,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from phalanx.diagnostics import Check

_CHAINS = {
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
    "autocorrelation": (
        "Autocorrelation",
        "The correlation of draws of a chain with draws so many iterations earlier. The slower it falls, the fewer "
        "effective draws a chain has.",
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
        "The tuned quantities, round by round. If the step size still changes at the end, run a longer warm-up. The "
        "scales of the metric are the least and the greatest standard deviation that it assumes for a coordinate on "
        "the unconstrained scale. Dashed lines: a new metric; dotted lines: chains moved beside others.",
    ),
}


def write_report(
    posterior: Reported,
    path: str | PathLike[str],
    figures: Mapping[str, Figure] | None = None,
    checks: Sequence[Check] = (),
    *,
    names: str | Iterable[str] | None = None,
    beside: Reported | None = None,
) -> Path:
    """Write the report of a run as one self-contained HTML file.

    The page contains the verdict with advice, headline numbers, the marginals of all variables, a summary that can be
    sorted and searched, checks of the model against the data, plots of the chains, and the record of the run.

    Args:
        posterior: the run.
        path: the file to write; missing folders are made.
        figures: the user's figures by title, after the built-in ones.
        checks: the user's checks for the verdict.
        names: variables to show, in this order, or one name; None for all. The verdict is on all.
        beside: another run, to compare with.

    Returns:
        The path written.

    Raises:
        ValueError: if there are no draws, a name is unknown, or `path` is a folder.
        ImportError: if matplotlib or Jinja is not installed.

    Example:
        >>> from phalanx.report import write_report
        >>> write_report(posterior, "report.html")  # doctest: +SKIP
        PosixPath('report.html')
    """
    file = file_to_write("report", path, "report.html")
    record = posterior.record
    verdict = posterior.verdict(checks)
    selection = choose_variables(posterior, names)
    run_length = f"{posterior.num_draws:,}" + (
        f" of {record.num_samples:,}" if record.num_samples > posterior.num_draws else ""
    )
    return Page(
        title=f"Posterior of {record.model}" if record.model else "Posterior",
        subtitle=" · ".join(filter(None, [record.kernel, f"seed {record.seed}", record.started])),
        verdict=verdict,
        interrupted=f"The run was interrupted after {run_length} draws." if record.interrupted else "",
        cards=headline_cards(posterior, verdict),
        sections=[
            *sections_of_draws(posterior, selection, beside),
            *(
                section(*_CHAINS[name], panels, layout="wide" if name == "pairs" else "grid")
                for name, panels in draw_panels(selection).items()
            ),
            *(section_of_users(title, figure) for title, figure in (figures or {}).items()),
        ],
        phases=phases_of(posterior.timing),
        facts=facts_of(posterior),
        source=record.source,
        version=record.versions.get("phalanx", ""),
    ).write(file)


def choose_variables(posterior: Reported, names: str | Iterable[str] | None) -> Reported:
    """Return the posterior with the draws of some variables alone; all for None."""
    if names is None:
        return posterior
    variables = [names] if isinstance(names, str) else list(names)
    if not variables:
        raise ValueError("report: names= is empty; name at least one variable, or leave it out.")
    of_run: Any = posterior
    return replace(of_run, draws={name: of_run[name] for name in variables})


def sections_of_draws(posterior: Reported, selection: Reported, beside: Reported | None = None) -> list[Section]:
    """Return the sections on variables, their summary, another run, and the model's predictions.

    Args:
        posterior: the run.
        selection: the same with the variables to show.
        beside: another run.

    Returns:
        The sections.
    """
    model = draw_from_model(posterior)
    summary = selection.summary()
    high = high_rhat(posterior.num_chains, posterior.num_draws, len(posterior.summary()))
    return [
        variables_section(selection, model, beside),
        *([comparison_section(selection, beside)] if beside is not None else []),
        summary_section(
            summary,
            selection.draws,
            has_log_density="log_density" in posterior.stats,
            least_ess=least_ess(posterior.num_chains),
            high=high,
        ),
        check_section(model),
        loo_section(posterior, model),
    ]


def write_folder(
    posterior: Reported,
    folder: str | PathLike[str],
    *,
    headline: Mapping[str, Any] | None = None,
    figures: Mapping[str, Figure] | None = None,
    checks: Sequence[Check] = (),
) -> list[Path]:
    """Write `report.html`, the figures of the run, and `result.json` to a folder.

    Without matplotlib or Jinja, only `result.json` is written. For a run without stored draws, the given figures and
    `result.json` with the verdict of its reducers are written.

    `result.json` holds the headline, the verdict, the R-hat of the log density and the worst one, the seconds of each
    phase, and the record of the run.

    Args:
        posterior: the run.
        folder: the folder; made if missing.
        headline: main results, by name.
        figures: the user's figures, to save and to show in the report, by name.
        checks: the user's checks for the verdict.

    Returns:
        The files written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    findings = {}
    if posterior.num_draws:
        r_hat = posterior.summary()["r_hat"]
        findings = {
            "verdict": _verdict(posterior, checks),
            "r_hat": {"log_density": _number(r_hat.iloc[0]), "worst": _number(r_hat.max())},
        }
    elif posterior.record.reduced_draws:
        findings = {"verdict": _verdict(posterior)}
    if posterior.num_draws and is_installed("matplotlib") and is_installed("jinja2"):
        titled = {_title(name): figure for name, figure in (figures or {}).items()}
        built_in = save_figures(posterior, folder)
        if built_in_names := {path.stem for path in built_in} & (figures or {}).keys():
            raise ValueError(f"figures: {min(built_in_names)!r} is the name of a built-in figure; choose another.")
        files = [write_report(posterior, folder / "report.html", titled, checks), *built_in]
    files += save_pictures(figures or {}, folder)
    document = {
        "headline": dict(headline or {}),
        **findings,
        "timing": asdict(posterior.timing),
        "run": {name: value for name, value in asdict(posterior.record).items() if name != "source"},
    }
    return [*files, write_result(document, folder)]


def write_result(document: Mapping[str, Any], folder: Path) -> Path:
    """Write `result.json` to a folder, and return its path."""
    file = folder / "result.json"
    file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return file


def _title(name: str) -> str:
    title = name.replace("_", " ")
    return title[:1].upper() + title[1:]


def _verdict(posterior: Reported, checks: Sequence[Check] = ()) -> dict[str, Any]:
    verdict = posterior.verdict(checks)
    return {"good": verdict.good, "grade": verdict.grade, "headline": verdict.headline}


def _number(value: Any) -> float | None:
    """Return a number, or None if it is not finite, for which JSON has no number."""
    return float(value) if math.isfinite(value) else None
