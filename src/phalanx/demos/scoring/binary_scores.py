"""Scores of a posterior over logistic regressions on test rows, beside those of the class rate alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from phalanx.diagnostics.calibration import Calibration, calibrate

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

BATCH = 32
"""Draws per batch: logits of 58,101 rows take 0.2 MB a draw."""


class BinaryScores(NamedTuple):
    """Scores of the Bayesian model average, the mean over draws of the predicted probability, on test rows.

    Attributes:
        accuracy: the share of rows whose more probable label is the true one.
        log_loss: mean negative log probability of the true label, in nats.
        base_accuracy, base_log_loss: scores of a prediction that is the rate of ones in training for every row.
        calibration: frequency of ones, given their predicted probability.
    """

    accuracy: float
    log_loss: float
    base_accuracy: float
    base_log_loss: float
    calibration: Calibration


def score_binary(
    weights: Float[np.ndarray, "chain draw column"],
    x: Float[np.ndarray, "row column"],
    y: Shaped[np.ndarray, "row"],
    rate: float,
) -> BinaryScores:
    """Score draws of the weights of a logistic regression.

    Args:
        weights: draws of the weights.
        x: test rows.
        y: their labels 0 and 1.
        rate: the rate of ones in training.

    Returns:
        The scores.
    """
    flat = weights.reshape(-1, weights.shape[-1])
    summed = jax.jit(lambda x, w: jax.nn.sigmoid(x @ w.T).sum(1))
    total = np.zeros(len(y))
    for first in range(0, len(flat), BATCH):
        total += np.asarray(summed(x, flat[first : first + BATCH]))
    mean = total / len(flat)
    base = np.full(len(y), rate)
    return BinaryScores(
        _accuracy(mean, y), _log_loss(mean, y), _accuracy(base, y), _log_loss(base, y), calibrate(mean, y)
    )  # fmt: skip


def _accuracy(probability: Float[np.ndarray, "row"], y: Shaped[np.ndarray, "row"]) -> float:
    return float(np.mean((probability > 0.5) == (y == 1)))


def _log_loss(probability: Float[np.ndarray, "row"], y: Shaped[np.ndarray, "row"]) -> float:
    return float(-np.mean(np.log(np.where(y == 1, probability, 1 - probability) + 1e-30)))
