"""NUTS on a logistic regression of 581,012 rows: is a cell of forest covered by lodgepole pine?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np
import numpyro.distributions as dist
from jax import Array

from phalanx.datasets import LabelledRows, covertype, generate_covertype
from phalanx.demos.options import DemoOptions, Sizes, choose, mesh_with
from phalanx.demos.pictures.coefficients import WIDE, intervals
from phalanx.demos.scoring.binary_scores import BinaryScores, score_binary
from phalanx.demos.show import finish, introduce
from phalanx.inputs.placement import shard
from phalanx.kernels.nuts import nuts
from phalanx.language.tracing import sample
from phalanx.mesh.output import STDOUT
from phalanx.posterior.posterior import Posterior
from phalanx.report import reliability_figure
from phalanx.run.mcmc import mcmc

if TYPE_CHECKING:
    from jaxtyping import Float

DEFAULT = Sizes(chains=8, warmup=400, draws=800)

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


def model(x: Array, y: Array) -> None:
    """Model labels `y`, 0 or 1, by a logistic regression on `x` (rows, columns)."""
    w = sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]))
    sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def main(options: DemoOptions) -> Posterior:
    """Run the demo, with rows sharded over all devices by default: reading them takes most of a leapfrog's time."""
    sizes = choose(options, DEFAULT)
    mesh = mesh_with(jax.device_count() if options.data_shards is None else options.data_shards)
    data = load(options)
    rows, columns = data.train_x.shape
    mathematics = MATHEMATICS.format(rows=rows, columns=columns)
    introduce(f"Bayesian logistic regression on {data.name}", mathematics, f"{data.source}; {data.licence}")
    posterior = mcmc(
        model,
        shard({"x": data.train_x, "y": data.train_y}, mesh),
        kernel=nuts(target_acceptance=TARGET_ACCEPTANCE),
        num_chains=sizes.chains,
        num_warmup=sizes.warmup,
        num_samples=sizes.draws,
        seed=options.seed,
        mesh=mesh,
        matmul_precision=options.precision,
    )
    draws, rate = posterior.draws["w"], float(data.train_y.mean())
    scores = score_binary(draws, data.test_x, data.test_y, rate)
    numbers, words = headline(data, scores, draws)
    names = [name.replace("_", " ").lower() for name in data.columns]
    unseen = np.ptp(data.train_x, axis=0) == 0
    unseen[-1] = False  # the intercept is constant, too, but rows inform it
    ones = "lodgepole pine" if data.true_weights is None else "ones"
    figures = {
        "coefficients": intervals(draws, names, PANELS, unseen, data.true_weights),
        "reliability": reliability_figure(
            scores.calibration, f"fraction of {ones}", "predicted probability", "test rows"
        ),
    }
    finish(posterior, numbers, words, figures, options.out)
    return posterior


def load(options: DemoOptions) -> LabelledRows:
    """Return the real rows, or generated ones if they are missing and `--data` names no folder."""
    try:
        return covertype(options.data)
    except FileNotFoundError as error:
        if options.data is not None:
            raise
        STDOUT.say(f"The rows are generated, because real ones are missing. {error}")
        return generate_covertype()


def headline(
    data: LabelledRows, scores: BinaryScores, draws: Float[np.ndarray, "chain draw column"]
) -> tuple[dict[str, object], str]:
    """Return the main results, by name and in words; `draws` of the weights are `(chain, draw, columns)`."""
    numbers: dict[str, object] = {
        "data": data.name,
        "source": data.source,
        "test_accuracy": scores.accuracy,
        "test_accuracy_of_the_class_rate": scores.base_accuracy,
        "test_log_loss": scores.log_loss,
        "test_log_loss_of_the_class_rate": scores.base_log_loss,
        "expected_calibration_error": scores.calibration.error,
    }
    words = (
        f"test accuracy {scores.accuracy:.4f} ({scores.base_accuracy:.4f} by the class rate alone), log loss "
        f"{scores.log_loss:.4f} ({scores.base_log_loss:.4f}), expected calibration error {scores.calibration.error:.4f}"
    )
    if data.true_weights is not None:
        low, high = np.quantile(draws.reshape(-1, draws.shape[-1]), WIDE, axis=0)
        within = int(np.sum((low <= data.true_weights) & (data.true_weights <= high)))
        numbers["true_coefficients_within_94_percent_intervals"] = within
        words += f"; {within} of {len(low)} true coefficients within their 94% intervals"
    return numbers, words
