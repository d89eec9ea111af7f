"""Dual averaging against an acceptance rate that is a known function of the step size."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.adaptation import dual_averaging


def tuned(initial, target, steps, noise=0.0, key=0):
    """The step size after tuning where steps of size e are accepted with probability exp(-e), plus noise."""

    def iteration(carry, i):
        state, step_size = carry
        rate = jnp.exp(-step_size) + noise * jax.random.normal(jax.random.fold_in(jax.random.key(key), i))
        return dual_averaging.tune(state, jnp.clip(rate, 0.0, 1.0), target, i, jnp.int32(steps)), None

    start = (dual_averaging.start(jnp.float32(initial)), jnp.float32(initial))
    (state, step_size), _ = jax.lax.scan(iteration, start, jnp.arange(1, steps + 1))
    return float(step_size), state


@pytest.mark.parametrize("initial", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("target", [0.234, 0.8])
def test_it_finds_the_step_size_of_the_target(initial, target):
    found, _ = tuned(initial, target, 300)
    assert abs(np.exp(-found) - target) < 0.03


def test_it_finds_it_under_noise():
    found, _ = tuned(0.1, 0.8, 1000, noise=0.2)
    assert abs(np.exp(-found) - 0.8) < 0.08


def test_after_the_last_tuned_iteration_the_averaged_step_size_stays():
    _, state = tuned(0.1, 0.8, 50)
    for i in (51, 52, 90):
        after, step_size = dual_averaging.tune(state, jnp.float32(0.0), 0.8, jnp.int32(i), jnp.int32(50))
        assert after == state and step_size == jnp.exp(state.log_averaged)


def test_an_acceptance_rate_that_is_not_a_number_counts_as_none():
    state = dual_averaging.start(jnp.float32(0.1))
    with_nan = dual_averaging.update(state, jnp.float32(jnp.nan), 0.8)
    assert with_nan == dual_averaging.update(state, jnp.float32(0.0), 0.8)
