"""Faults inside a run: what the user sees of regions without a density, stuck chains, full memory and failing disks."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import threading
import time
import warnings
from functools import partial

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.errors import JaxRuntimeError
from tests.unit.run.test_checkpoint import assert_equal, run

import phalanx as phx
from phalanx.posterior.run_folder import RunFolder
from phalanx.run.compile import memory_estimate
from phalanx.run.compile.memory_estimate import MemoryPlan, check_plan

at_once = partial(phx.checkpoint, seconds=0.0)

# -- densities ---------------------------------------------------------------------------------------------------------

HOLES = {
    "a gradient that is NaN": lambda x: jnp.where(x > 1.0, jnp.sqrt(jnp.where(x > 1.0, 0.0 * x, 1.0)) - 1.0, 0.0),
    "a density that is NaN": lambda x: jnp.where(x > 1.0, jnp.nan, 0.0),
    "a density of zero": lambda x: jnp.where(x > 1.0, -jnp.inf, 0.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("hole", HOLES.values(), ids=HOLES)
def test_regions_without_a_density_are_not_entered_and_said(hole):
    def holey():
        x = phx.sample("x", dist.Normal(0.0, 1.0))
        phx.factor("hole", hole(x))

    found = phx.mcmc(holey, num_chains=4, num_warmup=100, num_samples=100, progress=False)
    assert np.isfinite(found["x"]).all() and found["x"].max() <= 1.0
    verdict = str(found.verdict())
    assert found.stats["diverging"].any() and found.verdict().grade == "not good"
    assert re.search(
        r"draws diverged .* the sampler could not follow the density there, and a part of it may be", verdict
    )


def test_a_chain_that_is_stuck_is_named():
    def walled():
        x = phx.sample("x", dist.Normal(0.0, 1.0).expand([2]))
        phx.factor("rough", -jnp.where(x[0] > 20.0, 1e6 * jnp.abs(jnp.sin(1e4 * x[1])), 0.0))

    starts = {"x": np.array([[0, 0], [0, 0], [50.0, 0.3], [0, 0]], np.float32)}
    kernel = phx.hmc(num_steps=5, step_size=0.3)
    sizes = {"num_chains": 4, "num_warmup": 0, "num_samples": 150, "progress": False}
    verdict = str(phx.mcmc(walled, kernel=kernel, init=starts, **sizes).verdict())
    assert "near 50 in chain 2" in verdict and "of the draws, in chain 2)" in verdict
    assert "Hardly a proposal is accepted in chain 2 (least: 0.0%)" in verdict


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "placed, words",
    [(2**30, "about 12 chains of 64 on each device would fit"),
     (2**32, r"not even one chain, of 256 MiB, fits beside the data of 4.0 GiB")],
)  # fmt: skip
def test_a_run_too_large_for_a_device_says_before_it_what_would_fit(placed, words):
    plan = MemoryPlan(placed + 2**34, placed, {}, 1, 1, 64, 2**32, False)
    with pytest.raises(ValueError, match=rf"^This run needs .* on each device, which has 4.0 GiB; {words}"):
        check_plan(plan)


def test_the_memory_of_a_host_is_that_of_its_own_devices():
    plan = MemoryPlan(3 * 2**20, 2**20, {"x": 2**20}, 8, 2, 64, None, True)
    assert plan.here == 2**20 + 2 * 2 * 2**20
    assert str(plan) == "memory: 3 MiB on each of 8 devices, 1 MiB for draws"


def test_a_device_that_runs_out_of_memory_says_what_would_fit(tmp_path, monkeypatch):
    def exhausted(report):
        if report.phase == "sampling":
            monkeypatch.setattr(memory_estimate, "free_memory", lambda: 2**30)
            raise JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes.\nA trace")

    words = (
        r"A device has no memory left: RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes. The run was es"
    )
    with pytest.raises(ValueError, match=rf"^{words}.* chains of 2 on each device would fit"):
        run(checkpoint=at_once(tmp_path / "run"), on_block=exhausted)
    monkeypatch.undo()
    assert_equal(run(checkpoint=at_once(tmp_path / "run")), run())  # the run so far was saved


# -- disks -------------------------------------------------------------------------------------------------------------


def folder_is_lost(folder):
    folder.rename(folder.with_name("moved"))


def file_in_its_place(folder):
    folder_is_lost(folder)
    folder.write_text("")


@pytest.mark.parametrize("harm", [folder_is_lost, pytest.param(file_in_its_place, marks=pytest.mark.slow)])
def test_a_folder_that_is_lost_during_a_run_is_said_and_loses_no_draw(tmp_path, harm):
    folder, harmed = tmp_path / "run", []

    def at_some_time(report):
        if report.phase == "sampling" and report.done > 5 and not harmed:
            harmed.append(harm(folder))

    with pytest.warns(
        UserWarning, match=r"a save failed \(.*the folder and its saves are gone, and the run .*Make the"
    ):
        found = run(checkpoint=at_once(folder), on_block=at_some_time)
    assert_equal(found, run())


def test_a_folder_that_comes_back_gets_all_draws(tmp_path):
    folder, seen = tmp_path / "run", []

    def away_for_a_while(report):
        seen.append(report.phase)
        if seen.count("sampling") == 2:
            folder_is_lost(folder)
        if seen.count("sampling") == 4:
            folder.mkdir()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = run(checkpoint=at_once(folder), on_block=away_for_a_while)
    assert_equal(run(checkpoint=at_once(folder)), found)
    np.testing.assert_array_equal(phx.Posterior.load(folder)["mean"], found["mean"])


def test_a_disk_that_is_full_within_a_file_leaves_the_save_before(tmp_path, monkeypatch):
    folder, savez, calls = tmp_path / "run", np.savez, []

    def full_after_some(file, **arrays):
        calls.append(file)
        if len(calls) > 6:
            file.write(b"PK\3\4 and a part of the rest")
            raise OSError(28, "No space left on device")
        savez(file, **arrays)

    monkeypatch.setattr(np, "savez", full_after_some)
    with pytest.warns(UserWarning, match=r"a save failed \(.*No space left.*the run continues. Make room on the disk"):
        found = run(checkpoint=at_once(folder))
    monkeypatch.undo()
    assert not list(folder.glob(".*partial"))
    assert_equal(run(checkpoint=at_once(folder)), found)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 400 KiB, where one may be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no disk may be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_disk_that_fills_up_and_has_room_again(small_disk):
    filler, phases = small_disk / "filler", []

    def fill_until_a_save_has_failed(report):
        phases.append(report.phase)
        if phases.count("sampling") == 2:
            with contextlib.suppress(OSError):
                filler.write_bytes(bytes(2**20))
        if warned:
            filler.unlink(missing_ok=True)

    words = "a save failed .*No space left on device.* Make room on the disk"
    with pytest.warns(UserWarning, match=words) as warned:
        found = run(checkpoint=at_once(small_disk / "run"), on_block=fill_until_a_save_has_failed)
    filler.unlink(missing_ok=True)  # only the last save, for which the run waits, may have failed
    assert_equal(found, run())
    assert_equal(run(checkpoint=at_once(small_disk / "run")), found)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_loses_its_write_permission(tmp_path):
    folder = tmp_path / "run"
    with pytest.warns(UserWarning, match=r"a save failed \(.*Permission denied.*restore the right to write"):
        found = run(checkpoint=at_once(folder), on_block=lambda report: folder.chmod(0o500))
    folder.chmod(0o700)
    assert_equal(run(checkpoint=at_once(folder)), found)


def test_a_slow_disk_makes_one_save_at_a_time_and_the_run_goes_on(tmp_path, monkeypatch):
    write, under_way, most, writes, blocks = RunFolder.write, [], [], [], []

    def slow(self, *arguments):
        under_way.append(1)
        most.append(len(under_way))
        time.sleep(0.5)
        write(self, *arguments)
        under_way.pop()
        writes.append(len(blocks))

    monkeypatch.setattr(RunFolder, "write", slow)
    found = run(checkpoint=at_once(tmp_path / "run"), on_block=lambda report: blocks.append(len(writes)))
    assert max(most) == 1 and threading.active_count() < 20
    assert blocks.count(0) > 5  # during the first save
    assert len(writes) < len(blocks) / 2  # no posterior waits for a save but the last
    assert_equal(found, run())
