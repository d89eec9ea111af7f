"""The windows of warm-up."""

from __future__ import annotations

import pytest

from phalanx.adaptation.tuner import LAST_LEAST
from phalanx.adaptation.warm_up import windows


@pytest.mark.parametrize("learns_metric", [True, False])
@pytest.mark.parametrize("n", [0, 1, 19, 21, 30, 100, 200, 499, 500, 1000, 10000])
def test_windows_add_up(n, learns_metric):
    lengths = windows(n, learns_metric)
    assert sum(lengths) == n and all(length > 0 for length in lengths)
    if learns_metric and n > 100:
        assert lengths[-1] >= LAST_LEAST and lengths[-2] >= 0.3 * n  # the metric in use has many draws
