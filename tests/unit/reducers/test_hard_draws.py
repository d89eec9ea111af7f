"""Reducers of draws of every type, order and offset, held to the errors they state."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.slow import with_slow

import phalanx as phx
from phalanx.reducers.effective_size import effective_size

R = phx.reducers
N = 4000


@partial(jax.jit, static_argnums=0)  # reducers of the same settings are equal: each is compiled once for a shape
def all_of(reducer, x):
    first = reducer.init(x[0])
    return jax.lax.scan(lambda s, d: (reducer.update(s, d, jnp.ones(len(d), bool)), None), first, x)[0]


def accumulate(reducer, x):
    return jax.tree.map(np.asarray, all_of(reducer, jnp.asarray(x)))


def halves(reducer, x, at=1234):
    return reducer.finalize(reducer.merge(accumulate(reducer, x[:at]), accumulate(reducer, x[at:])))


def hard(name):
    z = np.random.default_rng(0).normal(size=(N, 2)).astype(np.float32)
    number = np.arange(N)[:, None]
    return {
        "outlier first": np.where(number == 0, 1e5, z).astype(np.float32),
        "outlier last": np.where(number == N - 1, 1e5, z).astype(np.float32),
        "sorted": np.sort(1e4 * z, axis=0),
        "far": (1e8 + 100 * z).astype(np.float32),
        "two places": (z + 1e6 * (number > N // 2)).astype(np.float32),
        "to and fro": (z + 1e6 * (-1.0) ** number).astype(np.float32),
        "far and whole": (1e8 + np.round(3 * z)).astype(np.int32),
        "all whole numbers": np.random.default_rng(1).integers(-(2**31), 2**31 - 1, (N, 2), np.int32),
        "bool": z > 1.5,
        "bfloat16": jnp.asarray(3 + z, jnp.bfloat16),
        "float16": (100 * z).astype(np.float16),
    }[name]


@pytest.mark.parametrize(
    "name",
    with_slow(
        ["outlier first", "outlier last", "sorted", "far", "two places", "to and fro", "far and whole",
         "all whole numbers", "bool", "bfloat16", "float16"],
        {"outlier first", "far and whole", "bool", "bfloat16", "float16"},
    ),
)  # fmt: skip
def test_moments_within_their_stated_error(name):
    x = hard(name)
    exact = np.asarray(x).astype(np.float64)
    variance = exact.var(ddof=1)
    for found in (R.moments().finalize(accumulate(R.moments(), x)), halves(R.moments(), x)):
        assert abs(found.variance / variance - 1) < 1e-6
        assert abs(found.mean - exact.mean()) < 1e-6 * np.sqrt(variance)
    assert abs(halves(R.covariance(), x).covariance[0, 0] / variance - 1) < 1e-6
    away = exact - exact.mean()
    lagged = [(away[: N - k] * away[k:]).sum() / away.size for k in range(3)]
    np.testing.assert_allclose(halves(R.autocovariance(2), x), lagged, atol=1e-6 * variance)


@pytest.mark.parametrize("kind", ["int32", "bool", "float32", "bfloat16"])
def test_histograms_compare_draws_with_edges_as_they_are(kind):
    edges = [-0.5, 0.3, 0.5, 0.7, 1.5]
    x = np.asarray(jnp.asarray(np.random.default_rng(0).integers(-2, 4, (100, 2)), kind))
    if kind in ("float32", "bfloat16"):
        x = np.asarray(jnp.asarray([[0.3, 0.7], [0.5, np.nan], [-np.inf, np.inf], [1.5, -0.5]], kind))
    found, exact = R.histogram(edges).finalize(accumulate(R.histogram(edges), x)), x.astype(np.float64)
    np.testing.assert_array_equal(found.counts, [((a <= exact) & (exact < b)).sum() for a, b in pairwise(edges)])
    assert (found.below, found.above) == ((exact < -0.5).sum(), (exact >= 1.5).sum())
    assert found.nan == np.isnan(exact).sum()


def test_quantiles_of_booleans_and_of_infinite_draws():
    x = np.random.default_rng(0).random((400, 2)) < 0.3
    np.testing.assert_allclose(R.quantiles([0.1, 0.9]).finalize(accumulate(R.quantiles([0.1, 0.9]), x)), [0.0, 1.0])
    x = np.full((400, 2), np.inf, np.float32)
    assert R.quantiles([0.5]).finalize(accumulate(R.quantiles([0.5]), x)) == np.inf


def test_quantiles_of_one_slow_chain_are_those_of_the_whole_run():
    x = np.arange(60_000, dtype=np.float32)[:, None]
    found = R.quantiles([0.05, 0.5, 0.95]).finalize(accumulate(R.quantiles([0.05, 0.5, 0.95]), x))
    np.testing.assert_allclose(found / 60_000, [0.05, 0.5, 0.95], atol=1e-3)
    kept = R.reservoir(100).finalize(accumulate(R.reservoir(100), x))
    np.testing.assert_allclose(np.quantile(kept / 60_000, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.03)


def test_extremes_keep_whole_numbers():
    x = np.array([[2**24 + 1], [2**31 - 1], [-(2**31)]], np.int32)
    assert tuple(R.extremes().finalize(accumulate(R.extremes(), x))) == (-(2**31), 2**31 - 1)


@pytest.mark.parametrize("phi", [-0.5, 0.99, *(pytest.param(phi, marks=pytest.mark.slow) for phi in (0.0, 0.9))])
def test_effective_sizes_are_those_of_all_lags(phi):
    # both estimates have a standard error of some 10%
    noise, x = np.random.default_rng(0).normal(size=(N, 4)), np.zeros((N, 4))
    for t in range(1, N):
        x[t] = phi * x[t - 1] + noise[t]
    for draws in (x, x + 100 * np.arange(4), x + np.linspace(0, 100, N)[:, None]):
        draws = draws.astype(np.float32)
        exact = effective_size(draws.T[None].astype(np.float64))[0]
        for found in (R.ess().finalize(accumulate(R.ess(), draws)), halves(R.ess(), draws)):
            assert 0.6 < found / exact < 1.6


@pytest.mark.parametrize("where", [0, 2000, -1])
def test_an_outlier_counts_wherever_it_is(where):
    draws = np.random.default_rng(0).normal(size=(4005, 4)).astype(np.float32)
    draws[where, 2] = 1e5  # beside it all other draws are negligible noise: it is one draw of all
    for found in (R.ess().finalize(accumulate(R.ess(), draws)), halves(R.ess(), draws)):
        assert 0.6 < found / draws.size < 1.6


def test_effective_sizes_that_cannot_be_known_are_nan():
    for x in (np.ones((100, 4)), np.full((100, 4), np.nan), np.random.default_rng(0).normal(size=(5, 4))):
        assert np.isnan(R.ess().finalize(accumulate(R.ess(), x.astype(np.float32))))


def test_complex_draws_are_refused():
    with pytest.raises(TypeError, match="reducers take real numbers"):
        R.moments().init(jnp.zeros(3, jnp.complex64))


@pytest.mark.parametrize(
    "reducer",
    [
        pytest.param(R.rhat(), marks=pytest.mark.slow),
        pytest.param(R.ess(), marks=pytest.mark.slow),
        R.thinned(R.rhat(), 2),
    ],
    ids=repr,
)
def test_constant_elements_are_told_from_those_that_are_not_finite_or_stuck(reducer):
    x = np.random.default_rng(0).normal(size=(64, 4, 5)).astype(np.float32)
    x[..., 0], x[..., 1], x[..., 2], x[..., 3] = 1.1, np.nan, np.arange(4), np.inf  # element 2: chains that never move
    for state in (accumulate(reducer, x), reducer.merge(accumulate(reducer, x[:30]), accumulate(reducer, x[30:]))):
        np.testing.assert_array_equal(reducer.constant(state), [True, False, False, False, False])


@pytest.mark.parametrize("chains", [1, 3, 3000])
@pytest.mark.parametrize("draws", [1, 2, 5, 1000])
def test_reservoir_stands_for_all_of_the_run(chains, draws):
    # values are the number of the draw: their mean is that of a uniform distribution, up to spans of random picks
    x = np.broadcast_to(np.arange(draws, dtype=np.float32)[:, None], (draws, chains))
    where = np.ones((draws, chains), bool)
    reducer = R.reservoir(10**9)
    state = reducer.init(jnp.asarray(x[0]))
    step = jax.jit(lambda s, pair: (reducer.update(s, *pair), None))
    state = jax.lax.scan(step, state, (jnp.asarray(x), jnp.asarray(where)))[0]
    found = reducer.finalize(jax.tree.map(np.asarray, state))
    if draws * chains <= 4096:
        np.testing.assert_array_equal(np.sort(found), np.sort(x.ravel()))
    # five standard errors of the mean of one random draw from each of equally long spans, were there one span
    assert abs(found.mean() - (draws - 1) / 2) <= 5 * draws / np.sqrt(12 * len(found)) + 1e-6


def test_chains_with_room_for_two_draws_do_not_all_take_the_same():
    # all chains drift together: two moments of the run would determine no quantile
    x = np.broadcast_to(np.arange(3000, dtype=np.float32)[:, None], (3000, 2048))
    state = accumulate(R.quantiles([0.5]), x)
    ranks = R.quantiles([0.05, 0.5, 0.95]).finalize(state) / 3000
    # five standard errors of as many independent draws
    np.testing.assert_allclose(ranks, [0.05, 0.5, 0.95], atol=5 * 0.5 / np.sqrt(2048))
