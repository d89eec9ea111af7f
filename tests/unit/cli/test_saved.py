"""`phalanx summary`, `report`, `watch` and `resume` of stores and checkpoints, of runs that have ended or go on."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpyro.distributions as dist
import pytest
from tests.slow import with_slow

import phalanx as phx

pytest.importorskip("zarr")
Y = np.array([1.0, 2.0, 4.0], np.float32)
SIZES = {"num_chains": 4, "num_warmup": 40, "num_samples": 60, "kernel": phx.hmc(3), "seed": 5, "progress": False}
PLACES = {
    "checkpoint": {"checkpoint": "saves"},
    "store": {"store": "run.zarr"},
    "store and checkpoint": {"store": "run.zarr", "checkpoint": "saves"},
}
LONG = {"checkpoint", "store and checkpoint"}


def model(y):
    mean = phx.sample("mean", dist.Normal(0.0, 5.0).expand([2]))
    phx.sample("y", dist.Normal(mean.sum(), 1.0), obs=y)


def run(folder, on_block=None, **places):
    """Draw in short blocks, and save after each; permanent saves are made though another one is under way."""
    sampler = phx.compile(model, {"y": Y}, kernel=SIZES["kernel"], num_chains=SIZES["num_chains"])
    block_length = sampler.executables.block_length
    block_length.learn(1, 0.04)
    block_length.learn = lambda ticks, seconds: None
    sizes = {name: value for name, value in SIZES.items() if name not in ("kernel", "num_chains")}
    places = {what: folder / place for what, place in places.items()}
    if "checkpoint" in places:
        places["checkpoint"] = phx.checkpoint(places["checkpoint"], seconds=0.0, every=10)
    return sampler.run(**sizes, **places, on_block=on_block)


@pytest.fixture(scope="module", params=with_slow([*PLACES], LONG))
def ended(request, tmp_path_factory):
    """Folder of a run that has ended, the path that has its draws, and the run."""
    folder = tmp_path_factory.mktemp("ended")
    places = PLACES[request.param]
    return folder / places.get("store", "saves"), run(folder, **places)


def test_a_run_that_has_ended(phalanx, ended):
    path, posterior = ended
    status, out, err = phalanx("summary", str(path))
    assert status == 0 and "mean[1]" in out and str(posterior.verdict().headline) in out, err
    status, out, err = phalanx("watch", str(path))
    assert status == 0 and out.startswith("4 chains x 60 draws; largest R-hat ") and out.endswith("complete\n"), err
    assert phalanx("report", str(path), "--quiet")[0] == 0
    assert "mean[1]" in Path("report.html").read_text("utf-8")


@pytest.mark.parametrize("places", with_slow(PLACES, LONG))
def test_a_run_that_goes_on(phalanx, tmp_path, monkeypatch, places):
    path, seen = tmp_path / places.get("store", "saves"), []
    monkeypatch.setattr("phalanx.run.host.draw_store.SECONDS", 0.0)

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("phalanx.cli.saved.time", SimpleNamespace(sleep=interrupt))

    def look(report):
        if report.phase == "warm-up":
            seen.append(phalanx("watch", str(path)))
        elif report.done > 20 and seen[-1] != "sampling":
            saved, until = phx.open(path), time.monotonic() + 60.0
            while not saved.num_draws and time.monotonic() < until:
                saved = phx.open(path)
            assert saved.record.interrupted and saved.num_draws < 60
            seen.extend([phalanx("watch", str(path)), phalanx("summary", str(path)), "sampling"])

    run(tmp_path, look, **places)
    begun, (watched, line, _), (status, table, err), _ = seen[0], *seen[-3:]
    assert begun[:2] == (130, "no draws yet\n")
    assert watched == 130 and line.startswith("4 chains x ") and line.endswith("; in progress\n")
    assert status == 0 and "mean[1]" in table, err


@pytest.mark.parametrize("command", [pytest.param("summary", marks=pytest.mark.slow), "report", "watch"])
def test_checkpoints_whose_draws_are_elsewhere(phalanx, tmp_path, command):
    run(tmp_path, **PLACES["store and checkpoint"])
    status, _, err = phalanx(command, "saves")
    assert status == 2 and "'saves' has no draws: they are in the store of its run. Give the folder of store=." in err
    for _ in phx.stream(model, {"y": Y}, checkpoint=tmp_path / "stream", **SIZES):
        pass
    status, _, err = phalanx(command, "stream")
    assert status == 2 and "'stream' has no draws: phx.stream passes them on to its caller." in err


def test_draws_that_were_reduced_are_counted(phalanx, tmp_path):
    sizes = {**SIZES, "keep": [], "reducers": {"m": phx.reducers.moments()}}
    phx.mcmc(model, {"y": Y}, checkpoint=tmp_path / "saves", **sizes)
    assert phalanx("watch", "saves")[:2] == (0, "4 chains x 60 draws; 0 divergences; complete\n")


MODEL = """
import numpyro.distributions as dist
import phalanx as phx


def coin():
    phx.sample("p", dist.Beta(2.0, 2.0))
"""
COMMAND = ("sample", "coin.py:coin", "--kernel", "hmc", "--warmup", "50", "--draws", "40", "--quiet")


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--checkpoint",), ("--checkpoint", "--store")], ids=["memory", "store"])
def test_a_command_that_is_interrupted_is_watched_and_resumed(phalanx, tmp_path, monkeypatch, options):
    (tmp_path / "coin.py").write_text(MODEL)
    sample = import_module("phalanx.cli.sample")
    monkeypatch.setattr(sample, "write_folder", lambda *arguments, **given: [])  # pictures take long
    assert phalanx(*COMMAND, "--out", "whole")[0] == 0
    mcmc, folder = sample.mcmc, tmp_path / "out" / "coin"

    def interrupted(*arguments, **given):
        def stop(report):
            if report.phase == "sampling":
                raise RuntimeError("lost")

        return mcmc(*arguments, **given, on_block=stop)

    monkeypatch.setattr(sample, "mcmc", interrupted)
    assert phalanx(*COMMAND, *options)[0] == 2
    monkeypatch.setattr(sample, "mcmc", mcmc)
    for place in ("checkpoint", *(["run.zarr"] if "--store" in options else []), "."):
        status, _, err = phalanx("resume", str(folder / place))
        assert status == 0, err
        for path in (folder, folder / ("run.zarr" if "--store" in options else "checkpoint")):
            status, out, err = phalanx("watch", str(path))
            assert status == 0 and out.startswith("4 chains x 40 draws; ") and out.endswith("complete\n"), err
            assert phalanx("summary", str(path))[0] == 0
    found = phx.open(folder / ("run.zarr" if "--store" in options else "posterior.npz"))
    np.testing.assert_array_equal(np.asarray(found["p"]), phx.open(tmp_path / "whole" / "posterior.npz")["p"])


def test_runs_of_scripts_are_not_resumed_by_the_command(phalanx, tmp_path):
    run(tmp_path, **PLACES["store and checkpoint"])
    for path in ("saves", "run.zarr", "."):
        status, _, err = phalanx("resume", path)
        assert status == 2 and "is not the folder of a run of phalanx sample --checkpoint" in err
