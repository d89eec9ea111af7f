"""Files of draws in a checkpoint: few of them after any number of saves, and whole whenever a process is killed."""

from __future__ import annotations

import math
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from tests.unit.report.posteriors import make_posterior

from phalanx.mesh.chains import HeldChains
from phalanx.posterior import run_folder
from phalanx.posterior.continuation import FromFile
from phalanx.posterior.run_folder import NextSave, RunFolder, Together
from phalanx.store import save_path

POSTERIOR = make_posterior()
X = np.random.default_rng(0).normal(size=(4, 1000))


def folder_at(path):
    return RunFolder.of(path, f"checkpoint={path.name!r}")


def arrays_of(count, held=None):
    """Return the first draws of each chain, their statistics, and those of warm-up, which are the first 7."""
    x = X if held is None else held.part(X)
    of_warmup = {"warmup_draws": {"x": x[:, :7]}, "warmup_stats": {"lp": x[:, :7] ** 2}}
    return {"x": x[:, :count]}, {"lp": x[:, :count] ** 2}, {"reduced": {}, "warmup": {}, **of_warmup}


def save(folder, count, at=None, together=None, held=None):
    run = POSTERIOR.timing, POSTERIOR.record, FromFile({"a": 1})
    folder.write({"seed": "1"}, *arrays_of(count, held), *run, at, together)


def draws_in(folder):
    """Return the number of draws of each chain, all of which are those that were saved."""
    found = folder.read()
    assert found is not None
    parts = found[0][0]
    count = parts["draws"]["x"].shape[1]
    np.testing.assert_array_equal(parts["draws"]["x"], X[:, :count])
    np.testing.assert_array_equal(parts["stats"]["lp"], X[:, :count] ** 2)
    np.testing.assert_array_equal(parts["warmup_draws"]["x"], X[:, :7])
    return count


def files(path):
    return sorted(path.glob("draws-*"))


@pytest.fixture
def quick(monkeypatch):
    """Let no write wait for the disk."""
    monkeypatch.setattr(save_path, "sync", lambda path: None)


@pytest.mark.parametrize("longest", [1, 12])
def test_files_stay_few_and_draws_are_seldom_written_again(tmp_path, quick, monkeypatch, longest):
    written, write = [], run_folder.write_archive

    def counted(file, kind, parts, entries):
        written.append(parts["stats"]["lp"].shape[1])
        return write(file, kind, parts, entries)

    monkeypatch.setattr(run_folder, "write_archive", counted)
    choose, folder, count, saves = np.random.default_rng(longest), folder_at(tmp_path / "run"), 0, 0
    (tmp_path / "run").mkdir()
    while count < 60:
        count, saves = count + int(choose.integers(1, longest, endpoint=True)), saves + 1
        if saves % 7 == 0:
            folder = folder_at(tmp_path / "run")  # in another process
            folder.read()
        save(folder, count)
        assert len(folder.segments) <= 1 + math.log2(count)
        assert len(files(tmp_path / "run")) <= 2 * (1 + math.log2(count))  # with those of the save before
    assert saves >= 8 and sum(written) <= count * (1 + math.log(count, 1.5))
    assert draws_in(folder) == count


class Killed(BaseException):
    pass


def test_a_process_that_is_killed_between_any_two_operations_leaves_a_save(tmp_path, monkeypatch, quick):
    (tmp_path / "run").mkdir()
    for count in range(1, 8):
        save(folder_at_save(tmp_path / "run"), count)
    left = [0]

    def until_killed(operation):
        def counted(*arguments, **options):
            left[0] -= 1
            if left[0] <= 0:  # a process that is killed does nothing more
                raise Killed
            return operation(*arguments, **options)

        return counted

    outcomes, place = [], 0
    while not outcomes or outcomes[-1] != "ended":
        place += 1
        copy = shutil.copytree(tmp_path / "run", tmp_path / f"copy-{place}")
        folder = folder_at_save(copy)
        assert len(folder.segments) == 3 and folder.next(8).first == 0  # the next save merges all
        with monkeypatch.context() as patch:
            left[0] = place
            for name in ("replace", "unlink", "write_text", "open"):
                patch.setattr(Path, name, until_killed(getattr(Path, name)))
            patch.setattr(save_path, "sync", until_killed(save_path.sync))
            try:
                save(folder, 8)
                outcomes.append("ended")
            except Killed:
                outcomes.append("killed")
        count = draws_in(again := folder_at(copy))
        outcomes[-1] += f" at {count}" if outcomes[-1] == "killed" else ""
        for later in range(count + 1, 11):
            save(again, later)
        assert draws_in(folder_at(copy)) == 10
        assert not list(copy.glob(".*partial")) and len(list(copy.glob("save-*"))) == 2
    assert outcomes == sorted(outcomes, key=["killed at 7", "killed at 8", "ended"].index)
    assert outcomes.count("killed at 7") > 10 and outcomes.count("killed at 8") > 2


