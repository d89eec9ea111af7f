"""`shard` hands each device its rows and no others, and pads what does not divide."""

from __future__ import annotations

import re

import jax
import numpy as np
import pandas as pd
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import phalanx as phx
from phalanx.inputs.placement import PaddedRows, mesh_of, sharding_of
from phalanx.mesh.row_sharding import RowSharding


class Watched:
    """A memory-mapped array that remembers which rows it was asked for."""

    def __init__(self, array):
        self.array, self.asked = array, []
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim

    def __getitem__(self, rows):
        self.asked.append((rows.start, rows.stop))
        return self.array[rows]

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("the whole array was read")


@pytest.fixture
def mapped(tmp_path):
    def make(rows):
        array = np.memmap(tmp_path / "rows", np.float32, "w+", shape=(rows, 3))
        array[:] = np.arange(rows * 3).reshape(rows, 3)
        return Watched(array)

    return make


@pytest.mark.parametrize("rows, devices", [(16, 4), (16, 8), (13, 4), (13, 8), (3, 8), (1, 8)])
def test_each_device_is_handed_its_rows_only(rows, devices, mapped):
    source = mapped(rows)
    placed = phx.shard(source, phx.make_mesh(chain=1, data=devices))
    each = -(-rows // devices)
    most = max(stop - start for start, stop in source.asked if stop > start)
    assert most <= each
    assert {(r, r + 1) for start, stop in source.asked for r in range(start, stop)} == {(r, r + 1) for r in range(rows)}
    array = placed.array if isinstance(placed, PaddedRows) else placed
    assert isinstance(placed, PaddedRows) == (rows % devices != 0)
    assert [shard.data.shape for shard in array.addressable_shards] == [(each, 3)] * devices
    np.testing.assert_array_equal(np.asarray(placed), source.array)
    assert placed.shape == (rows, 3) and len(placed) == rows and placed.dtype == np.float32


def test_padded_rows_repeat_the_last():
    placed = phx.shard(np.arange(5), phx.make_mesh(chain=1, data=4))
    np.testing.assert_array_equal(placed.array, [0, 1, 2, 3, 4, 4, 4, 4])


def test_a_tree_keeps_its_structure_and_types():
    mesh = phx.make_mesh(chain=1, data=4)
    tree = {"x": [np.ones((8, 2)), np.arange(8)], "y": (np.zeros(8, np.uint8), np.ones(8, bool))}
    placed = phx.shard(tree, mesh)
    assert jax.tree.structure(placed) == jax.tree.structure(tree)
    assert [str(leaf.dtype) for leaf in jax.tree.leaves(placed)] == ["float32", "int32", "uint8", "bool"]
    assert mesh_of(placed) == mesh and mesh_of(tree) is None


def test_a_list_of_numbers_is_an_array_and_a_table_its_columns():
    mesh = phx.make_mesh(chain=1, data=2)
    np.testing.assert_array_equal(np.asarray(phx.shard([1.0, 2.0], mesh)), [1, 2])
    placed = phx.shard(pd.DataFrame({"x": [1, 2], "y": [0.5, 1.0]}), mesh)
    assert sorted(placed) == ["x", "y"] and placed["x"].dtype == np.int32 and len(placed["x"].sharding.device_set) == 2


def test_a_number_that_does_not_fit_is_counted_in_the_whole():
    rows = np.arange(10)
    rows[7] = 2**40
    with pytest.raises(ValueError, match=re.escape(f"shard: x[7] = {2**40} does not fit int32.")):
        phx.shard({"x": rows}, phx.make_mesh(chain=1, data=4))


@pytest.mark.parametrize("tree, axis, words", [
    ({"x": np.float32(1)}, "data", "shard: ['x'] is a single number and has no rows to shard over 'data'."),
    (np.zeros((0, 2)), "data", "shard: the array has shape (0, 2): there are no rows to shard over 'data'."),
    (np.zeros(4), "rows", "shard: the mesh has no axis 'rows'; its axes are chain, data, model."),
    (np.zeros(4), ("data", "rows"), "shard: the mesh has no axis 'rows'; its axes are chain, data, model."),
])  # fmt: skip
def test_arrays_that_cannot_be_sharded_are_refused(tree, axis, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.shard(tree, phx.make_mesh(chain=1, data=2), axis)


def test_where_an_array_lives_is_read_from_its_sharding():
    mesh = phx.make_mesh(chain=1, data=2, model=4)

    def spread(*spec, rows=16):
        return sharding_of(jax.device_put(np.zeros((rows, 8)), NamedSharding(mesh, PartitionSpec(*spec))))

    assert spread("data") == RowSharding(("data",), 16, 8)
    assert spread(("model", "data")) == RowSharding(("data", "model"), 16, 2)
    assert (
        spread("chain")
        == spread(None, "data")
        == spread()
        == sharding_of(np.zeros(3))
        == sharding_of("text")
        == RowSharding()
    )
    assert sharding_of(phx.shard(np.zeros(13), mesh, ("data", "model"))) == RowSharding(("data", "model"), 13, 2)


def test_padded_rows_are_a_tree():
    placed = phx.shard(np.arange(5.0), phx.make_mesh(chain=1, data=4))
    doubled = jax.tree.map(lambda leaf: 2 * leaf, placed)
    np.testing.assert_array_equal(np.asarray(doubled), 2 * np.arange(5.0))
