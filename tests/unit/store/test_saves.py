"""Folders of saves: whatever happens to a write or to a file, the newest complete save is read, or nothing is."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.store import save_path
from phalanx.store.saves import BackgroundWriter, Saves


def saves_in(folder):
    return Saves(folder, f"checkpoint={folder.name!r}", "run")


def content(number):
    return np.random.default_rng(number).bytes(50 + number)


def write_to(path, data):
    with save_path.replacing(path) as partial:
        partial.write_bytes(data)


def save(saves, number):
    """Write a save of which one file grows and one is new, as that of a run."""
    before = [f"part-{i}" for i in range(number)]
    new = {f"part-{number}": number, f"state-{number}": 1000 + number}
    files = {name: lambda path, i=i: write_to(path, content(i)) for name, i in new.items()}
    saves.write(files, {"number": number, "parts": [*before, f"part-{number}"]}, before)


def check(folder, entries):
    number = entries["number"]
    assert (folder / f"state-{number}").read_bytes() == content(1000 + number)
    assert [(folder / name).read_bytes() for name in entries["parts"]] == [content(i) for i in range(number + 1)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saves")
    saves = saves_in(folder)
    with saves.locked():
        for number in range(4):
            save(saves, number)
    return folder


def test_the_last_two_saves_are_kept_and_the_newest_is_read(folder):
    entries = saves_in(folder).newest()
    assert entries is not None and entries["number"] == 3
    check(folder, entries)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["lock", *(f"part-{i}" for i in range(4)), "save-00000003.json", "save-00000004.json", "state-2",
                     "state-3"]  # fmt: skip


@pytest.mark.parametrize("at", range(1, 12))
def test_a_write_that_fails_anywhere_leaves_the_save_before(folder, tmp_path, monkeypatch, at):
    copy = shutil.copytree(folder, tmp_path / "copy")
    saves, calls, real = saves_in(copy), [], save_path.sync
    assert saves.newest()

    def full(path):
        calls.append(path)
        if len(calls) == at:
            raise OSError(28, "No space left on device")
        real(path)

    monkeypatch.setattr(save_path, "sync", full)
    failed = False
    try:
        save(saves, 4)
    except OSError:
        failed = True
    monkeypatch.undo()
    again = saves_in(copy)
    entries = again.newest()
    # once the manifest has its name the save exists, though its name may not be on the disk yet
    assert entries is not None and entries["number"] == (3 if failed and at < 6 else 4) and failed == (at <= 6)
    check(copy, entries)
    for number in range(entries["number"] + 1, 6):
        save(again, number)
    entries = saves_in(copy).newest()
    assert entries is not None and entries["number"] == 5
    check(copy, entries)
    assert not list(copy.glob(".*partial"))


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_flipped_and_truncated_files_are_found(folder, tmp_path_factory, data):
    copy = shutil.copytree(folder, tmp_path_factory.mktemp("damaged") / "copy")
    file = copy / data.draw(st.sampled_from(sorted(p.name for p in folder.iterdir() if p.name != "lock")))
    whole = file.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        file.write_bytes(whole[:place])
    else:
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << data.draw(st.integers(0, 7))]) + whole[place + 1 :])
    saves = saves_in(copy)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            entries = saves.newest()
        except ValueError as error:
            assert "is damaged" in str(error) and file.name in str(error)  # a file of both saves
            return
    assert entries is not None
    check(copy, entries)
    if entries["number"] == 2:
        assert len(said) == 1 and file.name in str(said[0].message) and "the save before it is used" in str(said[0])
    save(saves, entries["number"] + 1)
    again = saves_in(copy).newest()
    assert again is not None
    check(copy, again)


def test_folders_of_others_are_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("all of it")
    with (
        pytest.raises(FileExistsError, match="exists and holds no run, so it is left alone"),
        saves_in(tmp_path / "mine").locked(),
    ):
        pass
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
    for path in (tmp_path / "mine" / "thesis.tex", tmp_path / "mine" / "thesis.tex" / "run"):
        with pytest.raises(FileExistsError, match="thesis.tex' is a file"), saves_in(path).locked():
            pass


def _try_to_lock(folder, results):
    try:
        with saves_in(Path(folder)).locked():
            results.put("locked")
    except ValueError as error:
        results.put(str(error))


def test_two_processes_do_not_write_to_one_folder(tmp_path):
    context = multiprocessing.get_context("spawn")
    with saves_in(tmp_path / "run").locked():
        results = context.Queue()
        other = context.Process(target=_try_to_lock, args=(str(tmp_path / "run"), results))
        other.start()
        assert "another process writes a run to it" in results.get(timeout=60)
        other.join()


def test_a_later_format_is_refused(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    saves = saves_in(copy)
    saves.newest()
    saves.write({}, {"number": 9, "version": 2}, [])
    with pytest.raises(ValueError, match=r"later release of Phalanx: save-00000005.json has version 2"):
        saves_in(copy).newest()


def test_files_of_the_user_stay(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "notes.txt").write_text("keep me")
    saves = saves_in(copy)
    saves.newest()
    for number in range(4, 8):
        save(saves, number)
    assert (copy / "notes.txt").read_text() == "keep me"
    assert len(list(copy.glob("state-*"))) == len(list(copy.glob("save-*.json"))) == 2


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF])
def test_a_file_system_without_locks_is_written_to_with_a_warning(tmp_path, monkeypatch, code):
    def flock(opened, operation):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    saves = saves_in(tmp_path / "saves")
    words = rf"^checkpoint='saves' is on a file system that cannot lock it \({os.strerror(code)}\), so that two .* one"
    with pytest.warns(UserWarning, match=words), saves.locked():
        save(saves, 0)
    check(tmp_path / "saves", saves_in(tmp_path / "saves").newest())


@pytest.mark.parametrize("code, of_files", [
    (errno.EINVAL, False), (errno.EINVAL, True), (errno.ENOSYS, True), (errno.EOPNOTSUPP, True), (errno.EBADF, False),
    (errno.EACCES, False),
])  # fmt: skip
def test_a_file_system_without_syncs_is_written_to(tmp_path, monkeypatch, code, of_files):
    fsync = os.fsync

    def refuse(opened):
        if of_files or Path(f"/proc/self/fd/{opened}").resolve().is_dir():
            raise OSError(code, os.strerror(code))
        fsync(opened)

    monkeypatch.setattr(os, "fsync", refuse)
    saves = saves_in(tmp_path / "saves")
    with saves.locked():
        save(saves, 0)
    check(tmp_path / "saves", saves_in(tmp_path / "saves").newest())


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EACCES])
def test_a_file_that_does_not_reach_the_disk_is_an_error(tmp_path, monkeypatch, code):
    def refuse(opened):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    saves = saves_in(tmp_path / "saves")
    with saves.locked(), pytest.raises(OSError, match=os.strerror(code)):
        save(saves, 0)


def test_a_failure_of_the_first_save_does_not_speak_of_a_save_before(tmp_path):
    writer = BackgroundWriter(tmp_path / "saves", "checkpoint='saves'", "run")
    failure = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    (tmp_path / "saves").mkdir()
    for words in (
        "there is no save before it, and the run continues. Make room",
        "the save before it is unharmed, and",
    ):
        with pytest.warns(UserWarning, match=rf"^checkpoint='saves': a save failed \(.*No space left.*\); {words}"):
            writer.report(failure)
        save(saves_in(tmp_path / "saves"), 0)
    shutil.rmtree(tmp_path / "saves")
    with pytest.warns(UserWarning, match="the folder and its saves are gone, and the run continues. Make the folder"):
        writer.report(failure)
