"""Scores of predicted probabilities on hidden entries of a binary matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.diagnostics.calibration import Calibration, calibrate
from phalanx.extras import require

if TYPE_CHECKING:
    from jaxtyping import Shaped


class HiddenEntryScores(NamedTuple):
    """Scores of predicted probabilities on hidden entries.

    Attributes:
        auc: probability that a one has a higher prediction than a zero.
        log_loss: mean negative log probability of the truth, in nats.
        calibration: frequency of ones, given their predicted probability.
    """

    auc: float
    log_loss: float
    calibration: Calibration


def score_held_out(
    truth: Shaped[np.ndarray, "..."], probabilities: Mapping[str, np.ndarray]
) -> dict[str, HiddenEntryScores]:
    """Score several predictions of the same entries, by name; arrays have any shape."""
    metrics = require("sklearn.metrics")
    y, found = truth.ravel(), {}
    for name, values in probabilities.items():
        p = np.clip(values.ravel().astype(np.float64), 1e-7, 1 - 1e-7)
        found[name] = HiddenEntryScores(
            float(metrics.roc_auc_score(y, p)), float(metrics.log_loss(y, p)), calibrate(p, y)
        )
    return found
