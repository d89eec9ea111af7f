"""Reducers of whatever draws: any type, offset, order, outlier, number of chains, and any cut into blocks."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phalanx as phx

R = phx.reducers
LENGTH, LAGS, EDGES = 96, 2, [-1e6, -1.0, 0.0, 0.5, 1.0, 1e3, 1e8]
REDUCERS = {
    "moments": R.moments(),
    "covariance": R.covariance(),
    "extremes": R.extremes(),
    "histogram": R.histogram(EDGES),
    "autocovariance": R.autocovariance(LAGS),
    "reservoir": R.reservoir(10**6),
}


@cache
def accumulated(kind, chains):
    """All reducers over a block whose length is a mask, so that lengths compile nothing."""

    def run(x, where):
        def step(states, pair):
            return {name: reducer.update(states[name], *pair) for name, reducer in REDUCERS.items()}, None

        first = {name: reducer.init(x[0]) for name, reducer in REDUCERS.items()}
        return jax.lax.scan(step, first, (x, where))[0]

    return jax.jit(run)


@st.composite
def runs(draw):
    kind, chains = draw(st.sampled_from([("float32", 1), ("float32", 5), ("bfloat16", 5), ("int32", 5), ("bool", 5)]))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = random.normal(size=(LENGTH, chains)) * draw(st.sampled_from([1e-3, 1.0, 300.0]))
    x += draw(st.sampled_from([0.0, 0.0, -3.0, 1e4, 1e8]))
    if draw(st.booleans()):
        x[draw(st.integers(0, LENGTH - 1))] += draw(st.sampled_from([1e5, -1e9]))
    order = draw(st.sampled_from(["as it is", "rising", "falling", "to and fro"]))
    if order != "as it is":
        x = np.sort(x, axis=0)
        x = {"rising": x, "falling": x[::-1], "to and fro": np.where(np.arange(LENGTH)[:, None] % 2, x, x[::-1])}[order]
    x = x > np.median(x) if kind == "bool" else x.clip(-(2**31) + 1, 2**31 - 200)
    x = np.asarray(jnp.asarray(x.round() if kind == "int32" else x, kind))
    where = random.random((LENGTH, chains)) < draw(st.sampled_from([1.0, 0.6]))
    where[0] = where[-1] = True
    cuts = sorted(draw(st.sets(st.integers(1, LENGTH - 1), max_size=3)))
    return kind, x, where, cuts


def reduced(kind, x, where, cuts):
    """Return the reducers' results of a run in blocks that end at `cuts`."""
    number = np.arange(LENGTH)[:, None]
    states = None
    for begin, end in pairwise([0, *cuts, LENGTH]):
        block = accumulated(kind, x.shape[1])(x, where & (begin <= number) & (number < end))
        block = jax.tree.map(np.asarray, block)
        states = block if states is None else {n: r.merge(states[n], block[n]) for n, r in REDUCERS.items()}
    assert states is not None
    return {name: reducer.finalize(states[name]) for name, reducer in REDUCERS.items()}


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(runs())
def test_reducers_say_what_float64_says(run):
    check(run)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(runs())
def test_reducers_agree_with_numpy_over_many_runs(run):
    check(run)


def check(run):
    kind, x, where, cuts = run
    found = reduced(kind, x, where, cuts)
    whole = x.astype(np.float64)
    exact = whole[where]
    mean, variance = exact.mean(), exact.var(ddof=1)
    rounding = 1e-6 * np.sqrt(variance) + 1e-12 * np.abs(exact).max()

    moments = found["moments"]
    assert moments.count == len(exact)
    assert abs(moments.mean - mean) <= rounding
    assert abs(moments.variance - variance) <= 1e-6 * variance + rounding**2
    assert abs(found["covariance"].covariance.squeeze() - variance) <= 1e-6 * variance + rounding**2
    assert tuple(found["extremes"]) == (exact.min(), exact.max())
    counts = [((a <= exact) & (exact < b)).sum() for a, b in pairwise(EDGES)]
    np.testing.assert_array_equal(found["histogram"].counts, counts)
    assert (found["histogram"].below, found["histogram"].above) == (
        (exact < EDGES[0]).sum(),
        (exact >= EDGES[-1]).sum(),
    )
    np.testing.assert_array_equal(np.sort(np.asarray(found["reservoir"], float)), np.sort(exact))

    away = [column[has] - mean for column, has in zip(whole.T, where.T, strict=True)]
    lagged = [sum((a[: len(a) - k] * a[k:]).sum() for a in away) / len(exact) for k in range(LAGS + 1)]
    np.testing.assert_allclose(found["autocovariance"], lagged, atol=1e-6 * variance + rounding**2)
