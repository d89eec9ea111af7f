"""NUTS on a logistic regression of 581,012 rows: is a cell of forest covered by lodgepole pine?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np
import numpyro.distributions as dist
from jax import Array

import phalanx as phx
from phalanx.demos.options import DemoOptions, finish, introduce
from phalanx.diagnostics.calibration import calibrate
from phalanx.ensembles import score
from phalanx.mesh.output import STDOUT
from phalanx.report import reliability_figure
from phalanx.report.plots import style

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TARGET_ACCEPTANCE = 0.85
"""Higher than the default: coefficients of rare soils have a long tail, in which longer steps diverge."""

MATHEMATICS = """
    w ~ Normal(0, 1)                  [{columns}]
    y ~ Bernoulli(logits = x w)        for each of {rows:,} rows x
"""
PANELS = (
    {"Terrain": np.r_[0:10, 54], "Wilderness": np.r_[10:14]},
    {"Soil": np.r_[14:34]},
    {"Soil, continued": np.r_[34:54]},
)
BATCH = 32
"""Draws per batch of predictions: logits of 58,101 rows take 0.2 MB a draw."""

WIDE, NARROW = (0.03, 0.97), (0.25, 0.75)
"""Quantiles that bound the intervals of coefficients."""

ROW, TITLE = 0.2, 0.9
"""Inches of height for a coefficient, and for the frame of a group."""


def model(x: Array, y: Array) -> None:
    """Model labels `y`, 0 or 1, by a logistic regression on `x` (rows, columns)."""
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]))
    phx.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def main(options: DemoOptions) -> phx.Posterior:
    """Run the demo, with rows sharded over all devices by default: reading them takes most of a leapfrog's time."""
    mesh = options.mesh(jax.device_count())
    data = load(options)
    rows, columns = data.train_x.shape
    mathematics = MATHEMATICS.format(rows=rows, columns=columns)
    introduce(f"Bayesian logistic regression on {data.name}", mathematics, f"{data.source}; {data.licence}")
    posterior = phx.mcmc(
        model,
        phx.shard({"x": data.train_x, "y": data.train_y}, mesh),
        kernel=phx.nuts(target_acceptance=TARGET_ACCEPTANCE),
        **options.sizes(chains=8, warmup=400, draws=800),
        seed=options.seed,
        mesh=mesh,
        matmul_precision=options.precision,
    )
    draws = posterior.draws["w"]
    probability = predict(draws, data.test_x)
    numbers, text = headline(data, probability, draws)
    ones = "lodgepole pine" if data.true_weights is None else "ones"
    figures = {
        "coefficients": intervals(draws, data),
        "reliability": reliability_figure(
            calibrate(probability, data.test_y), f"fraction of {ones}", "predicted probability", "test rows"
        ),
    }
    finish(posterior, numbers, text, figures, options.out)
    return posterior


def load(options: DemoOptions) -> phx.datasets.LabelledRows:
    """Return the real rows, or generated ones if they are missing and `--data` names no folder."""
    try:
        return phx.datasets.covertype(options.data)
    except FileNotFoundError as error:
        if options.data is not None:
            raise
        STDOUT.say(f"The rows are generated, because real ones are missing. {error}")
        return phx.datasets.generate_covertype()


def predict(
    weights: Float[np.ndarray, "chain draw column"], x: Float[np.ndarray, "row column"]
) -> Float[np.ndarray, "row"]:
    """Return the mean over draws of the predicted probability of a one, for each row."""
    flat = weights.reshape(-1, weights.shape[-1])
    sum_of_draws = jax.jit(lambda x, w: jax.nn.sigmoid(x @ w.T).sum(1))
    total = np.zeros(len(x))
    for first in range(0, len(flat), BATCH):
        total += np.asarray(sum_of_draws(x, flat[first : first + BATCH]))
    return total / len(flat)


