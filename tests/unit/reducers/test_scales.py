"""Reducers of draws of any size: in float32 the squares of 1e20 and of 1e-30 are infinite and zero."""

from __future__ import annotations

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.slow import with_slow

import phalanx as phx
from phalanx.reducers.effective_size import effective_size

R = phx.reducers
DRAWS, CHAINS, LAGS = 160, 3, 2
SQUARING = {
    "moments": R.moments(),
    "covariance": R.covariance(),
    "rhat": R.rhat(),
    "ess": R.ess(),
    "autocovariance": R.autocovariance(LAGS),
}


@partial(jax.jit, static_argnums=0)
def state_of(name, x, where):
    first = SQUARING[name].init(x[0])
    return jax.lax.scan(lambda state, pair: (SQUARING[name].update(state, *pair), None), first, (x, where))[0]


def result(name, x, cut):
    """Return the result of draws `(draw, chain, element)` in two batches of one compiled length."""
    reducer, number = SQUARING[name], np.arange(DRAWS)[:, None] + np.zeros((1, CHAINS), int)
    batches = [jax.device_get(state_of(name, x, where)) for where in (number < cut, number >= cut)]
    return reducer.finalize(reducer.merge(*batches))


def exact(name, x):
    x = np.asarray(x).astype(np.float64)
    away = x - x.mean((0, 1))
    if name == "moments":
        return x.mean((0, 1)), x.var((0, 1), ddof=1)
    if name == "covariance":
        return x.mean((0, 1)), np.cov(x.reshape(-1, x.shape[2]).T)
    if name == "rhat":
        with np.errstate(invalid="ignore", divide="ignore"):  # chains that never move
            return np.sqrt((len(x) - 1) / len(x) + x.mean(0).var(0, ddof=1) / x.var(0, ddof=1).mean(0))
    if name == "ess":
        with np.errstate(invalid="ignore", divide="ignore"):  # elements that never change
            size = effective_size(np.moveaxis(x, 0, 2).swapaxes(0, 1))
        return np.where(np.ptp(x, axis=(0, 1)) > 0, size, np.nan)
    return np.stack([(away[: len(x) - k] * away[k:]).sum((0, 1)) / x[..., 0].size for k in range(LAGS + 1)])


def check(name, x, cut):
    """Compare with float64, in units of the standard deviations."""
    found, wanted = result(name, x, cut), exact(name, x)
    deviation = np.asarray(x).astype(np.float64).std((0, 1))
    rounding = 1e-12 * np.abs(np.asarray(x).astype(np.float64)).max((0, 1))
    tolerance = 2e-6 * deviation + rounding
    if name in ("moments", "covariance"):
        assert (np.abs(found[1] - wanted[0]) <= tolerance).all()
        square = (
            np.outer(tolerance, deviation + rounding) if name == "covariance" else tolerance * (deviation + rounding)
        )
        assert (np.abs(found[2] - wanted[1]) <= square).all(), (found[2], wanted[1])
    elif name == "autocovariance":
        assert (np.abs(found - wanted) <= tolerance * (deviation + rounding)).all()
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-4)


SIZES = [1e-31, 1e-25, 1e-20, 1e-12, 1.0, 1e13, 1e20, 1e30, 5e37]


@pytest.mark.parametrize(
    "kind, name", with_slow([*product(["float32", "bfloat16"], SQUARING)], {("bfloat16", "moments")})
)
def test_draws_of_every_size(name, kind):
    z = np.random.default_rng(0).normal(size=(DRAWS, CHAINS, len(SIZES))).clip(-3, 3)
    check(name, jnp.asarray(z * SIZES, kind), 60)


@st.composite
def growing(draw):
    """Draws whose size changes by orders of magnitude from element to element, chain to chain and draw to draw."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    z = random.normal(size=(DRAWS, CHAINS, 3)).clip(-4, 4)
    by_element = random.uniform(-100, 115, 3)
    by_chain = random.uniform(-20, 20, (CHAINS, 1)) * draw(st.booleans())
    by_draw = np.linspace(-30, 30, DRAWS)[:, None, None] * draw(st.sampled_from([-1, 0, 0, 1]))
    size = np.exp2((by_element + by_chain + by_draw).clip(-105, 122))
    z = (z + draw(st.sampled_from([0.0, 0.0, 1.0, -1e3]))).clip(-20, 20) * size
    if draw(st.booleans()):
        z[: draw(st.integers(1, 40))] = z[0]  # chains that stay where they begin
    if draw(st.booleans()):
        z[draw(st.integers(0, DRAWS - 1)), draw(st.integers(0, CHAINS - 1))] = draw(
            st.sampled_from([1e37, -3e38, 1e-37])
        )
    return z.astype(np.float32), draw(st.integers(2, DRAWS - 2))


@pytest.mark.parametrize("name", SQUARING)
@settings(max_examples=20, deadline=None)
@given(run=growing())
def test_draws_whose_size_changes(name, run):
    check(name, *run)


@pytest.mark.parametrize("name", SQUARING)
@settings(max_examples=8, deadline=None)
@given(power=st.integers(-70, 110), cut=st.integers(1, DRAWS - 1))
def test_a_power_of_two_changes_no_digit(name, power, cut):
    z = np.random.default_rng(0).normal(size=(DRAWS, CHAINS, 2)).astype(np.float32)
    found, wanted = result(name, np.ldexp(z, power), cut), result(name, z, cut)
    powers = {"moments": (0, 1, 2), "covariance": (0, 1, 2), "autocovariance": 2}.get(name, 0)
    for a, b, exponent in zip(*map(jax.tree.leaves, (found, wanted, powers)), strict=True):
        np.testing.assert_array_equal(a, np.ldexp(np.asarray(b, float), power * exponent))


def test_draws_that_are_not_finite_have_no_moments():
    x = np.random.default_rng(0).normal(size=(DRAWS, CHAINS, 4)).astype(np.float32)
    x[0, 0, 0] = x[50, 1, 1] = np.inf
    x[100, 2, 2] = np.nan
    for name in ("moments", "covariance"):
        variance = result(name, x, 60)[2]
        variance = variance.diagonal() if name == "covariance" else variance
        np.testing.assert_array_equal(np.isnan(variance), [True, True, True, False])


@pytest.mark.parametrize("size", [1e-37, 1e-20, 1e20, 1e38])
def test_histograms_of_every_size(size):
    reducer = R.histogram(np.array([-1.0, -1e-3, 1e-3, 1.0]) * size)
    x = np.array([-2.0, -0.5, 0.0, 0.0, 0.5, 1.5, 2.0, 2.0], np.float32)[:, None] * np.float32(size)
    state = reducer.update(reducer.init(jnp.asarray(x)), jnp.asarray(x), jnp.ones(len(x), bool))
    found = reducer.finalize(jax.device_get(state))
    np.testing.assert_array_equal(found.counts, [[1, 2, 1]])
    np.testing.assert_array_equal((found.below, found.above), [[1], [3]])
