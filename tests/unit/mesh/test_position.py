"""Layout, lengths and random numbers of positions that are partly sharded over devices."""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from scipy.stats import kstest

import phalanx as phx
from phalanx.density.density import Density
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.position import Variable, Vector, VectorLayout, inner_products
from phalanx.mesh.random_numbers import Keys
from phalanx.mesh.row_sharding import RowSharding

ROWS = 13


def layout_on(data, model=1, axes=("data",)):
    """A global variable `a`, and a variable `b` with its rows over `axes`."""
    sizes = {"data": data, "model": model}
    devices = math.prod(sizes[axis] for axis in axes)
    sharding = RowSharding(axes, ROWS, -(-ROWS // devices))
    b = Variable("b", (sharding.local_rows, 2), jnp.float32, sharding)
    return VectorLayout.of([b, Variable("a", (5,), jnp.float32)], sizes)


def on_devices(f, data, model=1, axes=("data",)):
    """f(layout) on every device; global results from each device, the rest put together."""
    layout = layout_on(data, model, axes)
    run = jax.shard_map(
        lambda: jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], f(layout)),
        mesh=phx.make_mesh(chain=1, data=data, model=model), in_specs=(),
        out_specs=PartitionSpec(("data", "model")), check_vma=False,
    )  # fmt: skip
    return jax.tree.map(np.asarray, jax.jit(run)())


def normal(layout, seed):
    """Standard normals of one lane, by variable, as kernels draw them."""
    nothing: Any = None
    shares: Any = SimpleNamespace(layout=layout)
    lanes = LaneTarget(Density(nothing, nothing, (), shares), 1)
    vector = lanes.normal(Keys.of_chains(seed, jnp.zeros(1)).of_draw(1))
    return Vector(tuple(part[:, 0] for part in vector.parts), layout).by_variable()


def whole(leaf):
    """Rows of a sharded variable given device by device, without the padded ones."""
    return leaf.reshape(-1, *leaf.shape[2:])[:ROWS]


def padded(leaf):
    return leaf.reshape(-1, *leaf.shape[2:])[ROWS:]


@pytest.mark.parametrize("kind", ["normal", "uniform"])
@pytest.mark.parametrize("data", [1, 2, 4, 8])
def test_random_positions_are_the_same_on_any_number_of_devices(data, kind):
    def draw(layout):
        return normal(layout, 7) if kind == "normal" else layout.uniform(jax.random.key(7), -2.0, 3.0)

    one, many = on_devices(draw, 1), on_devices(draw, data)
    np.testing.assert_array_equal(many["a"], np.broadcast_to(one["a"], many["a"].shape))  # equal on all devices
    np.testing.assert_array_equal(whole(many["b"]), whole(one["b"]))
    assert not padded(many["b"]).any()
    everything = np.concatenate([one["a"].ravel(), whole(many["b"]).ravel()])
    assert len(np.unique(everything)) == everything.size  # different on different devices, and by variable


@pytest.mark.parametrize("axes", [("data", "model"), ("model",)])
def test_rows_over_two_axes_or_the_inner_one(axes):
    one, many = on_devices(partial(normal, seed=7), 1), on_devices(partial(normal, seed=7), 2, 4, axes)
    rows = many["b"] if len(axes) == 2 else many["b"][:4]
    np.testing.assert_array_equal(whole(rows), whole(one["b"]))
    if axes == ("model",):
        np.testing.assert_array_equal(many["b"][:4], many["b"][4:])  # the devices along `data` hold the same rows


def test_normals_and_uniforms_have_their_distributions():
    """Kolmogorov-Smirnov at 1e-6: false failures in two of a million runs."""
    layout = VectorLayout((Variable("x", (50_000,), jnp.float32),))
    assert kstest(normal(layout, 0)["x"], "norm").pvalue > 1e-6
    uniform = layout.uniform(jax.random.key(1), -1.0, 3.0)["x"]
    assert kstest(uniform, "uniform", (-1, 4)).pvalue > 1e-6
    assert uniform.min() >= -1 and uniform.max() < 3