def headline(
    data: phx.datasets.LabelledRows,
    probability: Float[np.ndarray, "row"],
    draws: Float[np.ndarray, "chain draw column"],
) -> tuple[dict[str, object], str]:
    """Return the main results, by name and in words; `probability` is that of a one in each test row."""
    rate = np.full(len(probability), data.train_y.mean())
    scores, base = (score(np.stack([1 - p, p], axis=1), data.test_y) for p in (probability, rate))
    calibration_error = calibrate(probability, data.test_y).error
    numbers: dict[str, object] = {
        "data": data.name,
        "source": data.source,
        "test_accuracy": scores.accuracy,
        "test_accuracy_of_the_class_rate": base.accuracy,
        "test_log_loss": scores.nll,
        "test_log_loss_of_the_class_rate": base.nll,
        "expected_calibration_error": calibration_error,
    }
    text = (
        f"test accuracy {scores.accuracy:.4f} ({base.accuracy:.4f} by the class rate alone), log loss "
        f"{scores.nll:.4f} ({base.nll:.4f}), expected calibration error {calibration_error:.4f}"
    )
    if data.true_weights is not None:
        low, high = np.quantile(draws.reshape(-1, draws.shape[-1]), WIDE, axis=0)
        within = int(np.sum((low <= data.true_weights) & (data.true_weights <= high)))
        numbers["true_coefficients_within_94_percent_intervals"] = within
        text += f"; {within} of {len(low)} true coefficients within their 94% intervals"
    return numbers, text


def intervals(
    draws: Float[np.ndarray, "chain draw coefficient"],
    data: phx.datasets.LabelledRows,
    panels: Sequence[Mapping[str, np.ndarray]] = PANELS,
) -> Figure:
    """Draw the median of each coefficient with its 50% and 94% intervals, all on one scale.

    Args:
        draws: draws of the coefficients.
        data: their columns, and the true coefficients, if known.
        panels: from left to right, groups from top to bottom: numbers of coefficients by the group's title.

    Returns:
        The figure.
    """
    truth = data.true_weights
    names = [name.replace("_", " ").lower() for name in data.columns]
    unseen = np.ptp(data.train_x, axis=0) == 0  # these have their prior distribution
    unseen[-1] = False  # the intercept is constant, too, but rows inform it
    flat = draws.reshape(-1, draws.shape[-1])
    ends = np.quantile(flat, WIDE, axis=0)
    margin = 0.04 * np.ptp(ends)
    height = max(sum(ROW * len(group) + TITLE for group in panel.values()) for panel in panels)
    figure = style.new_figure(3.7 * len(panels), height)
    for part, panel in zip(figure.subfigures(1, len(panels), squeeze=False)[0], panels, strict=True):
        ratios = [ROW * len(group) + TITLE / 2 for group in panel.values()]
        rows = part.subplots(len(panel), 1, squeeze=False, sharex=True, height_ratios=ratios)[:, 0]
        for axes, (title, group) in zip(rows, panel.items(), strict=True):
            _draw_group(axes, flat[:, group], unseen[group])
            if truth is not None:
                mark = {"markersize": 7, "markeredgewidth": 1.6, "color": style.SECOND, "label": "true coefficient"}
                axes.plot(truth[group], np.arange(len(group)), "|", zorder=4, **mark)
            labels = [f"{names[i]}{' (no rows)' if unseen[i] else ''}" for i in group]
            axes.set_yticks(np.arange(len(group)), labels)
            style.finish(axes, title, "median, 50% and 94% intervals" if axes is rows[-1] else "", grid="x")
            axes.tick_params("y", labelsize=8, labelcolor=style.INK)
            axes.set(xlim=(ends.min() - margin, ends.max() + margin), ylim=(len(group) - 0.4, -0.6))
    style.explain(figure)
    return figure


def _draw_group(axes: Axes, draws: Float[np.ndarray, "draw member"], unseen: Bool[np.ndarray, "member"]) -> None:
    height = np.arange(draws.shape[1])
    colors = [style.MUTED if alone else style.ACCENT for alone in unseen]
    axes.axvline(0, color=style.MUTED, linewidth=1, linestyle="--")
    for levels, width in ((WIDE, 1.2), (NARROW, 3.6)):
        axes.hlines(height, *np.quantile(draws, levels, axis=0), colors=colors, linewidth=width)
    axes.scatter(np.median(draws, 0), height, s=16, c="white", edgecolors=colors, linewidths=1.2, zorder=3)
