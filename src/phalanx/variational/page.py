"""Report of a fit, as an HTML page, and its pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.diagnostics import Verdict
from phalanx.diagnostics.elements import Names, element_names
from phalanx.posterior.posterior import Posterior
from phalanx.posterior.record import RunRecord, Timing
from phalanx.report.page import Card, Page, Section, listed, section, section_of_users, words
from phalanx.report.plots.style import ACCENT, INK, MUTED, PANEL, SECOND, bin_edges, finish, new_figure, panel
from phalanx.report.write import choose_variables, sections_of_draws
from phalanx.variational.judging.evidence import Evidence, Weights
from phalanx.variational.judging.judge import moments

if TYPE_CHECKING:
    from jaxtyping import Float
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_DRAWS = 4000
_LEAST_DRAWS = 100
_MOST_BYTES = 2**28

SHOWN = 6
"""Most marginals to draw, each in a figure of its own."""

POINTS = 600
"""Most points of a curve."""

_NOTES = {
    "Evidence lower bound": "Each step's estimate, and its running mean. A flat curve may still be below its maximum: "
    "the verdict says whether the guide still changes.",
    "Importance weights": "The weights of the guide's draws under the model, from the lightest to the heaviest. If a "
    "few weigh as much as all others together, the guide misses a part of the posterior.",
    "Weighted marginals": "The elements that weighting moves most: as the guide draws them, and weighted by the model.",
}

_TO_DRAW = "Continue the fit, phx.fit(model, guide, data, init=fit, num_steps=0), which can draw."

NO_DRAWS = f"The variables are not shown: the file of a fit holds no draws. {_TO_DRAW}"
"""Remark on a fit that was read from a file without draws beside it."""


def shown_draws(values: Mapping[str, np.ndarray]) -> int:
    """Return the number of draws from the guide that the page shows, fewer if draws are large as `values` are."""
    size = sum(array.nbytes // max(len(array), 1) for array in values.values())
    return min(max(_MOST_BYTES // max(size, 1), _LEAST_DRAWS), _MOST_DRAWS)


class PageOfFit(NamedTuple):
    """Content of the report of a fit.

    Attributes:
        record: record of the fit.
        timing: its timing.
        steps: steps made.
        elbo: the bound at each step.
        verdict: verdict on the fit.
        posterior: draws from the guide; None if the fit was read from a file, without saved draws.
        judged: weights of the draws that were judged, and these draws; None if they are not known.
        evidence: estimate of the evidence; None if the weights are not known.
    """

    record: RunRecord
    timing: Timing
    steps: int
    elbo: Float[np.ndarray, "step"]
    verdict: Verdict
    posterior: Posterior | None = None
    judged: tuple[Weights, Mapping[str, np.ndarray]] | None = None
    evidence: Evidence | None = None

    def with_draws(self, draws: Posterior) -> PageOfFit:
        """Return the page with saved draws of the guide, whose weights judge the fit."""
        page = self._replace(posterior=draws)
        log_weights = draws.stats.get("log_weight")
        if log_weights is None or not np.ptp(log_weights):  # chosen by their weights
            return page
        weights = Weights.of(log_weights[0], np.zeros_like(log_weights[0]))
        values = {name: values[0] for name, values in draws.draws.items()}
        return page._replace(judged=(weights, values), evidence=weights.evidence())

    def write(
        self, file: Path, names: str | Iterable[str] | None, beside: Posterior | None, figures: Mapping[str, Figure]
    ) -> Path:
        """Write the page; see `Fit.report`."""
        record = self.record
        timing = self.timing
        figures_by_title = {
            "Importance weights": [] if self.judged is None else [weight_figure(self.judged[0])],
            "Weighted marginals": (
                [] if self.judged is None else marginal_figure(self.judged[1], self.judged[0], record.labels)
            ),
            "Evidence lower bound": [bound] if (bound := bound_figure(self.elbo)) is not None else [],
        }
        facts = {
            "guide": words(record.kernel),
            "model": words(record.model),
            "data": [*record.data.items()],
            "latent variables": [*record.latents.items()],
            "devices": listed(record.devices),
            "seed": words(str(record.seed)),
            "versions": words(", ".join(f"{name} {version}" for name, version in record.versions.items())),
        }
        return Page(
            title=f"Fit of {record.model}",
            subtitle=f"{record.kernel} · {record.started}",
            verdict=self.verdict,
            cards=[
                *([] if self.evidence is None else _cards(self.evidence)),
                Card("steps", f"{self.steps:,}"),
                Card("learning", f"{timing.warmup:.2f} s"),
                Card("compiling", f"{timing.compile:.2f} s"),
            ],
            sections=[
                *self._of_draws(names, beside),
                *(
                    section(title, _NOTES[title], {f"{title} {number}": one for number, one in enumerate(figures)})
                    for title, figures in figures_by_title.items()
                    if figures
                ),
                *(section_of_users(title, figure) for title, figure in figures.items()),
            ],
            facts={name: lines for name, lines in facts.items() if lines},
            source=record.source,
            version=record.versions.get("phalanx", ""),
        ).write(file)

    def _of_draws(self, names: str | Iterable[str] | None, beside: Posterior | None) -> list[Section]:
        if self.posterior is not None:
            return sections_of_draws(self.posterior, choose_variables(self.posterior, names), beside)
        if names is not None or beside is not None:
            raise ValueError(
                f"report: {'names' if names is not None else 'beside'} is about draws, and this fit was read from a "
                f"file without any. {_TO_DRAW}"
            )
        return [Section("Variables", missing=[NO_DRAWS])]


def _cards(evidence: Evidence) -> list[Card]:
    return [
        Card("log evidence", f"{evidence.log_evidence:,.3f}", f"± {evidence.error:.2g}"),
        Card("ELBO", f"{evidence.elbo:,.3f}", f"± {evidence.elbo_error:.2g}"),
        Card("k-hat", f"{evidence.k_hat:.2f}", "tail of the importance weights"),
    ]


def bound_figure(elbo: np.ndarray) -> Figure | None:
    """Draw the bound at each step with its running mean, within the limits of later steps; None without steps."""
    steps = np.flatnonzero(np.isfinite(elbo))
    if not len(steps):
        return None
    values = elbo[steps]
    width = max(1, len(values) // 50)
    totals = np.cumsum(np.concatenate([[0.0], values.astype(np.float64)]))
    running = (totals[width:] - totals[:-width]) / width
    figure = new_figure(PANEL, 2.4)
    axes = figure.subplots()
    step_numbers = np.unique(np.linspace(0, len(values) - 1, min(POINTS, len(values))).astype(int))
    axes.plot(steps[step_numbers], values[step_numbers], color=MUTED, linewidth=0.5, alpha=0.6, label="each step")
    running, ends = running[:: -(-len(running) // POINTS)], steps[width - 1 :: -(-len(running) // POINTS)]
    axes.plot(ends, running, color=ACCENT, linewidth=1.6, label=f"mean of {width:,} steps")
    low, high = np.quantile(values[len(values) // 4 :], [0.001, 1.0])
    axes.set_ylim(low - 0.1 * (high - low + 1e-6), high + 0.1 * (high - low + 1e-6))
    finish(axes, x="step", y="bound in nats")
    axes.legend(frameon=False, fontsize=8.5, labelcolor=INK)
    return figure


def weight_figure(weights: Weights) -> Figure:
    """Draw the weights in order, relative to their mean, raw and smoothed."""
    figure = new_figure(PANEL, 2.4)
    axes = figure.subplots()
    for log, color, label in (
        (weights.log, MUTED, "as they are"),
        (weights.smoothed.log_weights, ACCENT, f"smoothed, k-hat {weights.smoothed.k_hat:.2f}"),
    ):
        finite = np.sort(log[np.isfinite(log)])
        relative = finite - finite.max() - np.log(np.mean(np.exp(finite - finite.max()))) if len(finite) else finite
        axes.plot(np.linspace(0.0, 1.0, len(relative)), relative, color=color, linewidth=1.4, label=label)
    finish(axes, x="fraction of draws with a smaller weight", y="log(weight / mean weight)")
    axes.legend(frameon=False, fontsize=8.5, labelcolor=INK)
    return figure


def marginal_figure(values: Mapping[str, np.ndarray], weights: Weights, labels: Names | None = None) -> list[Figure]:
    """Draw histograms of the elements that weighting moves most, under the guide and weighted; none without weights."""
    normalized = weights.normalized
    if not np.isfinite(normalized).all():
        return []
    largest = moments(values, normalized, labels=labels)
    largest = sorted(largest, key=lambda m: -max(abs(m.shift), abs(np.log(m.ratio))))[:SHOWN]
    columns = {
        label: column
        for name, draws in values.items()
        for label, column in zip(
            element_names(name, draws.shape[1:], labels), draws.reshape(len(draws), -1).T, strict=True
        )
    }
    return [
        panel(_draw_weighted, moment.name, columns[moment.name].astype(np.float64), normalized) for moment in largest
    ]


def _draw_weighted(axes: Axes, name: str, draws: np.ndarray, normalized: np.ndarray) -> None:
    """Draw the histogram of an element, and that of its weighted draws."""
    low, high = np.quantile(draws, [0.001, 0.999])
    edges = bin_edges(low, high, len(draws) // 4)
    for weight, color, label in ((None, ACCENT, "guide"), (normalized, SECOND, "weighted")):
        heights = np.histogram(draws, edges, weights=weight)[0] / (1.0 if weight is not None else len(draws))
        axes.stairs(heights, edges, fill=True, color=color, alpha=0.2)
        axes.stairs(heights, edges, color=color, linewidth=1.4, label=label)
    finish(axes, name, x="value")
    axes.set_yticks([])
    axes.legend(frameon=False, fontsize=8.5, labelcolor=INK)
