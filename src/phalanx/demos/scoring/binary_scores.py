"""How good the predictions of a posterior over logistic regressions are, and what the class rate alone would give."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from phalanx.diagnostics.calibration import Calibration, calibrate

BATCH = 32
"""Draws scored at a time: logits of 58,101 rows take 0.2 MB a draw."""


class BinaryScores(NamedTuple):
    """Scores of the Bayesian model average, the mean over draws of the predicted probability, on test rows.

    Attributes:
        accuracy: the share of rows whose more probable label is the true one.
        log_loss: mean negative log probability of the true label, in nats.
        base_accuracy, base_log_loss: the same of predicting the rate of ones in training for every row.
        calibration: how often the label is one, given its probability.
    """

    accuracy: float
    log_loss: float
    base_accuracy: float
    base_log_loss: float
    calibration: Calibration


def score_binary(weights: np.ndarray, x: np.ndarray, y: np.ndarray, rate: float) -> BinaryScores:
    """Score draws of the weights of a logistic regression.

    Args:
        weights: shape `(chain, draw, columns)`.
        x: test rows, shape `(rows, columns)`.
        y: their labels 0 and 1, shape `(rows,)`.
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


def _accuracy(probability: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean((probability > 0.5) == (y == 1)))


def _log_loss(probability: np.ndarray, y: np.ndarray) -> float:
    return float(-np.mean(np.log(np.where(y == 1, probability, 1 - probability) + 1e-30)))
