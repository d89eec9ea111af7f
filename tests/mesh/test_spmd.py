"""`phx.spmd` maps leading dimensions over devices, and says what does not fit."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
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
    ("rows", (np.ones(4),), "spmd: 'rows' is not an axis of the mesh, which has 'chain', 'data', 'model'; use None, 0 "
                            "or one of these."),
    (("data",), (np.ones(4), np.ones(4)), "spmd: in_axes has 1 entries for 2 arguments: ('data',)."),
    (("data", None), (np.ones(3), 1.0), "spmd: argument 0 has shape (3,), but its leading dimensions (4,) are mapped "
                                        "over devices ('data',): give it one slice per device."),
    ((None, 0), (1.0, {"a": 2.0}), "spmd: argument 1 has shape (), but its leading dimensions (8,)"),
    (1, (np.ones(8),), "spmd: 1 is not an axis of the mesh"),
])  # fmt: skip
def test_wrong_arguments_are_refused(in_axes, args, words, mesh_of):
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.spmd(lambda *args: args[0], mesh_of(2, 4), in_axes=in_axes)(*args)


def test_several_out_axes_need_as_many_outputs(mesh_of):
    with pytest.raises(ValueError, match=re.escape("spmd: out_axes has 2 entries for 1 output(s): ('data', None).")):
        phx.spmd(lambda x: x, mesh_of(1, 4), in_axes="data", out_axes=("data", None))(np.ones(4))
    with pytest.raises(ValueError, match=re.escape("spmd: 'rows' is not an axis of the mesh")):
        phx.spmd(lambda x: x, mesh_of(1, 4), in_axes="data", out_axes="rows")(np.ones(4))


class TestSentences:
    """Where JAX would say `check_vma=False`, or speak of its own types."""

    @pytest.mark.parametrize(
        "f", [lambda v: v.sum(), lambda v: jax.lax.all_gather(v, "data"), lambda v: jax.lax.axis_index("data")]
    )
    def test_one_output_that_differs_is_refused(self, f):
        message = (
            r"^spmd: the output differs from device to device along 'data', .*out_axes is None\. .*pmax\(x, 'data'\)"
        )
        with pytest.raises(ValueError, match=message) as caught:
            phx.spmd(f, phx.make_mesh(chain=1, data=8), in_axes="data", out_axes=None)(jnp.ones((8, 3)))
        assert "check_vma" not in str(caught.value)

    def test_the_way_out_is_one(self):
        mesh = phx.make_mesh(chain=1, data=8)
        gathered = phx.spmd(
            lambda v: jax.lax.pmax(jax.lax.all_gather(v, "data"), "data"), mesh, in_axes="data", out_axes=None
        )
        assert gathered(jnp.arange(8.0)).tolist() == list(range(8))

    def test_which_of_several_outputs(self):
        f = phx.spmd(lambda v: (jax.lax.psum(v, "data"), v), phx.make_mesh(chain=1, data=8), "data", (None, None))
        with pytest.raises(ValueError, match="^spmd: output 1 differs"):
            f(jnp.ones(8))

    def test_loops_and_branches(self):
        mesh = phx.make_mesh(chain=1, data=8)
        with pytest.raises(ValueError, match=r"jax\.lax\.pcast\(start, axis, to='varying'\)"):
            phx.spmd(lambda v: jax.lax.scan(lambda c, a: (c + a, None), 0.0, v)[0], mesh, "data", "data")(
                jnp.ones((8, 3))
            )
        with pytest.raises(TypeError, match=r"'v.sum\(\) > 0' cannot be computed.*jnp\.where"):
            phx.spmd(lambda v: 1.0 if v.sum() > 0 else 2.0, mesh, "data", "data")(jnp.ones((8, 3)))

    def test_runs_are_for_outside(self):
        def model(v):
            phx.sample("m", dist.Normal(v, 1.0))

        def run(v):
            return phx.mcmc(model, {"v": v}, progress=False).draws["m"]

        for traced in (jax.jit(run), jax.vmap(run), phx.spmd(run, phx.make_mesh(chain=1, data=8), "data", "data")):
            with pytest.raises(ValueError, match="^phx.mcmc was called inside of a function that JAX traces"):
                traced(jnp.ones(8))
        guide = phx.guides.mean_field()
        calls: list[tuple[Any, tuple[Any, ...]]] = [
            (phx.compile, ()), (phx.maximize, ()), (phx.smc, ()), (phx.fit, (guide,)),
        ]  # fmt: skip
        for call, guides in calls:
            with pytest.raises(ValueError, match=f"^phx.{call.__name__} was called inside of a function that JAX"):
                jax.jit(lambda v, call=call, guides=guides: call(model, *guides, {"v": v}))(jnp.ones(8))

    def test_sharded_is_not_for_models(self):
        def model(y):
            m = phx.sample("m", phx.Sharded(dist.Normal(0.0, 1.0), "data"))
            phx.sample("y", dist.Normal(m, 1.0), obs=y)

        with pytest.raises(ValueError, match="^Variable 'm': phx.Sharded is for code under phx.spmd .*axis='data'"):
            phx.Target(model, {"y": np.ones(8, np.float32)})