def folder_at_save(path):
    """Return the folder as a process finds it that continues the run."""
    folder = folder_at(path)
    folder.read()
    return folder


def test_permanent_saves_share_their_files_with_later_ones(tmp_path, quick):
    folder = folder_at(tmp_path)
    for count in range(1, 41):
        save(folder, count, at=count if count % 10 == 0 else None)
    found = {int(path.stem.rpartition("-")[2]): path for path in tmp_path.glob("save-*-at-*.json")}
    assert set(found) == {10, 20, 30, 40}
    for count, manifest in found.items():
        (parts, *_), _ = run_folder.read_saved(manifest)
        np.testing.assert_array_equal(parts["draws"]["x"], X[:, :count])
    needed = folder.saves.contents_of(found.values()) & {path.name for path in files(tmp_path)}
    lengths = [np.load(tmp_path / name)["0"].shape[1] for name in needed]
    assert sum(lengths) == 40 and len(needed) <= 4 * 4  # each draw is there once


def test_a_disk_without_room_to_merge_gets_the_next_draws(tmp_path, monkeypatch):
    folder, limit = folder_at(tmp_path), [10**9]

    def sync(path):
        if sum(file.stat().st_size for file in tmp_path.iterdir()) > limit[0]:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(save_path, "sync", sync)
    for count in (200, 300, 350):
        save(folder, count)
    limit[0] = sum(file.stat().st_size for file in tmp_path.iterdir()) + 20_000
    with pytest.raises(OSError, match="No space"):
        save(folder, 400)
    assert draws_in(folder_at(tmp_path)) == 350
    save(folder, 401)
    assert draws_in(folder_at(tmp_path)) == 401
    limit[0] = 10**9
    save(folder, 460)
    assert draws_in(folder_at(tmp_path)) == 460 and len(folder.segments) == 1


def test_a_reader_finds_the_newest_save_though_files_are_removed_meanwhile(tmp_path, monkeypatch, quick):
    folder = folder_at(tmp_path)
    for count in range(1, 5):
        save(folder, count, at=1 if count == 1 else None)
    for module, name in ((run_folder, "read_posterior"), (run_folder.Saves, "entries_of")):
        later, read = iter(range(folder.count + 1, folder.count + 4)), getattr(module, name)

        def meanwhile(*arguments, later=later, read=read):
            for count in later:
                save(folder, count)
            return read(*arguments)

        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("error")
            patch.setattr(module, name, meanwhile)
            assert draws_in(folder_at(tmp_path)) == folder.count


def test_processes_merge_the_files_of_others_with_other_chains(tmp_path, quick):
    """Each of two, then each of three processes, writes the draws of its own chains; then a single one does."""
    count = 0
    for holders in (((0,), (1,)), ((0,), (1,), (2,), (2,)), ((0,),)):
        held = [HeldChains(holders, 4, number) for number in range(1 + max(map(max, holders)))]
        folders = [folder_at(tmp_path) for _ in held]
        before = [folder.read(one) for folder, one in zip(folders, held, strict=True)]
        for one, found in zip(held, before, strict=True):
            assert found is None or found[0][0]["draws"]["x"].shape == (len(one.numbers), count)
        for _ in range(5):
            count += 3
            save_together(folders[0], count, held)
        assert draws_in(folder_at(tmp_path)) == count
        assert len({first for _, first, _ in folders[0].segments}) <= 4
    assert len({entry[0] for entry in folders[0].warm_up}) == 2  # written once


def save_together(folder, count, held):
    """Save as so many processes, each with the chains that it holds."""
    following = folder.next(count)

    def others():
        return [following.write_draws(folder.saves.folder, *arrays_of(count, one), one) for one in held[1:]]

    save(folder, count, together=Together(held[0], following, others), held=held[0])


def test_a_save_without_new_draws_writes_none(tmp_path, quick):
    folder = folder_at(tmp_path)
    for _ in range(3):
        save(folder, 10)
    assert len(files(tmp_path)) == 1 and folder.next(10) == NextSave(4, 10, True)
