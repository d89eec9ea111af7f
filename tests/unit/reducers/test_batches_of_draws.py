"""Reducers that depend on the number of a draw give the same result however a run is divided."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.slow import with_slow

from phalanx import reducers as R

CHAINS, DRAWS = 3, 1400
SERIES = np.cumsum(np.random.default_rng(0).normal(size=(DRAWS, CHAINS)), axis=0).astype(np.float32)
REDUCERS = {
    "ess": R.ess(),
    "ess of 3": R.ess(3),
    "thinned": R.thinned(R.moments(), 7),
    "both": R.thinned(R.ess(), 2),
    "one draw": R.reservoir(1),
    "reservoir": R.reservoir(50),
    "thinned reservoir": R.thinned(R.reservoir(50), 3),
    "all draws": R.reservoir(DRAWS * CHAINS),
}


@cache
def compiled(name):
    reducer = REDUCERS[name]

    def run(before, counts):
        def add(state, number):
            draw = jnp.take_along_axis(jnp.asarray(SERIES), (before + number)[None] % DRAWS, 0)[0]
            return reducer.update(state, draw, number < counts), None

        return jax.lax.scan(add, reducer.begun(jnp.zeros(CHAINS), before, jnp.arange(CHAINS)), jnp.arange(DRAWS))[0]

    return jax.jit(run)


def stretch(name, before, counts):
    """Return the state of a batch of draws, with a different number of draws of each chain."""
    return jax.device_get(compiled(name)(before, counts))


@pytest.mark.parametrize("name", with_slow([*REDUCERS], {"ess of 3", "one draw", "thinned reservoir"}))
@settings(max_examples=8, deadline=None)
@given(cuts=st.lists(st.lists(st.integers(0, DRAWS), min_size=CHAINS, max_size=CHAINS), min_size=1, max_size=3))
def test_the_same_however_a_run_is_cut(name, cuts):
    reducer, before, known = REDUCERS[name], np.zeros(CHAINS, np.int32), None
    for cut in [*np.sort(np.array(cuts, np.int32), axis=0), np.full(CHAINS, DRAWS, np.int32)]:
        later = stretch(name, before, cut - before)
        known, before = later if known is None else reducer.merge(known, later), cut
    whole = stretch(name, np.zeros(CHAINS, np.int32), np.full(CHAINS, DRAWS, np.int32))
    found, wanted = reducer.finalize(known), reducer.finalize(whole)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
