"""Hostile files: manifests and archives made to mislead give the right answer or one clear error that names the file.

They are not read outside of their folder, execute nothing, take no more memory than a few times their size, and do not
make a reader wait. Random damages of sound files are tested in `test_saves.py` and `test_sealed.py`.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import shutil
import warnings
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.report.posteriors import make_posterior

import phalanx as phx
from phalanx.posterior.continuation import FromFile
from phalanx.posterior.run_folder import RunFolder
from phalanx.store import sealed

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8)
    | st.sampled_from(["../secret", "/etc/passwd", "draws-00000001.npz", ".", "", "a\0b", "x" * 300])
)  # fmt: skip
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def run_folder(folder):
    return RunFolder.of(folder, f"checkpoint={folder.name!r}")


def save(saved, count):
    posterior = make_posterior()
    draws, stats = ({n: v[:, :count] for n, v in of.items()} for of in (posterior.draws, posterior.stats))
    parts = {"reduced": {}, "warmup": {}}
    saved.write({"seed": "1"}, draws, stats, parts, posterior.timing, posterior.record, FromFile({"a": 1}))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "run"
    saved = run_folder(folder)
    with saved.saves.locked():
        for count in (10, 20, 30):
            save(saved, count)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def newest(folder):
    return max(folder.glob("save-*.json"))


def reseal(folder, change):
    """Change the entries of the newest manifest, and give it the checksum that its new entries have."""
    manifest = newest(folder)
    entries = json.loads(manifest.read_text())
    entries.pop(sealed.SEAL)
    change(entries)
    entries[sealed.SEAL] = sealed.digest_of(json.loads(json.dumps(entries)))
    manifest.write_text(json.dumps(entries))


def read(folder):
    """Return the draws in a folder, or None where it is refused in the expected way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = run_folder(folder).read()
        except ValueError as error:
            assert "'run'" in str(error) or str(folder) in str(error)
            return None
    assert found is not None
    return found[0][0]["draws"]


def test_the_sound_folder_is_read(whole):
    draws = read(whole)
    assert draws is not None
    np.testing.assert_array_equal(draws["b"], make_posterior()["b"][:, :30])


@settings(max_examples=150, deadline=None)
@given(key=st.sampled_from(["segments", "count", "run", "identity", "version", "files", "other"]), value=JSON)
def test_odd_entries_of_a_manifest_with_a_right_checksum(whole, tmp_path_factory, key, value):
    folder = shutil.copytree(whole, tmp_path_factory.mktemp("odd") / "run")
    reseal(folder, lambda entries: entries.__setitem__(key, value))
    read(folder)
    shutil.rmtree(folder.parent)


@pytest.mark.parametrize("key", ["segments", "count", "run", "identity", "version", "files"])
def test_missing_entries_of_a_manifest_with_a_right_checksum(folder, key):
    reseal(folder, lambda entries: entries.pop(key))
    draws = read(folder)
    assert draws is None or draws["b"].shape[1] == 20  # without its list of files, the save is damaged


