"""Random small models: chains, trees, plates and loops of discrete variables, against the sum over all values."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.marginals.brute_force import compare

import phalanx as phx

SIZES = st.integers(2, 3)
QUICK = settings(max_examples=3, deadline=None, derandomize=True)


def logits(rng: np.random.Generator, *shape: int) -> Any:
    return jnp.asarray(rng.normal(size=shape), float)


@pytest.mark.slow
@QUICK
@given(sizes=st.lists(SIZES, min_size=2, max_size=5), seed=st.integers(0, 99), data=st.data())
def test_forests(sizes, seed, data):
    """Each variable has no parent, or one before it; a term ties two of them, so that there may be a loop."""
    rng = np.random.default_rng(seed)
    parents = [data.draw(st.integers(-1, i - 1)) for i in range(len(sizes))]
    tables = [logits(rng, *(() if p < 0 else (sizes[p],)), n) for n, p in zip(sizes, parents, strict=True)]
    ties = sorted(data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1, max_size=2)))
    tie = logits(rng, *(sizes[i] for i in ties))

    def model():
        x = phx.sample("x", dist.Normal(0.0, 1.0))
        z: list[Any] = []
        for i, (parent, table) in enumerate(zip(parents, tables, strict=True)):
            own = table if parent < 0 else table[z[parent]]
            z.append(phx.sample(f"z{i}", dist.CategoricalLogits(x * own)))
        phx.factor("tie", tie[tuple(z[i] for i in ties)] * x)

    compare(model, {"x": 0.7}, {f"z{i}": (n, ()) for i, n in enumerate(sizes)})


@QUICK
@given(rows=st.integers(1, 3), steps=st.integers(1, 3), size=SIZES, shared=st.booleans(), seed=st.integers(0, 99))
def test_chains_in_plates(rows, steps, size, shared, seed):
    """A chain for each row, maybe below one variable that all rows share."""
    rng = np.random.default_rng(seed)
    first, step, seen = logits(rng, 2, size), logits(rng, size, size), logits(rng, steps, rows)

    def model():
        x = phx.sample("x", dist.Normal(0.0, 1.0))
        kind = phx.sample("kind", dist.Bernoulli(logits=x)) if shared else 0
        z: Any = phx.sample("z0", dist.CategoricalLogits(jnp.tile(first[kind], (rows, 1))))
        for t in range(steps):
            if t:
                z = phx.sample(f"z{t}", dist.CategoricalLogits(x * step[z]))
            phx.sample(f"y{t}", dist.Normal(x * z, 1.0), obs=seen[t])

    shapes = {f"z{t}": (size, (rows,)) for t in range(steps)}
    compare(model, {"x": 0.7}, {"kind": (2, ()), **shapes} if shared else shapes)


@QUICK
@given(length=st.integers(2, 5), lag=st.integers(1, 2), size=SIZES, seed=st.integers(0, 99))
def test_vectors_with_terms_of_neighbours(length, lag, size, seed):
    rng = np.random.default_rng(seed)
    tie, seen = logits(rng, size, size), logits(rng, length)

    def model():
        x = phx.sample("x", dist.Normal(0.0, 1.0))
        z = phx.sample("z", dist.CategoricalLogits(jnp.tile(tie[0], (length, 1))))
        for step in range(1, lag + 1):
            if step < length:
                phx.factor(f"tie{step}", x * tie[z[:-step], z[step:]])
        phx.factor("ends", x * tie[z[0], z[-1]])
        phx.sample("y", dist.Normal(x * z, 1.0), obs=seen)

    compare(model, {"x": 0.7}, {"z": (size, (length,))})
