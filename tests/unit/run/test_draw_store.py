"""Stores of draws: what is read from disk is what would be in memory, also of runs under way, lost or killed."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.run.host import draw_store
from phalanx.run.phases import store
from phalanx.store import stored_names as module_of_names
from phalanx.store import zarr_folder, zarr_reading
from phalanx.store.stored_names import LONGEST_NAME, stored_names

zarr = pytest.importorskip("zarr")
ROOT = Path(__file__).parents[3]
Y = np.array([1.0, 2.0, 4.0], np.float32)
SIZES = {"num_warmup": 60, "num_samples": 90, "seed": 5, "progress": False}


def model(y):
    mean = phx.sample("mean", dist.Normal(0.0, 5.0).expand([2]))
    scale = phx.sample("scale", dist.HalfNormal(2.0))
    phx.deterministic("part/level", mean.sum() > 0)
    phx.sample("y", dist.Normal(mean.sum(), scale), obs=y)


def run(**options):
    # No store depends on the kernel, and first trajectories of NUTS are long.
    sampler = phx.compile(model, {"y": Y}, mesh=phx.make_mesh(chain=2), num_chains=4, kernel=phx.hmc(num_steps=4))
    block_length = sampler.executables.block_length
    block_length.learn(1, 0.04)  # blocks of some ten ticks, all of them
    block_length.learn = lambda ticks, seconds: None
    return sampler.run(**{**SIZES, **options})


def assert_equal(stored, expected):
    for of in ("draws", "stats"):
        one, other = getattr(stored, of), getattr(expected, of)
        assert set(one) == set(other)
        for name in other:
            assert one[name].dtype == other[name].dtype and one[name].shape == other[name].shape
            np.testing.assert_array_equal(np.asarray(one[name]), other[name])


@pytest.fixture(scope="module")
def whole():
    return run()


INDICES = (
    1, np.s_[:, ::-2, 0], np.s_[:, 5], np.s_[..., 1], np.s_[:, 3:7, None], np.s_[::-1, :], np.s_[:, :, [0, 1]],
    np.s_[:, 80:200], np.s_[:, 7:3], np.s_[-1:, -3:, :1], np.s_[:, :, ::-1],
)  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"thin": 3}, marks=pytest.mark.slow),
        pytest.param({"num_samples": 1}, marks=pytest.mark.slow),
        pytest.param({"until": phx.until(ess=20)}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_stored_draws_are_those_of_a_run_in_memory(tmp_path, options):
    expected, stored = run(**options), run(**options, store=tmp_path / "run.zarr")
    assert_equal(stored, expected)
    opened = phx.open(tmp_path / "run.zarr")
    assert_equal(opened, expected)
    assert list(opened.draws) == list(expected.draws) and not opened.record.interrupted
    if expected.num_draws < 10:
        return
    assert opened.summary().equals(expected.summary()) and str(opened.verdict()) == str(expected.verdict())
    for posterior in (stored, opened):
        total = posterior.predict(lambda draw: draw["mean"].sum() + draw["scale"], batch_size=37)
        np.testing.assert_array_equal(total, expected.predict(lambda draw: draw["mean"].sum() + draw["scale"]))
    np.testing.assert_array_equal(opened["mean"] ** 2, expected["mean"] ** 2)
    np.testing.assert_array_equal(opened["mean"][1, 3:7], expected["mean"][1, 3:7])
    for index in INDICES:
        np.testing.assert_array_equal(opened["mean"][index], expected["mean"][index])
    with pytest.raises(IndexError):
        opened["mean"][:, :, 7]


def test_chunks_are_filled_one_after_the_other(tmp_path, monkeypatch, whole):
    monkeypatch.setattr(zarr_folder, "CHUNK_BYTES", 200)  # of 6 draws of `mean`, and 50 of a flag
    run(store=tmp_path / "run.zarr")
    assert_equal(phx.open(tmp_path / "run.zarr"), whole)
    assert len(list((tmp_path / "run.zarr/posterior/mean/c/0").iterdir())) == 15
    assert len(list((tmp_path / "run.zarr/sample_stats/diverging/c/0").iterdir())) == 2


def test_arrays_are_in_the_order_of_the_run_however_they_are_listed(tmp_path, monkeypatch):
    run(store=tmp_path / "run.zarr")
    first, listed = phx.open(tmp_path / "run.zarr"), zarr_reading.arrays_in
    monkeypatch.setattr(zarr_reading, "arrays_in", lambda group: sorted(listed(group), reverse=True))
    second = phx.open(tmp_path / "run.zarr")
    assert list(second.draws) == list(first.draws) == ["mean", "scale", "part/level"]
    assert list(second.stats) == list(first.stats)


@pytest.mark.slow
def test_a_run_under_way_is_read_and_holds_no_draws_in_memory(tmp_path, monkeypatch, whole):
    monkeypatch.setattr(draw_store, "SECONDS", 0.0)
    seen, held = [], []

    def look(report):
        if report.phase != "sampling" or report.done < 10:
            return
        time.sleep(0.05)  # for the thread
        opened = phx.open(tmp_path / "run.zarr")
        assert opened.record.interrupted  # it has not ended
        seen.append(opened.num_draws)
        for name, values in opened.draws.items():
            np.testing.assert_array_equal(np.asarray(values), whole[name][:, : opened.num_draws])
        held.append(max(values.shape[1] for values in report.so_far().continuation.saved().stored.draws.values()))

    assert_equal(run(store=tmp_path / "run.zarr", on_block=look), whole)
    assert len(set(seen)) > 2 and max(held) < 30


def test_other_programs_read_it(tmp_path, whole):
    xarray = pytest.importorskip("xarray")
    run(store=tmp_path / "run.zarr")
    tree = xarray.open_datatree(tmp_path / "run.zarr", engine="zarr", consolidated=False)
    assert tree["posterior"]["mean"].dims == ("chain", "draw", "mean_dim_0")
    np.testing.assert_array_equal(tree["posterior"]["mean"].values, whole["mean"])
    np.testing.assert_array_equal(tree["sample_stats"]["lp"].values, whole.stats["log_density"])
    assert tree["posterior"].sizes == {"chain": 4, "draw": 90, "mean_dim_0": 2}


@pytest.mark.slow
def test_a_stored_posterior_is_saved_converted_and_continued(tmp_path, whole):
    stored = run(store=tmp_path / "run.zarr")
    assert_equal(phx.Posterior.load(stored.save(tmp_path / "run.npz")), whole)
    assert_equal(stored.continue_run(20), whole.continue_run(20))
    np.testing.assert_array_equal(stored.to_dataframe(), whole.to_dataframe())
    np.testing.assert_array_equal(stored.to_arviz().posterior["mean"], whole["mean"])
    assert stored.report(tmp_path / "report.html").is_file()
    again = run(seed=6, init=stored, tuning=stored, num_warmup=0)
    assert_equal(again, run(seed=6, init=whole, tuning=whole, num_warmup=0))


class Lost(Exception):
    pass


@pytest.mark.slow
def test_a_run_that_is_lost_again_and_again_ends_with_the_same_draws(tmp_path, monkeypatch, whole):
    monkeypatch.setattr(zarr_folder, "CHUNK_BYTES", 200)
    choose = random.Random(3)
    places = {"store": tmp_path / "run.zarr", "checkpoint": phx.checkpoint(tmp_path / "run", seconds=0.0)}

    def sometimes(report):
        if choose.random() < 0.15:
            raise Lost

    for _ in range(200):
        try:
            found = run(**places, on_block=sometimes)
        except Lost:
            continue
        break
    else:
        pytest.fail("no end")
    assert_equal(found, whole)
    assert_equal(phx.open(tmp_path / "run.zarr"), whole)
    assert_equal(run(**places), whole)
    # a longer run makes room
    assert_equal(run(**places, num_samples=140), run(num_samples=140))
    with pytest.raises(ValueError, match="store is a Zarr folder there, and None here"):
        run(checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match="^store='.*' is of another run and has 20 draws .* behind 140"):
        (tmp_path / "run.zarr").rename(tmp_path / "other.zarr")
        run(store=tmp_path / "run.zarr", num_samples=20)
        run(**places, num_samples=150)


SCRIPT = """
import sys, numpy as np, phalanx as phx
phx.use_cpu_devices(2)
sys.path.insert(0, sys.argv[1])
from tests.unit.run.test_draw_store import run
from phalanx.run.host import draw_store
draw_store.SECONDS = 0.0
checkpoint = phx.checkpoint(sys.argv[2] + "/run", seconds=0.0)
places = {"store": sys.argv[2] + "/run.zarr", "checkpoint": checkpoint}
posterior = run(num_samples=400, **places, on_block=lambda report: print(report.phase, flush=True))
np.savez(sys.argv[3], **{name: np.asarray(values) for name, values in {**posterior.draws, **posterior.stats}.items()})
"""


@pytest.mark.slow
def test_kill_9(tmp_path):
    kills = 8
    choose = random.Random(kills)

    def start(folder):
        command = [sys.executable, "-c", SCRIPT, str(ROOT), str(tmp_path / folder), str(tmp_path / f"{folder}.npz")]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    assert start("whole").communicate()[0]
    for _ in range(kills):
        process = start("lost")
        assert process.stdout is not None
        for _ in range(choose.randrange(1, 25)):
            process.stdout.readline()
        time.sleep(choose.random() * 0.05)
        process.kill()
        process.communicate()
    start("lost").communicate()
    with np.load(tmp_path / "whole.npz") as whole, np.load(tmp_path / "lost.npz") as lost:
        assert set(whole) == set(lost)
        for name in whole:
            np.testing.assert_array_equal(whole[name], lost[name])


def test_a_checkpoint_continues_its_own_store_only(tmp_path):
    run(store=tmp_path / "other.zarr", seed=6)
    places = {"store": tmp_path / "run.zarr", "checkpoint": tmp_path / "run"}
    run(**places)
    with pytest.raises(ValueError, match=r"store='.*other.zarr' is of another run and has 90 draws"):
        run(**{**places, "store": tmp_path / "other.zarr"}, num_samples=120)
    assert phx.open(tmp_path / "other.zarr").num_draws == phx.open(tmp_path / "run.zarr").num_draws == 90
    with pytest.raises(ValueError, match="seed is 5 there, and 7 here"):
        run(**places, seed=7)
    assert phx.open(tmp_path / "run.zarr").num_draws == 90

    def look(report):
        opened = phx.open(tmp_path / "run.zarr")
        assert opened.record.interrupted and opened.record.num_samples == 120

    assert run(**places, num_samples=120, on_block=look).num_draws == 120
    assert not phx.open(tmp_path / "run.zarr").record.interrupted


def test_draws_that_no_save_continues_are_kept(tmp_path, whole):
    places = {"store": tmp_path / "run.zarr", "checkpoint": tmp_path / "run"}

    def press(report):
        if report.phase == "sampling":
            os.kill(os.getpid(), signal.SIGINT)

    assert run(**places, on_block=press).record.interrupted
    words = r"store='.*run.zarr' has \d+ draws of each chain of this run, .*the store is now '.*run.zarr.before"
    for options, name in ({"on_block": press}, "run.zarr.before"), ({}, "run.zarr.before-2"):
        shutil.rmtree(tmp_path / "run")
        with pytest.warns(UserWarning, match=words):
            found = run(**places, **options)
        kept = phx.open(tmp_path / name)
        assert 0 < kept.num_draws < 90 and kept.record.interrupted
        np.testing.assert_array_equal(np.asarray(kept["mean"]), whole["mean"][:, : kept.num_draws])
    assert_equal(found, whole)


def test_a_run_without_draws_leaves_no_store(tmp_path):
    def at_once(report):
        raise Lost

    with pytest.raises(Lost):
        run(store=tmp_path / "run.zarr", on_block=at_once)
    assert not (tmp_path / "run.zarr").exists()


NAMES = (
    r"$\beta$", r"$\foo$", "zarr.json", "ZARR.JSON", "..", ".", "", "a\0b", "x" * 400, "é" * 200, "a/b", "a.b", "__x",
    "s", "S", "tab\tx", "\ud800x", "%5C", "c", r"C:\x",
)  # fmt: skip


def test_variables_of_any_name_are_stored(tmp_path):
    def odd():
        for name in NAMES:
            phx.sample(name, dist.Normal(0.0, 1.0))

    sizes = {"kernel": phx.rwmh(0.5), "num_warmup": 5, "num_samples": 20, "num_chains": 2, "progress": False}
    expected = phx.mcmc(odd, **sizes, checkpoint=tmp_path / "saves")
    phx.mcmc(odd, **sizes, store=tmp_path / "run.zarr")
    for found in (phx.open(tmp_path / "run.zarr"), phx.open(tmp_path / "saves")):
        assert tuple(found.draws) == NAMES
        for name in NAMES:
            np.testing.assert_array_equal(found.draws[name], expected.draws[name])


def test_names_of_folders_differ_and_are_short():
    stored = stored_names([*NAMES, *NAMES], Path("run.zarr"))
    assert list(stored) == list(NAMES) and len(set(stored.values())) == len(NAMES)
    assert all(len(key.encode()) <= LONGEST_NAME and not set(key) & {"/", "\\", "\0"} for key in stored.values())
    assert (stored["s"], stored["S"], stored["a/b"]) == ("s", "S", "a.b")


def test_names_that_differ_by_case_have_two_folders_where_a_file_system_ignores_case(monkeypatch):
    monkeypatch.setattr(module_of_names, "_ignores_case", lambda folder: True)
    stored = stored_names(["s", "S", "t"], Path("run.zarr"))
    assert stored["s"] == "s" and stored["S"].startswith("S%") and stored["t"] == "t"


@pytest.mark.slow
def test_a_store_is_never_overwritten_and_options_are_checked(tmp_path):
    run(store=tmp_path / "run.zarr")
    for checkpoint in (None, tmp_path / "new"):
        with pytest.raises(FileExistsError, match=r"store='.*run.zarr' exists already, and a store is never"):
            run(store=tmp_path / "run.zarr", checkpoint=checkpoint)
        assert phx.open(tmp_path / "run.zarr").num_draws == 90
    with pytest.raises(TypeError, match=r"store: expected a folder, such as 'out/run.zarr'; got 3"):
        run(store=3)
    with pytest.raises(ValueError, match="is the folder of the checkpoint, too"):
        run(store=tmp_path / "a", checkpoint=tmp_path / "a")
    with pytest.raises(ValueError, match=r"store: keep=\[\] stores no draws"):
        phx.mcmc(model, {"y": Y}, keep=[], store=tmp_path / "b", reducers={"m": phx.reducers.moments()})
    with pytest.raises(ValueError, match="the variable 'draw' has the name of a dimension"):
        phx.mcmc(lambda: phx.sample("draw", dist.Normal(0.0, 1.0)), store=tmp_path / "c", **SIZES)
    assert not (tmp_path / "b").exists() and not (tmp_path / "c").exists()


def test_a_full_disk_ends_the_run_and_leaves_what_was_committed(tmp_path, monkeypatch, whole):
    monkeypatch.setattr(draw_store, "SECONDS", 0.0)
    append, calls = draw_store.ZarrFolder.append, 0

    def full(self, *arguments):
        nonlocal calls
        calls += 1
        if calls == 5:  # the blocks behind it would leave a gap
            raise OSError(errno.ENOSPC, "No space left on device")
        append(self, *arguments)

    monkeypatch.setattr(draw_store.ZarrFolder, "append", full)
    with pytest.raises(OSError, match=r"store='.*run.zarr' cannot be written \(.*No space left.*Make room on the disk"):
        run(store=tmp_path / "run.zarr")
    opened = phx.open(tmp_path / "run.zarr")
    assert 0 < opened.num_draws < 90
    np.testing.assert_array_equal(np.asarray(opened["mean"]), whole["mean"][:, : opened.num_draws])


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_draws_of_a_block_that_fails_behind_the_move_of_others_are_stored_once(tmp_path, monkeypatch, whole, error):
    """The run's state has the draws before, which the store was given: it is given them again."""
    total, calls = store.BlockTotals.of, 0

    def failing(*arguments):
        nonlocal calls
        calls += 1
        if calls == 5:
            raise error
        return total(*arguments)

    monkeypatch.setattr(store.BlockTotals, "of", failing)
    with pytest.raises(RuntimeError) if error is RuntimeError else nullcontext():
        run(store=tmp_path / "run.zarr")
    opened = phx.open(tmp_path / "run.zarr")
    assert 0 < opened.num_draws < 90
    np.testing.assert_array_equal(np.asarray(opened["mean"]), whole["mean"][:, : opened.num_draws])