@pytest.mark.parametrize("is_absolute", [False, True])
def test_names_that_lead_out_of_the_folder(folder, tmp_path, is_absolute):
    secret = tmp_path / "secret.npz"
    shutil.copy(folder / json.loads(newest(folder).read_text())["run"], secret)
    name = str(secret) if is_absolute else "../secret.npz"

    def change(entries):
        entries["files"][name] = sealed._digest(secret)
        entries["run"] = name

    reseal(folder, change)
    with pytest.warns(UserWarning, match="secret.npz is not a file in the folder.*the save before it is used"):
        assert run_folder(folder).read() is not None
    saved = run_folder(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        saved.read()
    for count in (30, 40, 50):  # the hostile manifest is removed, and what it lists is not
        save(saved, count)
    assert secret.exists()


def test_links_out_of_the_folder_are_not_followed(folder, tmp_path):
    file = folder / json.loads(newest(folder).read_text())["run"]
    file.rename(tmp_path / "elsewhere.npz")
    file.symlink_to(tmp_path / "elsewhere.npz")
    with pytest.warns(UserWarning, match=f"{file.name} is not a file in the folder"):
        run_folder(folder).read()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (folder / "lock").unlink()
    (folder / "lock").symlink_to(victim)
    with (
        pytest.raises(FileExistsError, match="a 'lock' that is not a file in the folder"),
        run_folder(folder).saves.locked(),
    ):
        pass
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_a_manifest_that_is_no_file_makes_nobody_wait(folder, kind):
    manifest = newest(folder)
    manifest.unlink()
    match kind:
        case "pipe":
            os.mkfifo(manifest)
        case "folder":
            manifest.mkdir()
        case _:
            manifest.symlink_to("/dev/zero")
    draws = read(folder)
    assert draws is not None and draws["b"].shape[1] == 20


def test_saves_after_one_of_a_huge_number_are_found(folder):
    newest(folder).rename(folder / "save-99999999.json")
    saved = run_folder(folder)
    assert saved.read() is not None
    save(saved, 40)
    draws = read(folder)
    assert draws is not None and draws["b"].shape[1] == 40


def test_files_that_are_removed_during_a_run_are_written_again(folder):
    saved = run_folder(folder)
    saved.read()
    for file in folder.glob("draws-*"):
        file.unlink()
    save(saved, 40)
    draws = read(folder)
    assert draws is not None
    np.testing.assert_array_equal(draws["b"], make_posterior()["b"][:, :40])


# -- archives ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def archive(tmp_path):
    return make_posterior().save(tmp_path / "posterior.npz")


def entries_of(path):
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def rewrite(path, entries, compression=zipfile.ZIP_STORED):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of two entries of one name
        with zipfile.ZipFile(path, "w", compression) as file:
            for name, content in entries:
                file.writestr(name, content)


def npy(shape, dtype="<f4"):
    """Return the header of an array, without its numbers."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


class Boom:
    def __reduce__(self):
        return os._exit, (3,)


def pickled():
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": (1,)})
    return file.getvalue() + pickle.dumps(Boom())


ARRAYS = {
    "declares 4 PB": npy((10**15,)),
    "declares 4 TB": npy((10**12,)),
    "declares 10^30": npy((10**15, 10**15)),
    "negative": npy((-1,)),
    "no bytes each": npy((10**15,), "|V0"),
    "fields": npy((1,), "i4,i4") + bytes(8),
    "a pickle": pickled(),
    "deep": b"\x93NUMPY\x01\x00\xf0\x0f" + b"(" * 0x0FF0,
    "empty": b"",
}


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def refused(path):
    before = peak()
    with pytest.raises(ValueError, match=r"posterior\.npz is not a posterior saved by .* or is damaged: ") as said:
        phx.Posterior.load(path)
    assert peak() - before < 2**27
    return str(said.value)


@pytest.mark.parametrize("content", ARRAYS.values(), ids=ARRAYS)
def test_hostile_arrays_in_an_archive(archive, content):
    entries = entries_of(archive)
    rewrite(archive, [(name, content if name == "0.npy" else whole) for name, whole in entries.items()])
    refused(archive)


def test_an_archive_that_unpacks_to_more_than_its_size(archive):
    entries = entries_of(archive)
    zeros = npy((2**26,)) + bytes(2**28)
    rewrite(archive, [*entries.items(), ("bomb.npy", zeros)], zipfile.ZIP_DEFLATED)
    assert archive.stat().st_size < 2**20
    assert "its arrays unpack to " in refused(archive)


def test_two_entries_of_one_name(archive):
    entries = entries_of(archive)
    rewrite(archive, [*entries.items(), ("0.npy", entries["1.npy"])])
    assert "it has two arrays '0'" in refused(archive)


def with_json(path, change):
    entries = entries_of(path)
    with np.load(path) as file:
        contents = json.loads(str(file["json"]))
    contents = change(contents)
    file = io.BytesIO()
    np.save(file, np.array(json.dumps(contents)))
    rewrite(path, (entries | {"json.npy": file.getvalue()}).items())


@settings(max_examples=150, deadline=None)
@given(key=st.sampled_from(["format", "version", "parts", "timing", "record", "draws", "state"]), value=JSON)
def test_odd_descriptions_in_an_archive(tmp_path_factory, key, value):
    path = make_posterior().save(tmp_path_factory.mktemp("odd") / "posterior.npz")

    def change(contents):
        if key in ("draws", "state"):
            contents["parts"][key] = value
        else:
            contents[key] = value
        return contents

    with_json(path, change)
    try:
        phx.Posterior.load(path).summary()
    except ValueError as error:
        assert str(path) in str(error)


@pytest.mark.parametrize(
    "name", ["os:system", "phalanx.cli:app", "phalanx.store.archive:os", "a b", "__import__", "x;y"]
)
def test_classes_of_records_execute_nothing(archive, name):
    record = {"namedtuple": [name, ["a"]], "items": [{"value": "touch hacked"}]}
    with_json(archive, lambda c: c | {"parts": c["parts"] | {"reduced": {"dict": {"r": record}}}})
    try:
        found = phx.Posterior.load(archive).reduced["r"]
    except ValueError as error:
        assert str(archive) in str(error)
    else:
        assert isinstance(found, tuple) and found == ("touch hacked",)
