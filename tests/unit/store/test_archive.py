"""Archives: arrays bit for bit; a file that lacks something, or is of a later version, is refused by name."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from phalanx.store.archive import Kind, read_archive, write_archive

KIND = Kind("thing", "Thing.load", "phalanx.thing", (1, 2), ("draws",))


def read(path):
    return read_archive(path, KIND, lambda parts, entries: (parts, entries["name"]))


@pytest.fixture
def path(tmp_path):
    parts = {"draws": {"x": np.arange(4, dtype=np.float32)}, "state": (1, [None, "a"])}
    return write_archive(tmp_path / "thing.npz", KIND, parts, {"name": "ä"})


def rewrite(path, **changes):
    with np.load(path) as file:
        arrays = dict(file)
    entries = json.loads(str(arrays["json"])) | changes
    arrays["json"] = np.array(json.dumps({key: value for key, value in entries.items() if value is not None}))
    np.savez(path, **arrays)


def test_archives_are_read_as_written(path):
    parts, name = read(path)
    np.testing.assert_array_equal(parts["draws"]["x"], np.arange(4, dtype=np.float32))
    assert parts["state"] == (1, [None, "a"]) and name == "ä"


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"version": 3}, "it has version 3 of the format; this release reads 1 and 2"),
        ({"version": None}, "it has version None of the format; this release reads 1 and 2"),
        ({"format": "phalanx.fit"}, "its format is 'phalanx.fit'"),
        ({"format": None}, "its format is None"),
        ({"parts": {}}, "it has no draws"),
        ({"parts": None}, "it has no draws"),
        ({"name": None}, "it has no entry 'name'"),
    ],
)
def test_a_file_of_another_kind_or_version_is_refused_by_name(path, changes, words):
    rewrite(path, **changes)
    message = f"Thing.load: {path} is not a thing saved by Phalanx, or is damaged: {words}."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        read(path)


def test_the_version_before_is_read(path):
    rewrite(path, version=1)
    assert read(path)[1] == "ä"
