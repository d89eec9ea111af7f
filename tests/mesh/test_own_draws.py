"""Each of several processes holds, writes and saves the draws of its own chains; together they find what one finds."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jax.experimental import multihost_utils
from tests.mesh import own_draws
from tests.mesh.own_draws import DEVICES, SCENARIOS

import phalanx as phx
from phalanx.mesh import processes
from phalanx.mesh.chains import HeldChains
from phalanx.posterior.run_folder import file_of, read_draws, write_draws
from phalanx.posterior.together import GatheredArray
from phalanx.store import zarr_folder
from phalanx.store.zarr_folder import OwnedChains

zarr = pytest.importorskip("zarr")
SCRIPT = Path(__file__).parent / "own_draws.py"
ROOT = SCRIPT.parents[2]


def start(folder: Path, count: int, *names: str, wait: float = 0.0) -> list[subprocess.Popen[str]]:
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "WAIT": str(wait)}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [str(count), str(port), str(folder), *names]
    commands = ([sys.executable, str(SCRIPT), str(number), *arguments] for number in range(count))
    return [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) for command in commands]


def run(folder: Path, count: int, *names: str) -> list[dict[str, dict[str, np.ndarray]]]:
    """Return what each of so many processes found, by scenario."""
    for process in start(folder, count, *names):
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors[-3000:]
    return [{n: dict(np.load(folder / f"{n}-{number}.npz")) for n in names} for number in range(count)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two processes, and what each found."""
    folder = tmp_path_factory.mktemp("pair")
    return folder, run(folder, 2, "whole", "stored", "saved", "exchanged")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process finds."""
    folder, mesh = tmp_path_factory.mktemp("alone"), phx.make_mesh(chain=DEVICES)
    return folder, {name: SCENARIOS[name](mesh, folder) for name in ("whole", "stored", "saved")}


def equal(one, other):
    assert set(one) == set(other)
    for name in other:
        assert one[name].dtype == other[name].dtype
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.slow
def test_each_process_holds_its_chains_and_finds_what_one_finds(pair, alone):
    _, expected = alone
    for number, found in enumerate(one["whole"] for one in pair[1]):
        chains = np.arange(4) + 4 * number
        np.testing.assert_array_equal(found.pop("chains"), chains)
        assert "8 chains x 60 draws of" in str(found["shown"])
        assert str(found.pop("shown")).endswith("this process holds 4 chains)")
        for name in [name for name in found if name.startswith("own ")]:
            own = found.pop(name)
            np.testing.assert_array_equal(own, expected["whole"][name][chains], err_msg=name)
        equal(found, {name: values for name, values in expected["whole"].items()
                      if name not in ("chains", "shown") and not name.startswith("own ")})  # fmt: skip


@pytest.mark.slow
def test_files_that_one_of_two_writes_are_those_of_one_process(pair, alone):
    (two, _), (one, _) = pair, alone
    a, b = (phx.Posterior.load(folder / "saved.npz") for folder in (two, one))
    equal(own_draws.arrays_of(a), own_draws.arrays_of(b))
    for path in ("chains", "tuning", "stored"):
        assert str(getattr(a.state, path)) == str(getattr(b.state, path))


@pytest.mark.slow
def test_a_store_of_two_is_that_of_one_and_each_writes_its_own_chunks(pair, alone):
    import xarray

    (two, found), (one, expected) = pair, alone
    for other in found:
        equal(other["stored"], expected["stored"])
    a, b = (phx.open(folder / "run.zarr") for folder in (two, one))
    equal(own_draws.arrays_of(a), own_draws.arrays_of(b))
    for group in ("posterior", "warmup_posterior"):
        arrays = [zarr.open_array(folder / "run.zarr" / group / "mean", mode="r") for folder in (two, one)]
        assert [array.chunks[0] for array in arrays] == [4, 8]
    for group in ("posterior", "sample_stats", "warmup_posterior", "warmup_sample_stats"):
        trees = [xarray.open_datatree(folder / "run.zarr", engine="zarr", consolidated=False) for folder in (two, one)]
        assert trees[0][group].dataset.equals(trees[1][group].dataset)
        assert trees[0][group].sizes["draw"] == (12 if group.startswith("warmup") else 60)


@pytest.mark.slow
def test_a_checkpoint_of_two_is_continued_by_one(pair, alone, monkeypatch):
    (two, found), (_, expected) = pair, alone
    for other in found:
        equal(other["saved"], expected["saved"])
    manifest = json.loads(max((two / "saves").glob("save-*.json")).read_text())
    for of in ("segments", "warm_up"):
        assert {(tuple(map(tuple, entry[2]))) for entry in manifest[of]} == {((0, 4),), ((4, 8),)}
        assert all((two / "saves" / entry[0]).is_file() for entry in manifest[of])
    assert len(manifest["warm_up"]) == 2 and len(manifest["segments"]) <= 2 * 6  # of some 30 saves
    mesh = phx.make_mesh(chain=DEVICES)
    equal(SCENARIOS["saved"](mesh, two), expected["saved"])  # complete, so that it is read
    monkeypatch.setitem(own_draws.SIZES, "num_samples", 90)
    equal(SCENARIOS["saved"](mesh, two), own_draws.arrays_of(own_draws.run(mesh)))


@pytest.mark.slow
def test_a_block_exchanges_no_draws(pair):
    for found in pair[1]:
        # ticks, draws of each chain, four totals of each process, and Ctrl-C; at the end of a run a few more
        assert len(found["exchanged"]["bytes"]) > 1
        assert found["exchanged"]["bytes"].max() <= 4 * DEVICES + 4 * 8 + 2 * 32 + 2 * 8


@pytest.mark.slow
def test_runs_from_other_runs_and_streams(tmp_path):
    expected = SCENARIOS["others"](phx.make_mesh(chain=DEVICES), tmp_path)
    for found in (one["others"] for one in run(tmp_path, 4, "others")):
        chains = found.pop("chains")
        np.testing.assert_array_equal(found.pop("own streamed"), expected["own streamed"][chains])
        equal(found, {name: values for name, values in expected.items() if name not in ("chains", "own streamed")})


@pytest.mark.slow
@pytest.mark.parametrize("before, after", [(2, 1), (2, 4)])
def test_other_processes_continue_a_run_that_was_killed(tmp_path, before, after):
    mesh = phx.make_mesh(chain=DEVICES)
    expected = {name: SCENARIOS[name](mesh, tmp_path / "whole") for name in ("stored", "saved")}
    for name, folder in (("saved", "saves"), ("stored", "of-store")):
        place = tmp_path / name
        processes = start(place, before, name, wait=0.3)
        while not list((place / folder).glob("save-*[4-9].json")):
            assert all(process.poll() is None for process in processes)
            time.sleep(0.05)
        for process in processes:
            process.kill()
            process.communicate()
        for found in run(place, after, name):
            equal(found[name], expected[name])
    equal(own_draws.arrays_of(phx.open(tmp_path / "stored" / "run.zarr")), expected["stored"])


# -- places, without processes -----------------------------------------------------------------------------------------


def test_chains_that_processes_hold_and_own():
    held = HeldChains(((0, 1), (0, 1), (2, 3), (2, 3)), 8, 1)  # rows of a chain in two processes
    assert held.is_shared and not held.is_whole and held.unit == 4
    np.testing.assert_array_equal(held.numbers, [0, 1, 2, 3])
    assert not held.writes.any() and held.owned_runs == ()
    assert HeldChains(held.holders, 8, 2).owned_runs == (slice(4, 8),)
    apart = HeldChains(((0,), (1,), (1,), (0,)), 8, 0)
    np.testing.assert_array_equal(apart.numbers, [0, 1, 6, 7])
    assert apart.owned_runs == (slice(0, 2), slice(6, 8)) and apart.unit == 2
    np.testing.assert_array_equal(apart.part(np.arange(16).reshape(8, 2))[:, 0], [0, 2, 12, 14])
    over_rows = HeldChains(((0, 1),), 4, 1)
    assert over_rows.is_whole and over_rows.owned.all() and over_rows.owned_runs == ()


def in_threads(monkeypatch, count, find):
    """Return what `find(number)` finds in threads that exchange arrays as processes do."""
    barrier, sent, found, own = threading.Barrier(count, timeout=30), [None] * count, [None] * count, threading.local()

    def gather(part):
        sent[own.number] = part
        barrier.wait()
        together = np.stack(sent)
        barrier.wait()
        return together

    def run_as(number):
        own.number = number
        found[number] = find(number)

    monkeypatch.setattr(multihost_utils, "process_allgather", gather)
    threads = [threading.Thread(target=run_as, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


HOLDERS = [((0,), (1,)), ((0, 1), (0, 1), (2, 3), (2, 3)), ((0,), (1,), (1,), (0,)), ((1,), (0,), (2,), (2,))]


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.bool_])
@pytest.mark.parametrize("holders", HOLDERS, ids=str)
def test_chains_are_gathered_bit_for_bit(holders, dtype, monkeypatch):
    count, whole = 1 + max(map(max, holders)), (10 * np.random.default_rng(0).normal(size=(8, 5, 3))).astype(dtype)
    monkeypatch.setattr(processes, "EXCHANGED_BYTES", 64 * count)  # in several pieces

    def find(number):
        held = HeldChains(holders, 8, number)
        own = held.part(whole)
        array: Any = GatheredArray(own, held)
        assert array.shape == whole.shape and array.size == whole.size
        parts = held.gathered(own[:, :0]), held.gathered(own), array[2:7, 1:3], array[:, ::2, 0], array[3]
        return parts, held.total(np.array(own[held.owned].sum(dtype=np.int64)))

    for parts, total in in_threads(monkeypatch, count, find):
        expected = whole[:, :0], whole, whole[2:7, 1:3], whole[:, ::2, 0], whole[3]
        for part, one in zip(parts, expected, strict=True):
            assert part.dtype == dtype
            np.testing.assert_array_equal(part, one)
        assert total == whole.sum(dtype=np.int64)


@pytest.mark.parametrize("after", HOLDERS, ids=str)
@pytest.mark.parametrize("before", [*HOLDERS, ((0,),)], ids=str)
def test_files_of_draws_are_read_by_other_processes(before, after, tmp_path):
    whole = {"x": np.random.default_rng(0).normal(size=(8, 7, 2))}
    entries: list[Any] = []
    for save, (first, count) in enumerate([(0, 3), (3, 4), (4, 7)]):
        for number in range(1 + max(map(max, before))):
            held = HeldChains(before, 8, number) if len(before) > 1 else None
            own = {n: (v if held is None else held.part(v))[:, :count] for n, v in whole.items()}
            entries += write_draws(tmp_path, f"draws-{save}", first, own, {"lp": own["x"][:, :, 0]}, held)
    entries = json.loads(json.dumps(entries))
    assert all((tmp_path / file_of(entry)).is_file() for entry in entries)
    for number in range(1 + max(map(max, after))):
        held = HeldChains(after, 8, number)
        found = read_draws(tmp_path, entries, held)
        np.testing.assert_array_equal(found["draws"]["x"], held.part(whole["x"]))
        np.testing.assert_array_equal(found["stats"]["lp"], held.part(whole["x"])[:, :, 0])
    np.testing.assert_array_equal(read_draws(tmp_path, entries, None)["draws"]["x"], whole["x"])
    if len(before) > 1:
        with pytest.raises(ValueError, match="draws"):
            read_draws(tmp_path, entries[1:], None)


HOSTILE = [
    ["draws.npz", 0, [[0, 10**15]]], ["draws.npz", 10**15, [[0, 8]]], ["draws.npz", 0, [[10**15, 10**15 + 8]]],
    ["draws.npz", 0, [[0, 4]]], ["draws.npz", 1, [[0, 8]]],
]  # fmt: skip


@pytest.mark.parametrize("entry", HOSTILE, ids=str)
@pytest.mark.parametrize("held", [None, HeldChains(((0,), (1,)), 8, 1)], ids=["all", "some"])
def test_entries_that_claim_other_draws_are_refused(entry, held, tmp_path):
    ((name, *_),) = write_draws(tmp_path, "draws-1", 0, {"x": np.zeros((8, 3))}, {"lp": np.zeros((8, 3))}, None)
    (tmp_path / name).rename(tmp_path / "draws.npz")
    with pytest.raises(ValueError, match="draws|chains"):
        read_draws(tmp_path, [entry], held)


ODD = [
    1, None, [], ["a", 0], ["a", -1, [[0, 4]]], ["a", 0, [[4, 0]]], ["a", 0, [[0]]], ["a", 0, []], [1, 0, [[0, 4]]],
    ["a", 0, [[0, "b"]]], ["a", 0, {}],
]  # fmt: skip


@pytest.mark.parametrize("entry", ODD, ids=str)
def test_odd_entries_name_no_file(entry):
    assert file_of(entry) == ""


def test_chunks_of_a_store_have_one_writer(monkeypatch):
    def owned(*holders, process=0):
        return OwnedChains(HeldChains(holders, 12, process))

    def shape(*holders):
        return owned(*holders).chunk((12, 1000, 3), 8)

    assert shape((0,)) == (12, 1000, 3)
    assert shape((0,), (1,)) == (6, 1000, 3)
    assert shape((0,), (1,), (1,), (0,)) == (3, 1000, 3)
    monkeypatch.setattr(zarr_folder, "CHUNK_BYTES", 4 * 24)  # four chains of one draw
    assert shape((0,)) == (4, 1, 3) and shape((0,), (1,)) == (3, 1, 3)
    first, second = owned((0,), (1,)), owned((0,), (1,), process=1)
    assert (first.numbers(3), second.numbers(3)) == ([0, 1], [2, 3])
    assert not second.fitting({6, 2}).at_first
    shared = second.fitting({12})
    assert shared.at_first and shared.runs == (slice(0, 12),)  # of the first process, which this one is
