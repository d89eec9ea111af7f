"""Likelihoods of pixels: probabilities that add up to one, and are those that draws have."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import phalanx as phx
from phalanx.flows import QuantizedLogistic, QuantizedLogisticMixture, QuantizedNormal

KINDS = {QuantizedLogistic: stats.logistic, QuantizedNormal: stats.norm}
LEVELS = np.arange(256)
locs, scales = st.floats(-100.0, 400.0, width=32), st.floats(0.015625, 1e5, width=32)


def exact(kind, loc, scale):
    """Log probabilities in float64, from whichever tail has the digits."""
    upper, lower = (LEVELS + 0.5 - loc) / scale, (LEVELS - 0.5 - loc) / scale
    upper[-1], lower[0] = np.inf, -np.inf
    flip = lower + upper > 0
    flip[[0, -1]] = [False, True]
    high, low = np.where(flip, -lower, upper), np.where(flip, -upper, lower)
    a, b = kind.logcdf(high), kind.logcdf(low)
    with np.errstate(divide="ignore", invalid="ignore"):
        return a + np.log(-np.expm1(b - a))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8, deadline=None)
@given(locs, scales)
def test_probabilities_are_exact_and_add_up_to_one(kind, loc, scale):
    found = np.asarray(kind(loc, scale).log_prob(LEVELS), float)
    expected = exact(KINDS[kind], loc, scale)
    known = np.isfinite(expected)
    np.testing.assert_allclose(found[known], expected[known], rtol=2e-4, atol=2e-3)
    assert np.exp(found).sum() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(locs, scales, st.floats(-5.0, 5.0)), min_size=1, max_size=4))
def test_a_mixture_adds_up_to_one(parts):
    loc, scale, logits = jnp.array(parts).T
    mixture = QuantizedLogisticMixture(logits, loc, scale)
    assert mixture.batch_shape == () and jnp.exp(mixture.log_prob(LEVELS)).sum() == pytest.approx(1.0, abs=1e-3)


MIXTURE = QuantizedLogisticMixture(jnp.array([0.0, 1.0]), jnp.array([20.0, 250.0]), jnp.array([3.0, 5.0]))


@pytest.mark.parametrize(
    "likelihood",
    [
        pytest.param(QuantizedLogistic(250.0, 6.0), marks=pytest.mark.slow),
        QuantizedNormal(250.0, 6.0),
        pytest.param(MIXTURE, marks=pytest.mark.slow),
    ],
)
def test_draws_have_these_probabilities(likelihood):
    """Chi-squared at a rate of false alarms of 1e-4."""
    draws = np.asarray(likelihood.sample(jax.random.key(1), (20_000,)))
    assert draws.min() >= 0 and draws.max() == 255 and np.issubdtype(draws.dtype, np.integer)
    expected = 20_000 * np.exp(np.asarray(likelihood.log_prob(LEVELS), float))
    cells = expected > 10
    observed = np.bincount(draws, minlength=256)[cells]
    statistic = ((observed - expected[cells]) ** 2 / expected[cells]).sum()
    assert statistic < stats.chi2.ppf(1 - 1e-4, cells.sum())


@pytest.mark.parametrize("kind", KINDS)
def test_extreme_parameters_give_finite_gradients(kind):
    locs, scales = (jnp.array(part, jnp.float32) for part in ([-1e6, 0.0, 255.0, 1e6], [1e-3, 1.0, 1e6]))

    @jax.jit
    def found_of(locs, scales):
        def total(loc, log_scale):
            return kind(loc, jnp.exp(log_scale)).log_prob(LEVELS).sum()

        of_each = jax.vmap(jax.vmap(jax.value_and_grad(total, (0, 1)), (None, 0)), (0, None))
        return of_each(locs, jnp.log(scales))

    value, gradients = found_of(locs, scales)
    assert value.shape == (4, 3) and all(jnp.isfinite(part).all() for part in (value, *gradients))


@pytest.mark.slow
def test_it_is_a_likelihood_of_a_model():
    def model(y):
        level = phx.sample("level", dist.Normal(100.0, 50.0))
        phx.sample("y", QuantizedLogistic(level, 5.0).expand([len(y)]), obs=y)

    fit = phx.fit(model, phx.guides.laplace(), {"y": np.full(20, 120)}, progress=False)
    assert fit.params["loc"][0] == pytest.approx(120.0, abs=0.2)


@pytest.mark.slow
def test_parameters_are_checked_and_broadcast():
    with pytest.raises(ValueError, match="scale"):
        QuantizedNormal(0.0, -1.0, validate_args=True)
    mixture = QuantizedLogisticMixture(jnp.zeros(3), jnp.zeros((2, 1)), jnp.ones(1))
    assert mixture.batch_shape == (2,) and mixture.sample(jax.random.key(0), (4,)).shape == (4, 2)
    assert mixture.log_prob(mixture.sample(jax.random.key(0), (4,))).shape == (4, 2)


def test_values_that_are_no_pixels_are_impossible():
    found = QuantizedLogistic(100.0, 10.0).log_prob(jnp.array([-1.0, 256.0, 99.5, jnp.nan, 0.0, 255.0]))
    np.testing.assert_array_equal(np.isfinite(found), [False, False, False, False, True, True])
    assert not np.isnan(found).any()


def test_bells_may_be_at_whole_numbers():
    for kind in (phx.flows.QuantizedLogistic, phx.flows.QuantizedNormal):
        draws = kind(np.full(4, 128), 20).sample(jax.random.key(0), (500,))
        assert draws.shape == (500, 4) and abs(float(draws.mean()) - 128) < 6.0  # nearly eight standard errors
