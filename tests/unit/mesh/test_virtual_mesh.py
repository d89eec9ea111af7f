"""Programs traced inside `shard_map`, or without its mesh in context."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from phalanx.mesh.virtual_mesh import retry_without_mesh


@jax.custom_vjp
def doubled(x):
    """Return twice x, with a gradient that, as those of Equinox's loops, cannot be traced with a mesh in context."""
    return 2.0 * x


def doubled_backward(_, along):
    if not jax.sharding.get_abstract_mesh().empty:
        raise ValueError("called with different arguments to the example arguments provided")
    return (2.0 * along,)


doubled.defvjp(lambda x: (2.0 * x, None), doubled_backward)


def on_devices(f, *arrays):
    mesh = jax.make_mesh((2,), ("chain",), axis_types=(jax.sharding.AxisType.Auto,))
    chains = PartitionSpec("chain")
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=chains, out_specs=chains, check_vma=False))(*arrays)


def test_a_gradient_that_no_mesh_may_surround_is_computed():
    def lanes(x, scale):
        def one(x):
            total = retry_without_mesh(
                jax.value_and_grad(lambda x: jnp.sum(doubled(x) * scale[0]) * jax.lax.psum(1.0, "chain"))
            )
            return total(x)

        return jax.vmap(one)(x)

    value, slope = on_devices(lanes, jnp.arange(6.0).reshape(2, 3), jnp.array([1.0, 10.0]))
    assert value.tolist() == [12.0, 480.0]
    assert slope.tolist() == [[4.0] * 3, [40.0] * 3]


def test_the_error_of_a_program_that_fails_either_way_is_its_first():
    def fails(x):
        raise ValueError("a mesh is there" if not jax.sharding.get_abstract_mesh().empty else "no mesh is there")

    with pytest.raises(ValueError, match="a mesh is there"):
        on_devices(retry_without_mesh(fails), jnp.arange(2.0))
