"""Trees of arrays in folders: what was written is read, and a leftover of an interrupted write is replaced."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.learning.checkpoint import read_tree, write_tree

TREE = {"w": np.arange(3.0, dtype=np.float32), "none": np.zeros((2, 0), np.float32), "n": np.int32(7)}


@pytest.mark.parametrize("like", [np.zeros_like, jnp.zeros_like])
def test_trees_are_read_as_written(tmp_path, like):
    (tmp_path / "last").mkdir()
    (tmp_path / "last" / "half").write_text("of a write")
    write_tree(tmp_path / "last", TREE)
    found = read_tree(tmp_path / "last", {name: like(leaf) for name, leaf in TREE.items()})
    assert not (tmp_path / "last" / "half").exists()
    for name, leaf in TREE.items():
        np.testing.assert_array_equal(found[name], leaf)
        assert found[name].dtype == leaf.dtype
