"""How well probabilities tell hidden ones from hidden zeros."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from phalanx.diagnostics.calibration import Calibration, calibrate
from phalanx.extras import require


class HeldOut(NamedTuple):
    """Scores of probabilities on entries that were hidden.

    Attributes:
        auc: the probability that a one is given more than a zero.
        log_loss: mean negative log probability of the truth, in nats.
        calibration: how often an entry is one, given its probability.
    """

    auc: float
    log_loss: float
    calibration: Calibration


def score_held_out(truth: np.ndarray, probabilities: Mapping[str, np.ndarray]) -> dict[str, HeldOut]:
    """Score several ways of predicting the same entries, of any shape."""
    metrics = require("sklearn.metrics")
    y, found = truth.ravel(), {}
    for name, values in probabilities.items():
        p = np.clip(values.ravel().astype(np.float64), 1e-7, 1 - 1e-7)
        found[name] = HeldOut(float(metrics.roc_auc_score(y, p)), float(metrics.log_loss(y, p)), calibrate(p, y))
    return found
