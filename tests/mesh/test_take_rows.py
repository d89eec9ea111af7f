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


@pytest.mark.parametrize("number", [-1, 8])
def test_rows_that_there_are_not(number, mesh_of):
    mesh = mesh_of(1, 4)
    take = jax.shard_map(
        lambda x: phx.take_rows(x, [0, number]), mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec()
    )
    with pytest.raises(ValueError, match=r"rows are numbered from 0 to 7; got \[0, "):
        take(X)


def test_flags_stay_flags(mesh_of):
    mesh = mesh_of(1, 4)
    take = jax.shard_map(
        lambda x: phx.take_rows(x, [7]), mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec()
    )
    assert take(X[:, 0] > 3).dtype == bool
