"""Single rows of what is spread: the same on every device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import phalanx as phx

X = np.arange(24, dtype=np.float32).reshape(8, 3)


@pytest.mark.parametrize(
    "sizes, axes", [((1, 4), "data"), ((2, 2), "data"), ((1, 2, 2), ("data", "model")), ((1, 1), "data")]
)
def test_rows_of_any_device(sizes, axes, mesh_of):
    mesh = mesh_of(*sizes)
    numbers = [0, 5, 7, 5]
    take = jax.shard_map(
        lambda x: phx.take_rows(x, numbers, axes), mesh=mesh, in_specs=PartitionSpec(axes), out_specs=PartitionSpec()
    )
    np.testing.assert_array_equal(jax.jit(take)(X), X[numbers])
    first = jax.shard_map(
        lambda x: phx.take_rows(x[:, 0], jnp.asarray([3]), axes), mesh=mesh, in_specs=PartitionSpec(axes),
        out_specs=PartitionSpec(),
    )  # fmt: skip
    np.testing.assert_array_equal(jax.jit(first)(X), [9.0])


def test_numbers_are_counted_from_zero():
    with pytest.raises(ValueError, match="counted from 0"):
        phx.take_rows(jnp.ones(3), [-1])
