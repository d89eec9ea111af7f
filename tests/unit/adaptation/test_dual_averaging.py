"""Dual averaging against an acceptance rate that is a known function of the step size."""

from __future__ import annotations

import math

import numpy as np
import pytest

from phalanx.adaptation import dual_averaging


def tuned(initial, target, updates, noise=0.0):
    """The step size after tuning where steps of size e are accepted with probability exp(-e), plus noise."""
    random, state = np.random.default_rng(0), dual_averaging.start(np.log(initial))
    for number in range(updates):
        if number == updates // 2:  # as at the end of a window
            state = dual_averaging.start(np.log(state.averaged))
        rate = math.exp(-state.step_size) + noise * random.normal()
        state = dual_averaging.update(state, min(max(rate, 0.0), 1.0), target)
    return state


@pytest.mark.parametrize("initial", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("target", [0.234, 0.8])
def test_it_finds_the_step_size_of_the_target(initial, target):
    assert abs(np.exp(-tuned(initial, target, 300).averaged) - target) < 0.03


def test_it_finds_it_under_noise():
    assert abs(np.exp(-tuned(0.1, 0.8, 1000, noise=0.2).averaged) - 0.8) < 0.08


def test_an_acceptance_rate_that_is_not_a_number_counts_as_none():
    state = dual_averaging.start(np.log(0.1))
    assert dual_averaging.update(state, math.nan, 0.8) == dual_averaging.update(state, 0.0, 0.8)
