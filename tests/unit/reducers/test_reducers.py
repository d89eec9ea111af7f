"""Every reducer: the batch answer, two halves merged, and one saved and continued."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import phalanx as phx
from phalanx.reducers.effective_size import effective_size

CHAINS, DRAWS, SIZE = 4, 400, 3


def rows(offset=0.0, draws=DRAWS, seed=0):
    """Autocorrelated draws, `(draw, chain, size)`."""
    noise = np.random.default_rng(seed).normal(size=(draws, CHAINS, SIZE))
    x = np.empty_like(noise)
    x[0] = noise[0]
    for t in range(1, draws):
        x[t] = 0.5 * x[t - 1] + noise[t]
    return (offset + x * [1.0, 2.0, 0.5]).astype(np.float32)


@partial(jax.jit, static_argnums=0)  # reducers of the same settings are equal: each is compiled once for a shape
def all_of(reducer, x, where):
    return jax.lax.scan(lambda state, pair: (reducer.update(state, *pair), None), reducer.init(x[0]), (x, where))[0]


def accumulate(reducer, x, where=None):
    """The state after draws `(draw, chain, ...)`, as a block of a run makes it."""
    where = np.ones(x.shape[:2], bool) if where is None else where
    return jax.tree.map(np.asarray, all_of(reducer, jnp.asarray(x), jnp.asarray(where)))


def classic_rhat(x):
    n = len(x)
    within, between = x.var(0, ddof=1).mean(0), x.mean(0).var(0, ddof=1)
    return np.sqrt((n - 1) / n + between / within)


def batch_ess(x, b):
    """The error of the mean from means of batches, which are as all lags of theirs say."""
    means = x.reshape(-1, b, *x.shape[1:]).mean(1)

    def variance(x):
        return x.var(0).mean(0) + x.mean(0).var(0, ddof=1)

    return variance(x) / variance(means) * effective_size(means.T)


def autocovariances(x, lags):
    away = x - x.mean((0, 1))
    return np.stack([(away[: len(x) - k] * away[k:]).sum((0, 1)) / x[..., 0].size for k in range(lags + 1)])


def nested(x):
    groups = x.reshape(len(x), 2, 2, SIZE)
    between = groups.mean((0, 2)).var(0, ddof=1)
    within = (groups.mean(0).var(1, ddof=1) + groups.var(0, ddof=1).mean(1)).mean(0)
    return np.sqrt(1 + between / within)


EDGES = np.linspace(-2.0, 3.0, 11)
R = phx.reducers
ANSWERS = {
    "moments": (R.moments(), lambda x: (x[..., 0].size, x.mean((0, 1)), x.var((0, 1), ddof=1))),
    "extremes": (R.extremes(), lambda x: (x.min((0, 1)), x.max((0, 1)))),
    "covariance": (
        R.covariance(),
        lambda x: (x[..., 0].size, x.mean((0, 1)), np.cov(x.reshape(-1, SIZE).T)),
    ),
    "rhat": (R.rhat(), classic_rhat),
    "nested": (R.rhat(superchains=2), nested),
    "ess": (R.ess(20), lambda x: batch_ess(x, 20)),
    "autocovariance": (R.autocovariance(5), lambda x: autocovariances(x, 5)),
    "thinned": (R.thinned(R.moments(), 4), lambda x: ANSWERS["moments"][1](x[::4])),
    "histogram": (
        R.histogram(EDGES),
        lambda x: (
            EDGES,
            np.stack([[((a <= x[..., i]) & (x[..., i] < b)).sum() for a, b in pairwise(EDGES)] for i in range(SIZE)]),
            (x < EDGES[0]).sum((0, 1)),
            (x >= EDGES[-1]).sum((0, 1)),
            np.isnan(x).sum((0, 1)),
        ),
    ),
}  # fmt: skip


def agree(found, expected, rtol=2e-6):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("name", ANSWERS)
class TestAnswers:
    def test_one_pass_is_the_batch_answer(self, name):
        reducer, answer = ANSWERS[name]
        x = rows()
        nothing = reducer.init(jnp.asarray(x[0]))
        agree(reducer.finalize(reducer.merge(accumulate(reducer, x), nothing)), answer(x.astype(np.float64)))

    def test_two_halves_merged_are_one_pass(self, name):
        reducer, answer = ANSWERS[name]
        x = rows()
        merged = reducer.merge(accumulate(reducer, x[:160]), accumulate(reducer, x[160:]))
        agree(reducer.finalize(merged), answer(x.astype(np.float64)))

    def test_saved_and_gone_on_with_is_one_pass(self, name, tmp_path):
        reducer, _ = ANSWERS[name]
        x = rows()
        half = reducer.merge(accumulate(reducer, x[:80]), accumulate(reducer, x[80:160]))
        leaves, tree = jax.tree.flatten(half)
        np.savez(tmp_path / "state.npz", *leaves)
        stored = np.load(tmp_path / "state.npz")
        again = jax.tree.unflatten(tree, [stored[key] for key in stored.files])
        whole = reducer.merge(
            reducer.merge(accumulate(reducer, x[:80]), accumulate(reducer, x[80:160])), accumulate(reducer, x[160:])
        )
        agree(reducer.finalize(reducer.merge(again, accumulate(reducer, x[160:]))), reducer.finalize(whole), rtol=0)


@pytest.mark.parametrize("name", [name for name in ANSWERS if name not in ("ess", "rhat", "nested")])
def test_chains_that_draw_at_different_times(name):
    # what a chain shows while it has not drawn counts for nothing
    reducer, answer = ANSWERS[name]
    x = rows(draws=100)
    spread = np.zeros((200, CHAINS, SIZE), np.float32)
    where = np.zeros((200, CHAINS), bool)
    for chain in range(CHAINS):
        at = np.sort(np.random.default_rng(chain).choice(200, 100, replace=False))
        spread[at, chain], where[at, chain] = x[:, chain], True
    agree(reducer.finalize(accumulate(reducer, spread, where)), answer(x.astype(np.float64)), rtol=1e-5)


def test_a_mean_of_ten_thousand_keeps_its_variance():
    reducer, x = R.moments(), 1e4 + np.random.default_rng(1).normal(size=(3000, CHAINS, 1)).astype(np.float32)
    state = accumulate(reducer, x[:1000])
    for begin in (1000, 2000):
        state = reducer.merge(state, accumulate(reducer, x[begin : begin + 1000]))
    found, exact = reducer.finalize(state), x.astype(np.float64)
    assert found.count == 12000
    np.testing.assert_allclose(found.mean, exact.mean((0, 1)), rtol=1e-9)
    np.testing.assert_allclose(found.variance, exact.var((0, 1), ddof=1), rtol=1e-5)


def test_a_billion_draws_have_the_right_moments():
    # a block of 10,000 chains, merged 1,000 times with itself but moved by a hair: 1e9 draws in all
    reducer = R.moments()
    x = 1e4 + np.random.default_rng(2).normal(size=(100, 10_000)).astype(np.float32)
    block = accumulate(reducer, x)
    total = block
    for _ in range(999):
        total = reducer.merge(total, block)
    found, exact = reducer.finalize(total), x.astype(np.float64)
    assert found.count == 10**9
    np.testing.assert_allclose(found.mean, exact.mean(), rtol=1e-9)
    np.testing.assert_allclose(found.variance, exact.var(), rtol=1e-6)


def test_quantiles_within_their_stated_error():
    reducer = R.quantiles([0.05, 0.5, 0.95])
    x = np.random.default_rng(3).normal(size=(16_000, CHAINS)).astype(np.float32)
    state = accumulate(reducer, x[:8000])
    state = reducer.merge(state, accumulate(reducer, x[8000:]))
    ranks = [(x < q).mean() for q in reducer.finalize(state)]
    assert state.draws == 16_000 * CHAINS and 4096 <= len(state.values) <= 8192
    # five standard errors of a quantile of so many independent draws
    np.testing.assert_allclose(ranks, [0.05, 0.5, 0.95], atol=5 * 0.5 / np.sqrt(len(state.values)))


def test_a_sketch_does_not_grow():
    reducer = R.quantiles([0.5])
    x = np.random.default_rng(4).normal(size=(16, 50_000)).astype(np.float32)
    state = accumulate(reducer, x)
    for _ in range(20):
        state = reducer.merge(state, accumulate(reducer, x))
    assert len(state.values) <= 2**17 and state.draws == 21 * x.size
    # five standard errors of the median of as many independent draws as are taken at the least
    assert abs((x < reducer.finalize(state)).mean() - 0.5) < 5 * 0.5 / np.sqrt(50_000)


def test_a_reservoir_is_in_order_and_no_larger_than_asked():
    reducer = R.reservoir(10)
    x = np.arange(3200, dtype=np.float32)[:, None] + np.zeros((1, CHAINS), np.float32)
    state = reducer.merge(accumulate(reducer, x[:1600]), accumulate(reducer, x[1600:]))
    kept = reducer.finalize(state)
    assert len(kept) == 10 and set(kept) <= set(x[:, 0]) and kept.max() > 1600 > kept.min()


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: R.rhat(superchains=1), "superchains"),
        (lambda: R.ess(0), "batch"),
        (lambda: R.histogram([1.0]), "edges"),
        (lambda: R.histogram([1.0, 0.0]), "ascending"),
        (lambda: R.autocovariance(0), "lags"),
        (lambda: R.quantiles([1.5]), "between 0 and 1"),
        (lambda: R.reservoir(0), "n must be"),
        (lambda: R.thinned(R.moments(), 0), "every"),
    ],
)
def test_wrong_options_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_reducers_of_the_same_settings_are_equal():
    # so that a second run compiles nothing
    for make in (lambda: R.moments(), lambda: R.ess(5), lambda: R.histogram([0, 1]), lambda: R.quantiles([0.5])):
        assert make() == make() and hash(make()) == hash(make())
