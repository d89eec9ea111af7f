"""How good the predictions of a posterior over classifiers are."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.diagnostics.calibration import Calibration, calibrate
from phalanx.posterior.posterior import Posterior

BATCH = 16
"""Draws scored at a time: probabilities of 10,000 images take 0.4 MB a draw."""


class Scores(NamedTuple):
    """Scores on test images.

    Attributes:
        draw_accuracy: accuracy of each draw.
        running_accuracy: accuracy of the Bayesian model average as draws are added; counts of draws, and accuracies.
        accuracy: accuracy of the Bayesian model average, the mean over draws of the predictive probabilities.
        log_loss: its mean negative log probability of the true class, in nats.
        calibration: its accuracy, given its confidence.
    """

    draw_accuracy: np.ndarray
    running_accuracy: tuple[np.ndarray, np.ndarray]
    accuracy: float
    log_loss: float
    calibration: Calibration


def score(posterior: Posterior, images: np.ndarray, labels: np.ndarray) -> Scores:
    """Score softmax-regression draws `w` and `b` on `images` (n, pixels) with `labels` (n,).

    Draws are scored a few at a time and only sums are kept: the probabilities of all draws would not fit in memory.
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
    mean: np.ndarray, labels: np.ndarray, accuracies: np.ndarray, running: tuple[np.ndarray, np.ndarray]
) -> Scores:
    hits = mean.argmax(-1) == labels
    return Scores(
        accuracies,
        running,
        float(hits.mean()),
        float(-np.mean(np.log(mean[np.arange(len(labels)), labels] + 1e-30))),
        calibrate(mean.max(-1), hits),
    )
