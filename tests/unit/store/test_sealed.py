"""Folders whose index seals them: any damage is one clear error that names the folder, or changes nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest

from phalanx.store.sealed import seal, unseal


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "deep" / "one").write_bytes(bytes(range(200)))
    (tmp_path / "a" / "two").write_bytes(b"")
    record = {"step": 3, "loss": float("nan"), "rate": 0.1, "name": "ä", "nested": {"list": [1, (2, 3)]}}
    (tmp_path / "index.json").write_text(seal(record, tmp_path, ["a"]), encoding="utf-8")
    return tmp_path


def read(folder):
    return unseal("the folder", folder, "index.json", "Take a copy.")


def test_sealed_records_are_read_as_written(folder):
    found = read(folder)
    assert found["step"] == 3 and np.isnan(found["loss"]) and found["nested"] == {"list": [1, [2, 3]]}
    assert set(found) == {"step", "loss", "rate", "name", "nested"}


def test_each_byte_counts(folder):
    """A flipped bit in any byte of the index is refused, or leaves what it says as it was."""
    index, whole = folder / "index.json", (folder / "index.json").read_bytes()
    before, refused = json.dumps(read(folder)), 0
    for place in range(len(whole)):
        for bit in (0, 5):
            index.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << bit)]) + whole[place + 1 :])
            try:
                after = read(folder)
            except ValueError as error:
                refused += 1
                assert str(error).startswith("the folder is damaged: ") and str(error).endswith("Take a copy.")
            else:
                after.pop("files", None)  # of a seal whose name is another
                assert {k: after[k] for k in json.loads(before)} == json.loads(before) or "loss" in after
    assert refused > len(whole)


@pytest.mark.parametrize("length", [0, 1, 40, -2])
def test_an_index_that_was_cut_short(folder, length):
    index = folder / "index.json"
    index.write_bytes(index.read_bytes()[:length])
    with pytest.raises(ValueError, match=r"the folder is damaged: its index\.json is not (?:a )?JSON"):
        read(folder)


@pytest.mark.parametrize("text", ["[1, 2]", "3", "null", "[" * 100_000])
def test_an_index_of_another_kind(folder, text):
    (folder / "index.json").write_text(text)
    with pytest.raises(ValueError, match=r"the folder is damaged: its index\.json is not (?:a )?JSON"):
        read(folder)


def test_files_that_are_lost_or_changed(folder):
    (folder / "a" / "two").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"damaged: the file a/two does not have the checksum that index\.json holds"):
        read(folder)
    (folder / "a" / "two").unlink()
    with pytest.raises(ValueError, match="damaged: the file a/two is missing"):
        read(folder)
