"""`phx.spmd` maps leading dimensions over devices, and says what does not fit."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

import phalanx as phx


def test_each_device_sees_its_slice_without_the_mapped_dimension(mesh_of):
    shapes = []

    def f(x, y):
        shapes.append((x.shape, y["a"].shape))
        return x.sum() + y["a"]

    out = phx.spmd(f, mesh_of(2, 4), in_axes=("data", None))(jnp.arange(12.0).reshape(4, 3), {"a": jnp.ones(2)})
    assert shapes == [((3,), (2,))]
    assert out.shape == (8, 2)  # out_axes=0: one output per device, chains outermost
    np.testing.assert_array_equal(out[:, 0], np.tile([4.0, 13.0, 22.0, 31.0], 2))


def test_zero_maps_over_all_devices(mesh_of):
    out = phx.spmd(lambda x: x + lax.axis_index("chain") * 10 + lax.axis_index("data"), mesh_of(2, 4))(jnp.zeros(8))
    np.testing.assert_array_equal(out, [0, 1, 2, 3, 10, 11, 12, 13])


def test_two_dimensions_over_two_axes_and_several_outputs(mesh_of):
    def f(x):
        return lax.psum(x, "data"), (x, 2 * x)

    both = PartitionSpec("chain", "data")
    total, (same, double) = phx.spmd(f, mesh_of(2, 4), in_axes=both, out_axes=("chain", both))(
        np.arange(8.0).reshape(2, 4)
    )
    np.testing.assert_array_equal(total, [6, 22])
    np.testing.assert_array_equal(same, np.arange(8.0).reshape(2, 4))
    np.testing.assert_array_equal(double, 2 * same)


def test_gradients_through_collectives_are_those_of_the_whole(mesh_of):
    def f(x, w):
        return jax.grad(lambda w: jnp.log(lax.psum(w * x, "data")) * w)(w)

    x = jnp.arange(1.0, 5.0)
    gradient = phx.spmd(f, mesh_of(1, 4), in_axes=("data", None), out_axes=None)(x, 0.5)
    np.testing.assert_allclose(gradient, jax.grad(lambda w: jnp.log(jnp.sum(w * x)) * w)(0.5), rtol=1e-6)


@pytest.mark.parametrize("in_axes, args, words", [
    ("rows", (np.ones(4),), "spmd: 'rows' is no axis of the mesh, which has 'chain', 'data', 'model'; use None, 0 or "
                            "one of these."),
    (("data",), (np.ones(4), np.ones(4)), "spmd: in_axes has 1 entries for 2 arguments: ('data',)."),
    (("data", None), (np.ones(3), 1.0), "spmd: argument 0 has shape (3,), but its leading dimensions (4,) are mapped "
                                        "over devices ('data',): give it one slice per device."),
    ((None, 0), (1.0, {"a": 2.0}), "spmd: argument 1 has shape (), but its leading dimensions (8,)"),
    (1, (np.ones(8),), "spmd: 1 is no axis of the mesh"),
])  # fmt: skip
def test_what_does_not_fit_is_said(in_axes, args, words, mesh_of):
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.spmd(lambda *args: args[0], mesh_of(2, 4), in_axes=in_axes)(*args)


def test_several_out_axes_need_as_many_outputs(mesh_of):
    with pytest.raises(ValueError, match=re.escape("spmd: out_axes has 2 entries for 1 output(s): ('data', None).")):
        phx.spmd(lambda x: x, mesh_of(1, 4), in_axes="data", out_axes=("data", None))(np.ones(4))
    with pytest.raises(ValueError, match=re.escape("spmd: 'rows' is no axis of the mesh")):
        phx.spmd(lambda x: x, mesh_of(1, 4), in_axes="data", out_axes="rows")(np.ones(4))
