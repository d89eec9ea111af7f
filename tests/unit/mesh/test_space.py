"""Geometry and random numbers of positions that are partly spread over devices."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from scipy.stats import kstest

import phalanx as phx
from phalanx.mesh.space import GLOBAL, RowSharding, replicated_space

ROWS = 13


def space_on(data, model=1, axes=("data",)):
    """A global leaf `a`, and a leaf `b` with its rows over `axes`."""
    devices = math.prod({"data": data, "model": model}[axis] for axis in axes)
    spread = RowSharding(axes, ROWS, -(-ROWS // devices))
    return phx.Space((GLOBAL, spread), ("data", "model") if model > 1 else ("data",)), spread


def like(spread):
    return {"a": jnp.zeros(5), "b": jnp.zeros((spread.local_rows, 2))}


def on_devices(f, data, model=1, axes=("data",)):
    """f(space, like) on every device; global results from each device, the rest put together."""
    space, spread = space_on(data, model, axes)
    run = jax.shard_map(
        lambda: jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], f(space, like(spread))),
        mesh=phx.make_mesh(chain=1, data=data, model=model), in_specs=(),
        out_specs=PartitionSpec(("data", "model")), check_vma=False,
    )  # fmt: skip
    return jax.tree.map(np.asarray, jax.jit(run)())


def whole(leaf):
    """Rows of a spread leaf given device by device, without the padded ones."""
    return leaf.reshape(-1, *leaf.shape[2:])[:ROWS]


def padded(leaf):
    return leaf.reshape(-1, *leaf.shape[2:])[ROWS:]


@pytest.mark.parametrize("kind", ["normal", "uniform"])
@pytest.mark.parametrize("data", [1, 2, 4, 8])
def test_random_positions_are_the_same_on_any_number_of_devices(data, kind):
    def draw(space, shapes):
        key = jax.random.key(7)
        return space.normal(key, shapes) if kind == "normal" else space.uniform(key, shapes, -2.0, 3.0)

    one, many = on_devices(draw, 1), on_devices(draw, data)
    np.testing.assert_array_equal(many["a"], np.broadcast_to(one["a"], many["a"].shape))  # equal on all devices
    np.testing.assert_array_equal(whole(many["b"]), whole(one["b"]))
    assert not padded(many["b"]).any()
    everything = np.concatenate([one["a"].ravel(), whole(many["b"]).ravel()])
    assert len(np.unique(everything)) == everything.size  # different on different devices, and from leaf to leaf


@pytest.mark.parametrize("axes", [("data", "model"), ("model",)])
def test_rows_over_two_axes_or_the_inner_one(axes):
    def draw(space, shapes):
        return space.normal(jax.random.key(7), shapes)

    one, many = on_devices(draw, 1), on_devices(draw, 2, 4, axes)
    rows = many["b"] if len(axes) == 2 else many["b"][:4]
    np.testing.assert_array_equal(whole(rows), whole(one["b"]))
    if axes == ("model",):
        np.testing.assert_array_equal(many["b"][:4], many["b"][4:])  # the devices along `data` hold the same rows


def test_normals_and_uniforms_have_their_distributions():
    """Kolmogorov-Smirnov at 1e-6: false failures in two of a million runs."""
    space, shapes = replicated_space({"x": jnp.zeros(50_000)}), {"x": jnp.zeros(50_000)}
    assert kstest(space.normal(jax.random.key(0), shapes)["x"], "norm").pvalue > 1e-6
    uniform = space.uniform(jax.random.key(1), shapes, -1.0, 3.0)["x"]
    assert kstest(uniform, "uniform", (-1, 4)).pvalue > 1e-6
    assert uniform.min() >= -1 and uniform.max() < 3


def test_keys_and_neighbouring_coordinates_give_unrelated_normals():
    """Correlations of n normals, in units of 1 / sqrt(n): beyond 5.5 once in 26 million."""
    shapes = {"x": jnp.zeros((20_000, 2))}
    space = replicated_space(shapes)
    x, y = (np.asarray(space.normal(jax.random.key(i), shapes)["x"]) for i in range(2))
    for a, b in [(x, y), (x[:, 0], x[:, 1]), (x[:-1], x[1:])]:
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) * np.sqrt(a.size) < 5.5


@pytest.mark.parametrize("data, model, axes", [
    *(pytest.param(*sizes, ("data",), marks=pytest.mark.slow) for sizes in ((1, 1), (2, 1))),
    (8, 1, ("data",)), (2, 4, ("data", "model")), (2, 4, ("model",)),
])  # fmt: skip
def test_dot_and_norm_are_those_of_the_whole_on_every_device(data, model, axes):
    def f(space, shapes):
        x, y = space.normal(jax.random.key(0), shapes), space.normal(jax.random.key(1), shapes)
        return space.dot(x, y), space.norm(x), space.axpy(2.0, x, y), x, y

    dot, norm, axpy, x, y = on_devices(f, data, model, axes)
    devices = data * model if len(axes) == 2 else {"data": data, "model": model}[axes[0]]
    xs, ys = (np.concatenate([t["a"][0].ravel(), whole(t["b"][:devices]).ravel()]) for t in (x, y))
    np.testing.assert_allclose(dot, np.full(data * model, xs @ ys), rtol=1e-4)
    np.testing.assert_allclose(norm, np.full(data * model, np.linalg.norm(xs)), rtol=1e-5)
    np.testing.assert_allclose(axpy["b"], 2 * x["b"] + y["b"], rtol=1e-6)


def test_a_position_without_coordinates_has_length_zero():
    assert replicated_space({}).norm({}) == 0
    assert replicated_space({}).normal(jax.random.key(0), {}) == {}


def test_a_space_knows_whether_anything_is_spread():
    assert space_on(4)[0].is_sharded
    assert not replicated_space({"x": jnp.zeros(2)}).is_sharded


def test_padded_rows_are_replaced():
    def f(space, shapes):
        return space.shardings[1].keep_rows(jnp.ones((2,)), fill=-7.0), space.shardings[1].row_numbers()

    values, numbers = on_devices(f, 8)
    np.testing.assert_array_equal(numbers.ravel(), np.arange(16))
    np.testing.assert_array_equal(values.ravel(), np.where(np.arange(16) < ROWS, 1.0, -7.0))