def test_keys_and_neighbouring_coordinates_give_unrelated_normals():
    """Correlations of n normals, in units of 1 / sqrt(n): beyond 5.5 once in 26 million."""
    layout = VectorLayout((Variable("x", (20_000, 2), jnp.float32),))
    x, y = (np.asarray(normal(layout, seed)["x"]) for seed in range(2))
    for a, b in [(x, y), (x[:, 0], x[:, 1]), (x[:-1], x[1:])]:
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) * np.sqrt(a.size) < 5.5


@pytest.mark.parametrize("data, model, axes", [
    *(pytest.param(*sizes, ("data",), marks=pytest.mark.slow) for sizes in ((1, 1), (2, 1))),
    (8, 1, ("data",)), (2, 4, ("data", "model")), (2, 4, ("model",)),
])  # fmt: skip
def test_inner_products_and_sums_are_those_of_the_whole_on_every_device(data, model, axes):
    def f(layout):
        x, y = normal(layout, 0), normal(layout, 1)
        a, b = (jax.tree.map(lambda part: part[:, None], layout.vector(values)) for values in (x, y))
        total = Vector(tuple(part[:, 0] for part in (a * 2.0 + b).parts), layout)
        return inner_products(layout.groups, (a, b), (a, a)), total.by_variable(), x, y

    (dot, square), total, x, y = on_devices(f, data, model, axes)
    devices = data * model if len(axes) == 2 else {"data": data, "model": model}[axes[0]]
    xs, ys = (np.concatenate([t["a"][0].ravel(), whole(t["b"][:devices]).ravel()]) for t in (x, y))
    np.testing.assert_allclose(dot.ravel(), np.full(data * model, xs @ ys), rtol=1e-4)
    np.testing.assert_allclose(square.ravel(), np.full(data * model, xs @ xs), rtol=1e-5)
    np.testing.assert_allclose(total["b"], 2 * x["b"] + y["b"], rtol=1e-6)


@pytest.mark.parametrize("data, model, axes", [(1, 1, ("data",)), (8, 1, ("data",)), (2, 4, ("data", "model"))])
def test_on_the_host_whole_values_come_back_and_padded_rows_are_zeros_or_the_last_row(data, model, axes):
    layout, random = layout_on(data, model, axes), np.random.default_rng(0)
    values = {"a": random.normal(size=(3, 5)), "b": random.normal(size=(3, ROWS, 2))}
    vector = layout.of_whole(values)
    assert [part.shape for part in vector.parts] == [(3, length) for length in layout.whole_lengths]
    assert layout.coordinates == 5 + 2 * ROWS
    for name, found in vector.by_variable().items():
        np.testing.assert_array_equal(found, values[name])
    rows = vector.parts[1].reshape(3, -1, 2)
    np.testing.assert_array_equal(rows[:, ROWS:], np.broadcast_to(rows[:, ROWS - 1 : ROWS], rows[:, ROWS:].shape))
    assert not layout.of_whole(values, zero=True).parts[1].reshape(3, -1, 2)[:, ROWS:].any()


def test_a_vector_is_what_its_variables_are_on_every_device():
    def there_and_back(layout):
        values = {"a": jnp.arange(10.0).reshape(2, 5), "b": jnp.ones((2, 2, 2)) * jax.lax.axis_index("data")}
        return layout.vector(values).T.T.by_variable()

    found = on_devices(there_and_back, 8)
    np.testing.assert_array_equal(found["a"], np.broadcast_to(np.arange(10.0).reshape(2, 5), (8, 2, 5)))
    np.testing.assert_array_equal(found["b"], np.broadcast_to(np.arange(8)[:, None, None, None], (8, 2, 2, 2)))


def test_padded_rows_are_zero():
    def f(layout):
        sharding = layout.variables[1].sharding
        return sharding.keep_rows(jnp.ones((2,))), sharding.row_numbers()

    values, numbers = on_devices(f, 8)
    np.testing.assert_array_equal(numbers.ravel(), np.arange(16))
    np.testing.assert_array_equal(values.ravel(), np.where(np.arange(16) < ROWS, 1.0, 0.0))
