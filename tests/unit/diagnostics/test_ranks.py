"""Ranks of true values: even where draws are right, but for the false alarms that are declared; else named."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from phalanx.diagnostics.ranks import FALSE_ALARM, Ranks, rank_of

L = 63


def ranks(generator, shift=0.0, scale=1.0, simulations=200, elements=3):
    """Return ranks of true values that are standard normal, among normal draws."""
    truth = generator.normal(size=(simulations, elements))
    draws = shift + scale * generator.normal(size=(simulations, L, elements))
    return Ranks({"x": np.stack([rank_of(t, d, generator) for t, d in zip(truth, draws, strict=True)])}, L)


@pytest.mark.parametrize("tries", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_right_method_is_found_fault_with_as_rarely_as_is_said(tries):
    generator = np.random.default_rng(0)
    alarms = sum(not ranks(generator).verdict().good for _ in range(tries))
    # more than this happens once in 10,000 times
    assert alarms <= stats.binom.ppf(1 - 1e-4, tries, FALSE_ALARM)


@pytest.mark.parametrize(
    "shift, scale, words",
    [(0.5, 1.0, "too high"), (-0.5, 1.0, "too low"), (0.0, 0.6, "too narrow"), (0.0, 2.0, "too wide")],
)
def test_problems_are_named(shift, scale, words):
    found = ranks(np.random.default_rng(1), shift, scale)
    verdict = found.verdict()
    assert not verdict.good and f"draws are {words}" in str(verdict) and "x[0]" in str(verdict)
    assert (found.summary()["p_value"].to_numpy() < 1e-3).all()


def test_bins_are_of_equal_width_and_hold_enough():
    found = ranks(np.random.default_rng(2), simulations=100)
    assert found.histogram("x[1]").shape == (8,) and found.histogram("x[1]").sum() == 100
    assert ranks(np.random.default_rng(2), simulations=5).histogram("x[0]").tolist() == [5]


def test_equal_values_are_placed_at_random():
    generator = np.random.default_rng(3)
    found = [int(rank_of(np.zeros(()), np.zeros(L), generator)) for _ in range(2000)]
    assert stats.chisquare(np.bincount(found, minlength=L + 1)).pvalue > 1e-4
