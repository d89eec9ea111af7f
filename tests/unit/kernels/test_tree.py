"""U-turns of a NUTS tree, leaf by leaf, against the criterion evaluated on every subtree."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phalanx as phx
from phalanx.kernels.integrators.leapfrog import PhasePoint
from phalanx.kernels.integrators.tree import CROSS_CHECK_LEVELS, Checkpoints
from phalanx.mesh.position import Vector
from phalanx.mesh.total import Total

DEPTH = 5
"""Doublings of the subtrees: 32 leaves."""


def turns(position, momentum, first, last):
    """True if the trajectory from one leaf to another has turned."""
    span = position[last] - position[first]
    return span @ momentum[first] <= 0 or span @ momentum[last] <= 0


def turned(position, momentum, first, length):
    """True if a subtree of so many leaves, or any in it, has turned, also across halves of up to eight leaves."""
    if length == 1:
        return False
    half, last = first + length // 2, first + length - 1
    across = [(first, half), (half - 1, last)] if length <= 2 ** (CROSS_CHECK_LEVELS + 1) else []
    return (
        any(turns(position, momentum, *ends) for ends in [(first, last), *across])
        or turned(position, momentum, first, length // 2)
        or turned(position, momentum, half, length // 2)
    )


@given(st.sampled_from([1, 2, 10]), st.integers(0, 2**32 - 1), st.floats(0.05, 1.3), *[st.floats(0.0, 0.3)] * 2)
@settings(max_examples=40, deadline=None)
def test_a_subtree_turns_where_any_part_of_it_does(size, seed, step, spread, noise):
    """Oscillators of nearly one frequency, whose trajectories go round; every lane starts elsewhere."""
    random, lanes, leaves = np.random.default_rng(seed), 64, 2**DEPTH
    frequency, phase = 1 + spread * random.normal(size=(size, lanes)), random.uniform(0.0, 6.3, (size, lanes))
    angle = frequency * step * np.arange(leaves)[:, None, None] + phase
    position = (np.sin(angle) + noise * random.normal(size=angle.shape)).astype(np.float32)
    momentum = (frequency * np.cos(angle) + noise * random.normal(size=angle.shape)).astype(np.float32)
    found = np.any(_turning(position, momentum), axis=0)
    for lane in range(lanes):
        expected = turned(position[..., lane].astype(float), momentum[..., lane].astype(float), 0, leaves)
        assert found[lane] == expected


@jax.jit
def _turning(position, momentum):
    """Whether a subtree turns at each leaf, as the tree finds it: `(leaf, lane)`."""
    leaves, _, lanes = position.shape
    zero = jnp.zeros(lanes)

    def vector(x):
        return Vector((x,), None)

    def product(pair):
        a, b = pair
        return (a.parts[0] * b.parts[0]).sum(-2)

    def add(kept, leaf_and_point):
        leaf, x, p = leaf_and_point
        leaf = jnp.full(lanes, leaf, jnp.int32)
        end = PhasePoint(vector(x), vector(p), Total(zero, zero), vector(x))
        starts, halves = (tuple(map(product, ends.spans(end))) for ends in kept)
        return kept.with_leaf(leaf, end), kept.turning(starts, halves, leaf, jnp.ones(lanes))

    none = Checkpoints.none(vector(position[0]), DEPTH + 1)
    return jax.lax.scan(add, none, (jnp.arange(leaves), position, momentum))[1]


@pytest.mark.parametrize("step_size", [pytest.param(0.6, marks=pytest.mark.slow), 0.87])
def test_no_step_size_resonates(step_size):
    """Standard normals in ten dimensions: without checks across halves a draw takes 45 leapfrogs at steps of 0.87."""
    made = phx.mcmc(
        lambda: phx.sample("x", dist.Normal(0.0, 1.0).expand([10])),
        kernel=phx.nuts(step_size=step_size), num_warmup=20, num_samples=100, num_chains=64, progress=False,
    )  # fmt: skip
    assert made.stats["num_steps"].mean() < 8


def test_trees_of_either_direction_are_the_same():
    """A subtree built backwards in time turns where the same built forwards does, since both halves are checked."""
    random = np.random.default_rng(3)
    seen = set()
    for step, seed in itertools.product([0.2, 0.5, 1.1], range(20)):
        angle = step * np.arange(8)[:, None] + random.uniform(0, 6.3, 2)
        x, p = np.sin(angle), np.cos(angle) + 0.2 * random.normal(size=angle.shape)
        forwards, backwards = turned(x, p, 0, 8), turned(x[::-1], -p[::-1], 0, 8)
        assert forwards == backwards, seed
        seen.add(forwards)
    assert seen == {True, False}
