"""The reliability diagram shows what the calibration says."""

from __future__ import annotations

import numpy as np

from phalanx.diagnostics.calibration import calibrate
from phalanx.report import reliability_figure


def test_points_and_shares_are_those_of_the_calibration():
    rng = np.random.default_rng(0)
    probability = rng.uniform(0.5, 1.0, 1000)
    calibration = calibrate(probability, rng.random(1000) < probability)
    figure = reliability_figure(calibration, rows="tests")
    above, below = figure.axes
    shown = calibration.share > 0
    np.testing.assert_allclose(
        np.asarray(above.lines[1].get_xydata()), np.stack([calibration.probability, calibration.frequency], 1)[shown]
    )
    np.testing.assert_allclose([bar.get_height() for bar in below.patches], calibration.share)  # pyright: ignore[reportAttributeAccessIssue]  # bars are rectangles
    assert f"{calibration.error:.3f}" in above.get_title(loc="left") + above.get_title()
