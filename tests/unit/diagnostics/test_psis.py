"""Importance weights whose tail is smoothed, against ArviZ."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from phalanx.diagnostics.psis import beyond_largest, smooth, threshold


def log_weights(ratio: float, seed: int, count: int = 4000) -> np.ndarray:
    """Log weights of a normal by one `ratio` times as wide: below 1 the tail has shape 1 - ratio**2."""
    x = ratio * np.random.default_rng(seed).normal(size=count)
    return -0.5 * x**2 + 0.5 * (x / ratio) ** 2 + np.log(ratio)


@pytest.mark.parametrize("ratio", [0.3, 0.7, 0.95, 1.5])
def test_as_in_arviz(ratio):
    arviz = pytest.importorskip("arviz")
    if not hasattr(arviz, "psislw"):
        pytest.skip("ArviZ 1.x has it elsewhere")
    given = log_weights(ratio, 0)
    expected, k_hat = arviz.psislw(given.copy(), reff=1.0)
    found = smooth(given)
    assert found.k_hat == pytest.approx(float(k_hat), abs=0.02)
    normalized = found.log_weights - np.logaddexp.reduce(found.log_weights)
    np.testing.assert_allclose(normalized, expected, atol=0.05)


def test_the_shape_is_that_of_the_tail():
    assert smooth(log_weights(0.9, 1)).k_hat == pytest.approx(1 - 0.81, abs=0.2)
    assert smooth(log_weights(0.4, 1)).k_hat == pytest.approx(1 - 0.16, abs=0.2)


def test_equal_weights_have_no_tail():
    noise = 1e-5 * np.random.default_rng(0).normal(size=1000)
    assert smooth(noise).k_hat == -np.inf and smooth(np.zeros(1000)).k_hat == -np.inf


def test_weights_with_a_ceiling_have_no_tail():
    """Most are equal but for the last digit of a float32, and some are small."""
    log = np.where(np.arange(4000) % 7 == 0, -2.0, 1e-7 * np.round(np.random.default_rng(0).normal(size=4000)))
    assert smooth(log).k_hat == -np.inf


def test_quantiles_beyond_all_numbers_are_cut_without_a_word():
    log = np.linspace(-20_000.0, 0.0, 4000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = smooth(log)
    assert found.k_hat > 1.0 and found.log_weights.max() == 0.0


def test_tails_that_cannot_be_smoothed_have_no_k_hat():
    assert smooth(np.full(1000, -np.inf)).k_hat == np.inf and smooth(np.arange(10.0)).k_hat == np.inf
    with pytest.raises(ValueError, match="NaN"):
        smooth(np.full(10, np.nan))


def test_more_draws_bear_heavier_tails():
    assert threshold(100) == pytest.approx(0.5) and threshold(10**6) == 0.7


def test_the_mean_beyond_the_largest_draws_is_that_of_each_row():
    random = np.random.default_rng(0)
    rows = np.stack([random.gamma(1.0, size=400), random.pareto(1.5, size=400), np.ones(400), np.full(400, np.inf)])
    beyond = beyond_largest(rows)
    np.testing.assert_allclose(beyond, [beyond_largest(row) for row in rows])
    assert 2 < beyond[0] < 12 < beyond[1]
    assert beyond[2:].tolist() == [0.0, np.inf]


def test_few_draws_have_no_tail_to_extrapolate():
    assert beyond_largest(np.ones(8)) == np.inf
