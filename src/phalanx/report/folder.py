"""Folder of files of a run: the report, the pictures, and its record in JSON for other programs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.extras import is_installed
from phalanx.report.plots.figures import save_figures, save_pictures
from phalanx.report.reported import Reported
from phalanx.report.write import write_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from phalanx.diagnostics import Check


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
    files, findings = [], {}
    if posterior.num_draws:
        findings = _findings(posterior, checks)
    elif posterior.record.reduced_draws:
        findings = {"verdict": _verdict(posterior)}
    if posterior.num_draws and is_installed("matplotlib") and is_installed("jinja2"):
        titled = {_title(name): figure for name, figure in (figures or {}).items()}
        built_in = save_figures(posterior, folder)
        if taken := {path.stem for path in built_in} & (figures or {}).keys():
            raise ValueError(f"figures: {min(taken)!r} is the name of a built-in figure; choose another.")
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
    words = name.replace("_", " ")
    return words[:1].upper() + words[1:]


def _findings(posterior: Reported, checks: Sequence[Check]) -> dict[str, Any]:
    found = posterior.summary()["r_hat"]
    return {
        "verdict": _verdict(posterior, checks),
        "r_hat": {"log_density": _number(found.iloc[0]), "worst": _number(found.max())},
    }


def _verdict(posterior: Reported, checks: Sequence[Check] = ()) -> dict[str, Any]:
    verdict = posterior.verdict(checks)
    return {"good": verdict.good, "grade": verdict.grade, "headline": verdict.headline}


def _number(value: Any) -> float | None:
    """Return a number, or None if it is not finite, for which JSON has no number."""
    return float(value) if math.isfinite(value) else None
