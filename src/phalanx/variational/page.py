"""Report of a fit, as an HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.diagnostics import Verdict
from phalanx.posterior.posterior import Posterior
from phalanx.report.page import Card, Page, listed, pairs, section, section_of_users, words
from phalanx.report.write import choose_variables, sections_of_draws
from phalanx.variational.judging.evidence import Evidence, Weights
from phalanx.variational.pictures import bound_figure, marginal_figure, weight_figure

if TYPE_CHECKING:
    from jaxtyping import Float
    from matplotlib.figure import Figure

_MOST_DRAWS, _LEAST_DRAWS, _MOST_BYTES = 4000, 100, 2**28

_NOTES = {
    "Evidence lower bound": "Each step's estimate, and its running mean. A flat curve may still be below its maximum: "
    "the verdict says whether the guide still changes.",
    "Importance weights": "The weights of the guide's draws under the model, from the lightest to the heaviest. If a "
    "few weigh as much as all others together, the guide misses a part of the posterior.",
    "Weighted marginals": "The elements that weighting moves most: as the guide draws them, and weighted by the model.",
}


def shown_draws(values: Mapping[str, np.ndarray]) -> int:
    """Return the number of draws from the guide that the page shows, fewer if draws are large as `values` are."""
    size = sum(array.nbytes // max(len(array), 1) for array in values.values())
    return min(max(_MOST_BYTES // max(size, 1), _LEAST_DRAWS), _MOST_DRAWS)


class PageOfFit(NamedTuple):
    """Content of the report of a fit.

    Attributes:
        posterior: draws from the guide, with the record and timing of the fit.
        steps: steps made.
        elbo: the bound at each step.
        judged: weights of the draws that were judged, and these draws.
        evidence: estimate of the evidence.
        verdict: verdict on the fit.
    """

    posterior: Posterior
    steps: int
    elbo: Float[np.ndarray, "step"]
    judged: tuple[Weights, dict[str, np.ndarray]]
    evidence: Evidence
    verdict: Verdict

    def write(
        self, file: Path, names: str | Iterable[str] | None, beside: Posterior | None, figures: Mapping[str, Figure]
    ) -> Path:  # fmt: skip
        """Write the page; see `Fit.report`."""
        record, (weights, values), evidence = self.posterior.record, self.judged, self.evidence
        timing = self.posterior.timing
        drawn = {
            "Importance weights": [weight_figure(weights)],
            "Weighted marginals": marginal_figure(values, weights),
            "Evidence lower bound": [bound] if (bound := bound_figure(self.elbo)) is not None else [],
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
            verdict=self.verdict,
            cards=[
                Card("log evidence", f"{evidence.log_evidence:,.3f}", f"± {evidence.error:.2g}"),
                Card("ELBO", f"{evidence.elbo:,.3f}", f"± {evidence.elbo_error:.2g}"),
                Card("k-hat", f"{evidence.k_hat:.2f}", "tail of the importance weights"),
                Card("steps", f"{self.steps:,}"),
                Card("learning", f"{timing.warmup:.2f} s"),
                Card("compiling", f"{timing.compile:.2f} s"),
            ],
            sections=[
                *sections_of_draws(self.posterior, choose_variables(self.posterior, names), beside),
                *(
                    section(title, _NOTES[title], {f"{title} {number}": one for number, one in enumerate(found)})
                    for title, found in drawn.items()
                    if found
                ),
                *(section_of_users(title, figure) for title, figure in figures.items()),
            ],
            facts={name: lines for name, lines in facts.items() if lines},
            source=record.source,
            version=record.versions.get("phalanx", ""),
        ).write(file)