def test_chains_wait_for_a_slow_disk_before_memory_grows(tmp_path, monkeypatch, whole):
    append, waiting = draw_store.ZarrFolder.append, []

    def slow(self, *arguments):
        time.sleep(0.05)
        append(self, *arguments)

    take = draw_store.DrawStore.take

    def counted(self, state):
        state = take(self, state)
        waiting.append(len(self._waiting))
        return state

    monkeypatch.setattr(draw_store.ZarrFolder, "append", slow)
    monkeypatch.setattr(draw_store.DrawStore, "take", counted)
    assert_equal(run(store=tmp_path / "run.zarr"), whole)
    assert max(waiting) <= draw_store.WAITING


def test_a_save_does_not_wait_for_the_disk(tmp_path, monkeypatch, whole):
    commit, began, released, waits = draw_store.ZarrFolder.commit, threading.Event(), threading.Event(), []

    def slow(self, *arguments, **options):
        began.set()
        waits.append(released.wait(60))
        commit(self, *arguments, **options)

    def a_later_block(report):
        if began.is_set():
            released.set()

    monkeypatch.setattr(draw_store.ZarrFolder, "commit", slow)
    places = {"store": tmp_path / "run.zarr", "checkpoint": phx.checkpoint(tmp_path / "run", seconds=0.0)}
    assert_equal(run(**places, on_block=a_later_block), whole)
    assert len(waits) > 2 and all(waits)


def test_damages_are_reported_and_never_read(tmp_path, whole):
    """Flip a byte of any file of a store: draws are the same, or an error names the array or the store."""
    run(store=tmp_path / "run.zarr")
    choose, harmless, refused = random.Random(1), 0, 0
    files = sorted(path for path in (tmp_path / "run.zarr").rglob("*") if path.is_file())
    for file in files * 3:
        was = file.read_bytes()
        if not choose.randrange(4):
            file.unlink()
        changed = bytearray(was)
        changed[choose.randrange(len(was))] ^= 1 << choose.randrange(8)
        if file.exists():
            file.write_bytes(bytes(changed) if choose.random() < 0.7 else was[: choose.randrange(len(was))])
        try:
            opened = phx.open(tmp_path / "run.zarr")
            for name in opened.draws:
                np.testing.assert_array_equal(np.asarray(opened[name]), whole[name][:, : opened.num_draws])
            harmless += 1
        except (ValueError, FileNotFoundError) as error:
            words = "damaged", "later release", "does not exist", "without a saved run"
            assert any(word in str(error) for word in words), error
            refused += 1
        finally:
            file.write_bytes(was)
    assert refused > harmless > 0
