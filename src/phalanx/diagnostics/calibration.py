"""Calibration of predicted probabilities: comparison with the frequencies of the events."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

BINS = 10


class Calibration(NamedTuple):
    """Predictions sorted into bins by their probability.

    Attributes:
        probability: mean predicted probability in each bin; 0 in an empty one.
        frequency: the fraction of them that came true.
        share: fraction of all predictions in each bin.
        error: expected calibration error: |frequency - probability|, averaged over predictions.
    """

    probability: np.ndarray
    frequency: np.ndarray
    share: np.ndarray
    error: float


def calibrate(probability: Float[np.ndarray, "n"], came_true: Shaped[np.ndarray, "n"]) -> Calibration:
    """Compare predicted probabilities `(n,)` with outcomes `(n,)`.

    Source: M. P. Naeini, G. F. Cooper, M. Hauskrecht (2015), Obtaining well calibrated probabilities using Bayesian
    binning.
    """
    which = np.minimum((probability * BINS).astype(int), BINS - 1)
    count = np.bincount(which, minlength=BINS)
    divisor = np.maximum(count, 1)
    mean = np.bincount(which, probability, minlength=BINS) / divisor
    frequency = np.bincount(which, came_true, minlength=BINS) / divisor
    share = count / len(probability)
    return Calibration(mean, frequency, share, float(np.sum(share * np.abs(frequency - mean))))
