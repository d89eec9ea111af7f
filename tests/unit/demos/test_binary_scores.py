"""Scores of logistic regressions, against sums in float64."""

from __future__ import annotations

import numpy as np
import pytest

from phalanx.demos.scoring.binary_scores import BATCH, score_binary


def test_the_mean_over_draws_is_scored():
    random = np.random.default_rng(0)
    weights = random.normal(size=(2, BATCH, 3)).astype(np.float32)  # two batches
    weights = weights[:, :-1]  # the last one not full
    x, y = random.normal(size=(50, 3)).astype(np.float32), random.integers(0, 2, 50)
    mean = (1 / (1 + np.exp(-np.einsum("nk,cdk->cdn", x, weights)))).mean((0, 1))
    scores = score_binary(weights, x, y, rate=0.25)
    assert scores.accuracy == np.mean((mean > 0.5) == y)
    assert scores.log_loss == pytest.approx(-np.mean(np.log(np.where(y, mean, 1 - mean))), rel=1e-5)
    assert scores.base_accuracy == np.mean(y == 0)
    assert scores.base_log_loss == pytest.approx(-np.mean(np.log(np.where(y, 0.25, 0.75))))
    assert scores.calibration.share.sum() == pytest.approx(1)
