"""Checkpoints: each has a version; those of later releases and those that lack an entry are refused by name."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.store.checkpoint import VERSION, SealedFolder
from phalanx.store.sealed import seal

TREE = {"w": np.arange(3.0, dtype=np.float32), "none": np.zeros((2, 0), np.float32), "n": np.int32(7)}


@pytest.fixture
def folder(tmp_path):
    made = SealedFolder(tmp_path / "there", "index.json", "the folder", "Take a copy.", ("step", "looks"))
    made.write({"last": TREE}, {"step": 3, "looks": [[1, 2.0]]})
    return made


def rewrite(folder, **changes):
    """Write the index anew, with these entries, or without those that are None; and seal it."""
    entries = {key: value for key, value in json.loads((folder.path / folder.index).read_text()).items()}
    entries = {key: value for key, value in {**entries, **changes}.items() if value is not None}
    entries = {key: value for key, value in entries.items() if key not in ("files", "seal")}
    (folder.path / folder.index).write_text(seal(entries, folder.path, ["last"]))


@pytest.mark.parametrize("like", [np.zeros_like, jnp.zeros_like])
def test_what_was_written_is_read(folder, like):
    assert folder.read() == {"step": 3, "looks": [[1, 2.0]]}
    found = folder.restore("last", {name: like(leaf) for name, leaf in TREE.items()})
    for name, leaf in TREE.items():
        np.testing.assert_array_equal(found[name], leaf)
        assert found[name].dtype == leaf.dtype


def test_a_folder_of_a_release_without_versions_is_read(folder):
    before = folder.read()
    rewrite(folder, version=None)
    assert "version" not in json.loads((folder.path / folder.index).read_text())
    assert folder.read() == before


@pytest.mark.parametrize("version", [VERSION + 1, "two"])
def test_a_later_version_is_refused_by_name(folder, version):
    rewrite(folder, version=version)
    with pytest.raises(ValueError, match=r"^the folder was saved by a later release of Phalanx: its index\.json has"):
        folder.read()


def test_an_entry_that_is_missing_is_named(folder):
    rewrite(folder, step=None, looks=None)
    with pytest.raises(ValueError, match=r"^the folder is damaged: its index\.json has no entry 'step', 'looks'\."):
        folder.read()


def test_a_state_that_is_not_whole_is_refused(folder):
    with pytest.raises(ValueError, match=r"^the folder cannot be read: last: .*Take a copy\.$"):
        folder.restore("last", {**TREE, "zz": np.ones(2)})
    with pytest.raises(ValueError, match=r"^the folder cannot be read: first: "):
        folder.restore("first", TREE)
