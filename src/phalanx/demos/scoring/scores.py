"""Scores of a posterior over softmax regressions on test images."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.diagnostics.calibration import Calibration, calibrate
from phalanx.posterior.posterior import Posterior

if TYPE_CHECKING:
    from jaxtyping import Float, Int

BATCH = 16
"""Draws per batch: probabilities of 10,000 images take 0.4 MB a draw."""


class ImageScores(NamedTuple):
    """Scores on test images, of single draws and of the Bayesian model average.

    Attributes:
        draw_accuracy: accuracy of each draw.
        running_accuracy: numbers of draws, and accuracies of the average of so many.
        accuracy: accuracy of the Bayesian model average, the mean over draws of the predictive probabilities.
        log_loss: mean negative log probability of the true class under the average, in nats.
        calibration: accuracy of the average, given its confidence.
    """

    draw_accuracy: np.ndarray
    running_accuracy: tuple[np.ndarray, np.ndarray]
    accuracy: float
    log_loss: float
    calibration: Calibration


def score(
    posterior: Posterior, images: Float[np.ndarray, "image pixel"], labels: Int[np.ndarray, "image"]
) -> ImageScores:
    """Score the draws `w` and `b` of a softmax regression on test images.

    Only sums over batches of draws are stored: the probabilities of all draws would not fit in memory.
    """
    weights, biases = (np.swapaxes(posterior.draws[n], 0, 1).reshape(-1, *posterior.draws[n].shape[2:]) for n in "wb")

    @jax.jit
    def probabilities(w: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        each = jax.nn.softmax(jnp.einsum("np,dpc->dnc", images, w) + b[:, None], axis=-1)
        return each.sum(0), jnp.mean(each.argmax(-1) == labels[None], axis=-1)

    total, accuracies, counts, running = np.zeros((len(labels), biases.shape[-1])), [], [], []
    for first in range(0, len(biases), BATCH):
        summed, accuracy = probabilities(weights[first : first + BATCH], biases[first : first + BATCH])
        total += np.asarray(summed)
        accuracies.append(np.asarray(accuracy))
        counts.append(min(first + BATCH, len(biases)))
        running.append(float(np.mean(total.argmax(-1) == labels)))
    return _scores(total / len(biases), labels, np.concatenate(accuracies), (np.array(counts), np.array(running)))


def _scores(
    mean: Float[np.ndarray, "image class"],
    labels: Int[np.ndarray, "image"],
    accuracies: Float[np.ndarray, "draw"],
    running: tuple[np.ndarray, np.ndarray],
) -> ImageScores:
    hits = mean.argmax(-1) == labels
    return ImageScores(
        accuracies,
        running,
        float(hits.mean()),
        float(-np.mean(np.log(mean[np.arange(len(labels)), labels] + 1e-30))),
        calibrate(mean.max(-1), hits),
    )
