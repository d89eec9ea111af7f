"""Calibration: what is predicted with some probability, against how often it comes true."""

from __future__ import annotations

import numpy as np
import pytest

from phalanx.diagnostics.calibration import calibrate


def test_bins_by_hand():
    found = calibrate(np.array([0.0, 0.04, 0.96, 1.0, 0.55]), np.array([0, 1, 1, 1, 0]))
    np.testing.assert_allclose(found.share, [0.4, 0, 0, 0, 0, 0.2, 0, 0, 0, 0.4])
    np.testing.assert_allclose(found.probability[[0, 5, 9]], [0.02, 0.55, 0.98])
    np.testing.assert_allclose(found.frequency[[0, 5, 9]], [0.5, 0.0, 1.0])
    assert found.error == pytest.approx(0.4 * 0.48 + 0.2 * 0.55 + 0.4 * 0.02)


def test_right_probabilities_are_calibrated_and_wrong_ones_are_not():
    random = np.random.default_rng(0)
    probability = random.uniform(size=100_000)
    came_true = random.uniform(size=100_000) < probability
    # Ten bins of 10,000 with a standard error below 0.005 each: their mean deviation exceeds 0.012 once in a million.
    assert calibrate(probability, came_true).error < 0.012
    assert calibrate(probability**3, came_true).error > 0.2
