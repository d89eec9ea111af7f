"""Report of a fit, as an HTML page."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from phalanx.diagnostics import Verdict
from phalanx.posterior.record import RunRecord, Timing
from phalanx.report.page import Card, Page, file_to_write, listed, pairs, picture, words
from phalanx.variational.judging.evidence import Evidence, Weights
from phalanx.variational.pictures import bound_figure, marginal_figure, weight_figure

if TYPE_CHECKING:
    from jaxtyping import Float

_NOTES = {
    "Evidence lower bound": "Each step's estimate, and its running mean. A flat curve may still be below its maximum: "
    "the verdict says whether the guide still changes.",
    "Importance weights": "The weights of the guide's draws under the model, from the lightest to the heaviest. If a "
    "few weigh as much as all others together, the guide misses a part of the posterior.",
    "Marginals": "The elements that weighting moves most: as the guide draws them, and weighted by the model.",
}


def write_page(
    path: str | PathLike[str], record: RunRecord, timing: Timing, steps: int, elbo: Float[np.ndarray, "step"],
    judged: tuple[Weights, dict[str, np.ndarray]], verdict: Verdict, evidence: Evidence,
) -> Path:  # fmt: skip
    """Write the report of a fit, whose `judged` draws have weights, as one self-contained HTML file."""
    file = file_to_write("report", path, "fit.html")
    weights, values = judged
    figures = {
        "Evidence lower bound": bound_figure(elbo),
        "Importance weights": weight_figure(weights),
        "Marginals": marginal_figure(values, weights),
    }
    facts = {
        "guide": words(record.kernel),
        "model": words(record.model),
        "data": pairs(record.data),
        "latent variables": pairs(record.latents),
        "devices": listed(record.devices),
        "seed": words(str(record.seed)),
        "versions": words(", ".join(f"{name} {version}" for name, version in record.versions.items())),
    }
    return Page(
        title=f"Fit of {record.model}",
        subtitle=f"{record.kernel} · {record.started}",
        verdict=verdict,
        cards=[
            Card("log evidence", f"{evidence.log_evidence:,.3f} ± {evidence.error:.2g}"),
            Card("ELBO", f"{evidence.elbo:,.3f} ± {evidence.elbo_error:.2g}"),
            Card("k-hat", f"{evidence.k_hat:.2f}"),
            Card("steps", f"{steps:,}"),
            Card("learning", f"{timing.sampling:.2f} s"),
            Card("compiling", f"{timing.compile:.2f} s"),
        ],
        pictures=[picture(title, figure, _NOTES[title]) for title, figure in figures.items() if figure is not None],
        facts={name: lines for name, lines in facts.items() if lines},
        source=record.source,
        version=record.versions.get("phalanx", ""),
    ).write(file)
