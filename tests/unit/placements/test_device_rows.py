"""Functions of whole arrays on one device's rows: several axes, axes taken together, functions of rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from phalanx.distributions.row_sums import over, times, total_of
from phalanx.mesh.row_sharding import GLOBAL, RowSharding
from phalanx.placements import DeviceRows, pad_rows
from phalanx.placements.row_functions import sum_rows

SIZES = {"data": 2, "model": 4}


def rows_over(axes, count):
    devices = int(np.prod([SIZES[axis] for axis in axes]))
    return RowSharding(axes, count, -(-count // devices))


def evaluated(f, arrays, inputs, outputs=GLOBAL, messages=None):
    """Evaluate `f` on eight devices, and return its whole results."""
    rows = DeviceRows(SIZES, frozenset(inputs))
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    on_device = rows.function(f, tuple(inputs), outputs, messages)
    padded = [
        pad_rows(x, 0, int(np.prod([SIZES[axis] for axis in sharding.axes], dtype=int)))
        for x, sharding in zip(arrays, inputs, strict=True)
    ]
    specs = {"in_specs": tuple(s.spec() for s in inputs), "out_specs": outputs.spec()}
    return outputs.trim(jax.jit(jax.shard_map(on_device, mesh=mesh, check_vma=False, **specs))(*padded))


X = np.random.default_rng(0).normal(size=(11, 3)).astype(np.float32)
Z = np.random.default_rng(1).normal(size=11).astype(np.float32)


@pytest.mark.parametrize(
    "axes",
    [
        (("data",), ("data",)),
        (("data",), ("model",)),
        (("data", "model"), ("data", "model")),
        (("data", "model"), ("data",)),
        (("model", "data"), ()),
        ((), ()),
    ],
    ids=str,
)
@pytest.mark.parametrize("count", [1, 2, 8, 11])
def test_rows_over_several_axes(axes, count):
    def f(x, z):
        return (jnp.exp(-((x @ jnp.ones(3) - z) ** 2)) * jnp.cumsum(z)).sum() + x.max() + jnp.sort(z)[0]

    x, z = X[:count], Z[:count]
    inputs = [rows_over(each, count) for each in axes]
    np.testing.assert_allclose(evaluated(f, [x, z], inputs), f(x, z), rtol=1e-5)


def test_results_with_rows_are_sharded_and_trimmed():
    sharding = rows_over(("data", "model"), 11)
    found = evaluated(lambda x: (x - x.mean(0)[None]).sum(1), [X], [sharding], sharding)
    np.testing.assert_allclose(found, (X - X.mean(0)).sum(1), atol=1e-5)


def test_collectives_of_the_program_see_all_rows():
    def f(x):
        return lax.psum(x.sum(), "data") + lax.pmean(x, "model").max() + lax.axis_index("data") + lax.axis_size("model")

    for axes in [("data",), ()]:
        np.testing.assert_allclose(evaluated(f, [X], [rows_over(axes, 11)]), X.sum() + X.max() + 1, rtol=1e-5)


def test_a_total_of_many_terms_needs_no_message_but_the_last():
    def f(x):
        total = times(total_of(x), 0.5) + over(total_of(x**2), 3.0)
        return total.coarse + total.fine

    messages = []
    x = 1e5 + np.arange(4001, dtype=np.float32)
    found = evaluated(f, [x], [rows_over(("data",), 4001)], messages=messages)
    np.testing.assert_allclose(found, 0.5 * x.sum(dtype=float) + (x.astype(float) ** 2).sum() / 3, rtol=1e-6)
    assert [message.collective for message in messages] == ["all-reduce"]


@pytest.mark.parametrize("count", [1, 3, 11])
def test_a_function_of_rows_gets_a_mask_of_its_rows(count):
    def of_rows(real, rows, others):
        values = jnp.exp(rows[0] @ others[0])
        kept = values if real is None else jnp.where(real, values, 0.0)
        return kept.sum(), values

    def f(x, w):
        total, values = sum_rows(of_rows, [x], [w])
        return total + (values * jnp.arange(1.0, count + 1)).sum()

    x, w = X[:count], np.ones(3, np.float32)
    found = evaluated(f, [x, w], [rows_over(("model",), count), GLOBAL])
    np.testing.assert_allclose(found, f(x, w), rtol=1e-5)


def test_inspection_names_sums_and_rows_that_are_read_by_number():
    rows = DeviceRows(SIZES, frozenset({rows_over(("data",), 4)}))
    inputs, shape = (rows_over(("data",), 4),), jax.ShapeDtypeStruct((2, 3), np.float32)

    def inspected(f):
        found = rows.inspect(f, inputs, shape)
        return found.shardings.axes, found.is_sum, [message.collective for message in found.messages]

    assert inspected(lambda x: x * 2) == (("data",), False, [])
    assert inspected(lambda x: x.sum()) == ((), True, [])
    assert inspected(lambda x: x.sum(0).max()) == ((), False, ["all-reduce"])
    assert inspected(lambda x: x[1].sum()) == ((), True, ["rows by number"])
    assert inspected(lambda x: (x.T * jnp.arange(4.0)[None]).sum()) == ((), True, ["rows by number"])
    assert inspected(lambda x: jnp.ones(3)) == ((), False, [])
