"""Reductions over positional and named axes: value and gradient are those of the unsharded reduction."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp
from jax.sharding import PartitionSpec

import phalanx as phx
from phalanx.mesh import reductions

# Two leading dimensions over the mesh's two axes, two more on each device; with ties.
X = np.random.default_rng(0).normal(size=(4, 2, 3, 5)).astype(np.float32).round(1)

WHOLE = {"sum": jnp.sum, "mean": jnp.mean, "max": jnp.max, "min": jnp.min, "logsumexp": logsumexp}
HERE = {name: getattr(reductions, f"reduce_{name}") for name in WHOLE}
DIMS = [None, -1, ()]
AXES = {None: (), "data": (0,), ("model",): (1,), ("data", "model"): (0, 1)}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in ("mean", "min") else []) for name in WHOLE]
)
def test_value_and_gradient(name):
    mesh = phx.make_mesh(chain=1, data=4, model=2)
    both = PartitionSpec("data", "model")

    def on_device(x):
        out = {}
        for dims, axes in itertools.product(DIMS, AXES):

            def reduce(x, dims=dims, axes=axes):
                return HERE[name](x, dims, axes)

            value, pullback = jax.vjp(reduce, x)
            out[str((dims, axes))] = value, pullback(jnp.cos(value))[0]
        return out

    @jax.jit
    def whole(x):
        out = {}
        for dims, axes in itertools.product(DIMS, AXES):
            here = (0, 1) if dims is None else (dims,) if isinstance(dims, int) else dims
            over = (*AXES[axes], *(d % 2 + 2 for d in here))
            value, pullback = jax.vjp(lambda x, over=over: WHOLE[name](x, axis=over), x)
            out[str((dims, axes))] = value, pullback(jnp.cos(value))[0]
        return out

    found, truth = phx.spmd(on_device, mesh, both, both)(X), whole(X)
    for dims, axes in itertools.product(DIMS, AXES):
        value, gradient = truth[str((dims, axes))]
        for axis in AXES[axes]:
            value = np.expand_dims(value, axis)
        expected = np.broadcast_to(value, (4, 2, *value.shape[2:]))
        found_value, found_gradient = found[str((dims, axes))]
        np.testing.assert_allclose(found_value, expected, rtol=1e-5, atol=1e-5, err_msg=str((dims, axes)))
        np.testing.assert_allclose(found_gradient, gradient, rtol=1e-4, atol=1e-5, err_msg=str((dims, axes)))


def test_unchecked_the_gradient_is_of_the_sum_of_the_copies(mesh_of):
    spec = PartitionSpec("data")
    x = X[:, 0, 0]

    def on_device(x):
        return jax.grad(lambda x: reductions.reduce_logsumexp(x, axes="data"))(x)

    run = jax.shard_map(on_device, mesh=mesh_of(1, 4), in_specs=spec, out_specs=spec, check_vma=False)
    np.testing.assert_allclose(run(x), 4 * jax.grad(logsumexp)(x), rtol=1e-5)


def test_logsumexp_neither_overflows_nor_fails_on_nothing(mesh_of):
    def on_device(x):
        return reductions.reduce_logsumexp(x, axes="data")

    run = phx.spmd(on_device, mesh_of(1, 4), "data", None)
    assert run(np.array([[1000.0], [1000.0], [-np.inf], [0.0]], np.float32)) == pytest.approx(1000 + np.log(2))
    assert run(np.full((4, 1), -np.inf, np.float32)) == -np.inf
