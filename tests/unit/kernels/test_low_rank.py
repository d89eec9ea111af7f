"""Metric of lanes against its formula, for few lanes and for many, in float64 on the host."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.kernels.metric.low_rank import FEW_LANES, LaneMetric
from phalanx.mesh.position import Vector


def metric_of(random, size, rank, outside, correlated=True):
    """A metric, and its matrix A in `M^-1 = S A S`, and the diagonal of S."""
    scale, variances = random.uniform(0.5, 2, size), random.uniform(0.2, 5, rank)
    directions = np.linalg.qr(random.normal(size=(size, rank)))[0]
    parts = Vector((jnp.asarray(scale[:, None], jnp.float32),))
    columns, along, beyond = (jnp.asarray(part, jnp.float32) for part in (directions, variances, outside))
    metric = LaneMetric(parts, columns, along, beyond, jnp.asarray(correlated))
    within = outside * np.eye(size) + (directions * (variances - outside)) @ directions.T
    return metric, within if correlated else np.eye(size), scale


def inverse_root(matrix):
    values, vectors = np.linalg.eigh(matrix)
    return (vectors / np.sqrt(values)) @ vectors.T


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 99), st.sampled_from([1, 2, FEW_LANES, FEW_LANES + 1]), st.sampled_from([8, 24, 40]))
def test_it_is_the_formula_for_any_number_of_lanes(seed, lanes, rank):
    random = np.random.default_rng(seed)
    metric, within, scale = metric_of(random, 40, rank, 0.0 if rank == 40 else 1.0)
    z = random.normal(size=(40, lanes))
    vector = Vector((jnp.asarray(z, jnp.float32),))
    velocity = jax.jit(LaneMetric.velocity)(metric, vector).parts[0]
    momentum = jax.jit(LaneMetric.momentum)(metric, vector).parts[0]
    np.testing.assert_allclose(velocity, scale[:, None] * (within @ (scale[:, None] * z)), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(momentum, inverse_root(within) @ z / scale[:, None], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lanes", [3, FEW_LANES + 3])
def test_momenta_of_some_lanes_are_right_in_these(lanes):
    metric, within, scale = metric_of(np.random.default_rng(0), 30, 20, 1.0)
    z = np.random.default_rng(1).normal(size=(30, lanes))
    vector, where = Vector((jnp.asarray(z, jnp.float32),)), np.arange(lanes) % 2 == 1
    found = jax.jit(LaneMetric.momentum)(metric, vector, jnp.asarray(where)).parts[0]
    expected = inverse_root(within) @ z / scale[:, None]
    np.testing.assert_allclose(found[:, where], expected[:, where], rtol=1e-4, atol=1e-4)


def test_directions_that_are_not_in_use_do_nothing():
    metric, _, scale = metric_of(np.random.default_rng(0), 30, 20, 1.0, correlated=False)
    z = np.ones((30, 2))
    found = jax.jit(LaneMetric.velocity)(metric, Vector((jnp.asarray(z, jnp.float32),))).parts[0]
    np.testing.assert_allclose(found, scale[:, None] ** 2 * z, rtol=1e-6)
