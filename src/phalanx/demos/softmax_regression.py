"""Bayesian softmax regression on images, for two demos: rows sharded over `data`, chains over `chain`."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array

from phalanx.datasets import Classification
from phalanx.demos.options import DemoOptions, Sizes, mesh_with
from phalanx.demos.pictures import softmax as pictures
from phalanx.demos.scoring.scores import score
from phalanx.demos.show import finish, introduce
from phalanx.distributions.blocked import blocked
from phalanx.inputs.placement import shard
from phalanx.kernels.protocol.kernel import Kernel
from phalanx.language.tracing import sample
from phalanx.posterior.posterior import Posterior
from phalanx.report import reliability_figure
from phalanx.run.mcmc import mcmc

MATHEMATICS = """
    w ~ Normal(0, 1)                  [{pixels}, 10]
    b ~ Normal(0, 1)                  [10]
    y ~ Categorical(logits = x w + b)  for each of {rows:,} images x
"""


def model(x: Array, y: Array) -> None:
    """Model classes `y` by a softmax regression on `x` (images, pixels), from 0 to 1 or bytes."""
    w = sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1], 10]))
    b = sample("b", dist.Normal(0.0, 1.0).expand([10]))
    scaled = w / 255 if x.dtype == jnp.uint8 else w  # scales the weights once instead of every pixel

    def rows(x: Array) -> dist.Distribution:
        return dist.CategoricalLogits(x.astype(w.dtype) @ scaled + b[None])

    sample("y", blocked(rows, x), obs=y)


def run(data: Classification, kernel: Kernel, sizes: Sizes, data_shards: int, options: DemoOptions) -> Posterior:
    """Sample the posterior, score it on the test images, and write report and pictures to `options.out`."""
    images, test_images = _flat(data.train_images), _from_zero_to_one(_flat(data.test_images))
    mesh = mesh_with(data_shards)
    mathematics = MATHEMATICS.format(pixels=images.shape[1], rows=len(images))
    introduce(f"Bayesian softmax regression on {data.name}", mathematics, f"{data.source}; {data.licence}")
    posterior = mcmc(
        model,
        shard({"x": images, "y": data.train_labels}, mesh),
        kernel=kernel,
        num_chains=sizes.chains,
        num_warmup=sizes.warmup,
        num_samples=sizes.draws,
        seed=options.seed,
        mesh=mesh,
        matmul_precision=options.precision,
    )
    scores = score(posterior, test_images, data.test_labels)
    mean = float(scores.draw_accuracy.mean())
    headline = {
        "data": data.name,
        "test_accuracy_mean_over_draws": mean,
        "test_accuracy_bayesian_model_average": scores.accuracy,
        "test_log_loss_bayesian_model_average": scores.log_loss,
        "expected_calibration_error": scores.calibration.error,
    }
    words = (
        f"test accuracy {mean:.4f} averaged over draws, {scores.accuracy:.4f} of the Bayesian model average "
        f"({100 * (scores.accuracy - mean):+.2f} points); log loss {scores.log_loss:.4f}, "
        f"expected calibration error {scores.calibration.error:.4f}"
    )
    figures = {
        "reliability": reliability_figure(
            scores.calibration, "accuracy", "confidence of the Bayesian model average", "images"
        ),
        "accuracy": pictures.accuracy(scores),
        "weights": pictures.weights(posterior, data.train_images.shape[1]),
    }
    finish(posterior, headline, words, figures, options.out)
    return posterior


def _flat(images: np.ndarray) -> np.ndarray:
    """Return images as rows of pixels."""
    return images.reshape(len(images), -1)


def _from_zero_to_one(pixels: np.ndarray) -> np.ndarray:
    return (pixels / 255).astype(np.float32) if pixels.dtype == np.uint8 else pixels
