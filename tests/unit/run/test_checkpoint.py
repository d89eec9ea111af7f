"""Checkpoints of runs: the same call continues a run that was lost at any moment, and ends with the same draws."""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from tests.unit.report.posteriors import make_posterior

import phalanx as phx
from phalanx.mesh.chains import HeldChains
from phalanx.mesh.failure import AgreedExit, AgreedInterrupt
from phalanx.mesh.interrupts import Interrupts
from phalanx.run import checkpoint as module
from phalanx.run.compile import executable_cache
from phalanx.store.policy import SavePolicy
from phalanx.store.saves import Saves

ROOT = Path(__file__).parents[3]
Y = np.array([1.0, 2.0, 4.0], np.float32)
KERNEL = phx.hmc(num_steps=4)  # no save depends on the kernel; first trajectories of NUTS are long
SIZES = {
    "num_chains": 4, "num_warmup": 60, "num_samples": 90, "thin": 2, "seed": 5, "progress": False, "kernel": KERNEL,
}  # fmt: skip
KINDS = {
    "stored": {},
    "reduced": {"keep": [], "reducers": {"m": phx.reducers.moments(), "r": phx.reducers.reservoir(7)}},
    "until": {"until": phx.until(ess=30), "num_samples": 4000},
}


def model(y):
    mean = phx.sample("mean", dist.Normal(0.0, 5.0).expand([2]))
    scale = phx.sample("scale", dist.HalfNormal(2.0))
    phx.sample("y", dist.Normal(mean.sum(), scale), obs=y)


def run(kind="stored", **options):
    sizes = {**SIZES, **KINDS[kind], **options}
    compiled = {name: sizes.pop(name) for name in ("num_chains", "keep", "reducers", "kernel") if name in sizes}
    sampler = phx.compile(model, {"y": Y}, mesh=phx.make_mesh(chain=2), **compiled)
    block_length = sampler.executables.block_length
    block_length.learn(1, 0.04)  # blocks of some ten ticks, all of them
    block_length.learn = lambda ticks, seconds: None
    return sampler.run(**sizes)


def arrays_of(posterior):
    return jax.tree.leaves((posterior.draws, posterior.stats, posterior.reduced, posterior.warmup))


def assert_equal(a, b):
    for one, other in zip(arrays_of(a), arrays_of(b), strict=True):
        np.testing.assert_array_equal(one, other)
    assert a.timing.gradient_evaluations == b.timing.gradient_evaluations


@pytest.fixture(scope="module", params=KINDS)
def whole(request):
    return request.param, run(request.param)


def always(monkeypatch, seconds=0.0):
    """Save after every block, or after so many seconds."""
    monkeypatch.setattr(SavePolicy, "of", lambda given, of=SavePolicy.of: replaced(of(given), seconds))


def replaced(policy, seconds):
    return None if policy is None else dataclasses.replace(policy, seconds=seconds)


class Lost(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("every", [0.0, pytest.param(0.02, marks=pytest.mark.slow)])
def test_a_run_that_is_lost_again_and_again_ends_with_the_same_draws(whole, tmp_path, monkeypatch, every):
    kind, expected = whole
    always(monkeypatch, every)
    blocks, choose = 0, random.Random(3)

    def sometimes(report):
        nonlocal blocks
        blocks += 1
        if choose.random() < 0.3:
            raise Lost

    for _ in range(200):
        try:
            found = run(kind, checkpoint=tmp_path / "run", on_block=sometimes)
        except Lost:
            continue
        break
    else:
        pytest.fail("no end")
    assert blocks > 5
    assert_equal(found, expected)
    # the folder of a run that has ended returns it; a longer run goes on from there
    assert_equal(run(kind, checkpoint=tmp_path / "run"), expected)


@pytest.mark.slow
def test_a_longer_run_goes_on_from_one_that_has_ended(tmp_path):
    run(checkpoint=tmp_path / "run")
    assert_equal(run(checkpoint=tmp_path / "run", num_samples=140), run(num_samples=140))
    with pytest.raises(ValueError, match=r"it has made 140 iterations, and num_samples=20 are asked for"):
        run(checkpoint=tmp_path / "run", num_samples=20)


OTHER = {
    "seed": ({"seed": 6}, "seed is 5 there, and 6 here"),
    "warm-up": ({"num_warmup": 61}, "num_warmup is 60 there, and 61 here"),
    "thin": ({"thin": 3}, "thin is 2 there, and 3 here"),
    "chains": ({"num_chains": 8}, "num_chains is 4 there, and 8 here"),
    "kernel": (
        {"kernel": phx.hmc(num_steps=3)},
        r"kernel is hmc\(num_steps=4.*\) there, and hmc\(num_steps=3.*\) here",
    ),
    "init": ({"init": {"scale": 1.0}}, "init is random there"),
    "keep": ({"keep": ["mean"]}, "of 'mean', 'scale'; this sampler was compiled for 4 chains of 'mean'"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes, words",
    [pytest.param(*case, marks=[] if name in ("seed", "keep") else pytest.mark.slow) for name, case in OTHER.items()],
    ids=OTHER,
)
def test_another_run_is_refused_with_both_values(tmp_path, changes, words):
    run(checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match=rf"checkpoint='.*run' holds another run: .*{words}"):
        run(checkpoint=tmp_path / "run", **changes)


@pytest.mark.slow
def test_other_data_models_and_releases_are_refused(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    run(checkpoint=folder)

    def again(program=model, y=Y):
        sizes = {name: value for name, value in SIZES.items() if name != "num_chains"}
        return phx.mcmc(program, {"y": y}, num_chains=4, checkpoint=folder, **sizes)

    with pytest.raises(ValueError, match="the content of y differs"):
        again(y=Y + np.float32(1e-6))
    with pytest.raises(ValueError, match=r"data 'y' is float32 \(3,\) there, and float32 \(2,\) here"):
        again(y=Y[:2])

    def other(y):
        mean = phx.sample("mean", dist.Normal(0.0, 5.5).expand([2]))
        scale = phx.sample("scale", dist.HalfNormal(2.0))
        phx.sample("y", dist.Normal(mean.sum(), scale), obs=y)

    other.__name__ = "model"
    with pytest.raises(ValueError, match=r"the trace of the model differs \(its code, or a value that it reads\)"):
        again(other)
    with monkeypatch.context() as patch:
        patch.setattr(executable_cache, "trace_words", lambda *_: {})  # as earlier releases save
        with pytest.raises(ValueError, match="the posterior's log density was"):
            again(other)
    versions = {name: "0" for name in module.LIBRARIES}
    monkeypatch.setattr("phalanx.run.describe._version", lambda name: versions.get(name, "1"))
    with pytest.raises(ValueError, match=r"the release of jax is [\d.]+ there, and 0 here"):
        again()


@pytest.mark.parametrize(
    "error, is_saved", [(SystemExit(3), False), (KeyboardInterrupt(), False), (AgreedExit(143), True),
                        (AgreedInterrupt(), True)],
)  # fmt: skip
def test_one_of_several_processes_does_not_save_where_it_leaves_alone(tmp_path, monkeypatch, error, is_saved):
    """To fetch the run it would wait for the others."""
    saved = []
    monkeypatch.setattr(module.RunCheckpoint, "end", lambda self, posterior: saved.append(posterior))
    checkpoint = module.RunCheckpoint(phx.checkpoint(tmp_path / "run"), HeldChains(((0,),), 4))
    monkeypatch.setattr("jax.process_count", lambda: 2)
    under_way: Any = SimpleNamespace(can_continue=True, so_far=make_posterior, interrupts=Interrupts())
    with pytest.raises(type(error)), checkpoint.after_an_error(under_way):
        raise error
    assert bool(saved) == is_saved


class Opaque:
    """Results that no file can hold."""


@pytest.mark.slow
def test_results_that_cannot_be_saved_do_not_lose_the_run(tmp_path):
    mean = phx.reducers.moments()
    opaque = dataclasses.replace(mean, finalize=lambda state: Opaque())
    with pytest.warns(UserWarning, match=r"a save failed \(save: .*Opaque, which cannot be saved"):
        found = run(checkpoint=tmp_path / "run", reducers={"opaque": opaque})
    assert found.num_draws == 45 and isinstance(found.reduced["opaque"]["mean"], Opaque)


@pytest.mark.slow
def test_another_reducer_of_the_same_name_is_refused(tmp_path):
    first, other = (phx.reducers.histogram(np.linspace(-5.0, end, 11)) for end in (5.0, 6.0))
    run(checkpoint=tmp_path / "run", reducers={"h": first})
    with pytest.raises(ValueError, match=r"reducer 'h' is histogram\(10 bins from -5.0 to 5.0\) there, and histogram"):
        run(checkpoint=tmp_path / "run", reducers={"h": other})


SMALL = {"num_warmup": 10, "num_chains": 2, "progress": False, "kernel": phx.rwmh(1.0)}


def of_scale(scale=5.0, power=2):
    def model():
        x = phx.sample("x", dist.Normal(0.0, scale))
        phx.deterministic("z", x**power)

    return model


def reducing(power):
    return phx.reduce(lambda values: values["x"] ** power, phx.reducers.moments())


def walking(scale):
    def walk(key, at, target, tuning):
        position = at.position + scale * tuning.step_size * target.normal(key)
        there = phx.kernels.Point(position, *target.value_and_grad(position))
        change = at.log_density - there.log_density
        return phx.kernels.decide(target.uniform(key), at, there, -at.log_density, change, num_steps=1)

    return phx.from_draw(walk, target_acceptance=0.4)


@pytest.mark.slow
def test_a_kernel_that_differs_a_little_is_refused(tmp_path):
    def run(scale):
        return phx.mcmc(of_scale(), **{**SMALL, "kernel": walking(scale)}, num_samples=20, checkpoint=tmp_path / "run")

    for _ in range(2):
        run(1.0)
    with pytest.raises(ValueError, match="holds another run: the trace of the kernel differs"):
        run(1.01)


@pytest.mark.slow
@pytest.mark.parametrize("call", [phx.mcmc, lambda *given, **options: list(phx.stream(*given, **options))])
def test_models_and_reducers_that_differ_a_little_are_refused(tmp_path, call):
    """The log density, to a tolerance, and the words of a reducer are equal."""

    def run(model, power=1, num_samples=20):
        reducers = {"m": reducing(power)}
        return call(model, reducers=reducers, checkpoint=tmp_path / "run", num_samples=num_samples, **SMALL)

    run(of_scale())
    for model in of_scale(5.01), of_scale(power=3):
        with pytest.raises(ValueError, match="holds another run: the trace of the model differs"):
            run(model)
    with pytest.raises(ValueError, match="holds another run: the trace of the reducer 'm' differs"):
        run(of_scale(), power=2)
    run(of_scale(), num_samples=30)


def test_a_save_without_traces_is_continued(tmp_path, monkeypatch):
    def run(num_samples):
        return phx.mcmc(of_scale(), checkpoint=tmp_path / "run", num_samples=num_samples, **SMALL)

    with monkeypatch.context() as patch:
        patch.setattr(executable_cache, "trace_words", lambda *_: {})  # as earlier releases save
        run(20)
    assert run(30).num_draws == 30


def test_a_save_with_the_identity_of_an_earlier_release_is_refused_and_loaded(tmp_path):
    run(checkpoint=tmp_path / "run")
    saves = Saves(tmp_path / "run", "", "run")
    entries = saves.newest()
    assert entries is not None
    saves.write({}, {**entries, "identity": {"the release of phalanx": "0.1.0", "seed": "0"}}, [*saves.contents])
    with pytest.raises(ValueError, match=r"was saved by Phalanx 0\.1\.0, .* Install that release, or name"):
        run(checkpoint=tmp_path / "run")
    assert phx.Posterior.load(tmp_path / "run").num_draws == 45


@pytest.mark.slow
def test_another_tuning_is_refused(tmp_path):
    tuned = [run(seed=seed, num_samples=2) for seed in (1, 2)]
    run(checkpoint=tmp_path / "run", tuning=tuned[0])
    with pytest.raises(ValueError, match="the content of tuning differs"):
        run(checkpoint=tmp_path / "run", tuning=tuned[1])


@pytest.mark.slow
def test_a_loaded_run_knows_its_data(tmp_path):
    run(checkpoint=tmp_path / "run")
    sampler = phx.compile(model, {"y": Y + np.float32(1e-6)}, kernel=KERNEL, num_chains=4)
    with pytest.raises(ValueError, match="data: y differs"):
        sampler.continue_run(phx.Posterior.load(tmp_path / "run"), 10, progress=False)


@pytest.mark.slow
def test_a_damaged_folder_is_refused_or_the_save_before_is_used(tmp_path, monkeypatch):
    always(monkeypatch)
    offer = module.RunCheckpoint.offer

    def offer_to_an_idle_disk(self, report):
        self._writer.wait()
        offer(self, report)

    monkeypatch.setattr(module.RunCheckpoint, "offer", offer_to_an_idle_disk)
    expected = run(checkpoint=tmp_path / "run")
    names = sorted(path.name for path in (tmp_path / "run").iterdir() if path.name != "lock")
    outcomes = set()
    for number, name in enumerate(names):
        copy = shutil.copytree(tmp_path / "run", tmp_path / str(number))
        file = copy / name
        file.write_bytes(file.read_bytes()[:-3])
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                assert_equal(run(checkpoint=copy), expected)
                outcomes.add(any(name in str(warning.message) for warning in said))
            except ValueError as error:
                assert name in str(error) and "is damaged" in str(error)
                outcomes.add("refused")
    assert outcomes >= {True, "refused"}


def test_on_another_number_of_devices_and_from_a_posterior(tmp_path, monkeypatch, mesh_of):
    always(monkeypatch)
    blocks = []

    def stop(report):
        blocks.append(report)
        if report.phase == "sampling":
            raise Lost

    def on(chains, **options):
        sizes = {name: value for name, value in SIZES.items() if name != "num_chains"}
        return phx.mcmc(
            model, {"y": Y}, num_chains=4, mesh=mesh_of(chains, 1), checkpoint=tmp_path / "run", **sizes, **options
        )

    with pytest.raises(Lost):
        on(4, on_block=stop)
    found, expected = on(2), run()
    np.testing.assert_allclose(found["mean"], expected["mean"], rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_reported_and_the_run_ends(tmp_path, monkeypatch):
    always(monkeypatch)

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("phalanx.store.save_path.sync", full)
    with pytest.warns(UserWarning, match=r"a save failed \(.*No space left.*the run continues"):
        found = run(checkpoint=tmp_path / "run")
    assert_equal(found, run())
    assert not list((tmp_path / "run").glob("*.partial"))


@pytest.mark.slow
def test_saves_do_not_wait_for_a_slow_disk(tmp_path, monkeypatch):
    always(monkeypatch)
    monkeypatch.setattr("phalanx.store.save_path.sync", lambda path: time.sleep(0.3))
    ended = []
    run(checkpoint=tmp_path / "run", on_block=lambda report: ended.append(time.monotonic()))
    assert len(ended) > 20 and np.median(np.diff(ended)) < 0.3
    assert threading.active_count() < 20


SCRIPT = """
import sys
import phalanx as phx
from tests.unit.run.test_checkpoint import run
def on_block(report):
    print(report.phase, report.done, flush=True)
phx.use_cpu_devices(8)
found = run(sys.argv[2], checkpoint=phx.checkpoint(sys.argv[1], seconds=0.05), on_block=on_block)
found.save(sys.argv[1] + ".npz")
"""


def killed(folder, kind, kill, seconds):
    """Run in a process that gets a signal after some seconds; return its exit status."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), kind], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()  # the first block has ended
    time.sleep(seconds)
    process.send_signal(kill)
    _, stderr = process.communicate(timeout=300)
    return process.returncode, stderr


@pytest.mark.slow  # a short version is in `test_kills`
@pytest.mark.parametrize("kind, kills", [("reduced", 20), ("stored", 40)])
def test_kill_9(tmp_path, kind, kills):
    choose, tried = random.Random(kills), 0
    while not (tmp_path / "run.npz").exists() and tried < kills:
        status, stderr = killed(tmp_path / "run", kind, signal.SIGKILL, choose.random() * 0.5)
        assert status in (-signal.SIGKILL, 0), stderr
        tried += 1
    assert_equal(run(kind, checkpoint=tmp_path / "run"), run(kind))


@pytest.mark.slow
def test_sigterm_saves_first(tmp_path):
    status, stderr = killed(tmp_path / "run", "until", signal.SIGTERM, 0.0)
    assert status == 128 + signal.SIGTERM, stderr
    saved = phx.Posterior.load(tmp_path / "run")
    assert saved.state is not None
    assert_equal(run("until", checkpoint=tmp_path / "run"), run("until"))


def terminated(report):
    os.kill(os.getpid(), signal.SIGTERM)


def terminated_twice(report):
    terminated(report)
    terminated(report)


@pytest.mark.parametrize("press", [None, terminated, pytest.param(terminated_twice, marks=pytest.mark.slow)])
def test_sigterm_within_a_block_and_while_the_run_is_saved_loses_nothing(tmp_path, monkeypatch, press):
    """A launcher and its scheduler both signal a process."""
    saved, end = [], module.RunCheckpoint.end

    def pressed(self, posterior):
        terminated(None)
        end(self, posterior)
        saved.append(posterior.num_draws)

    monkeypatch.setattr(module.RunCheckpoint, "end", pressed)
    with pytest.raises(SystemExit) as ended:
        run(checkpoint=phx.checkpoint(tmp_path / "run", seconds=1e9), on_block=press)
    assert ended.value.code == 143 and saved == [0 if press else 45]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    monkeypatch.setattr(module.RunCheckpoint, "end", end)
    assert_equal(run(checkpoint=tmp_path / "run"), run())


def test_ctrl_c_returns_the_draws_and_saves_them(tmp_path):
    def press(report):
        if report.phase == "sampling" and report.done > 10:
            os.kill(os.getpid(), signal.SIGINT)

    part = run(checkpoint=tmp_path / "run", on_block=press)
    assert part.record.interrupted and part.num_draws < 45
    np.testing.assert_array_equal(phx.Posterior.load(tmp_path / "run")["mean"], part["mean"])
    found = run(checkpoint=tmp_path / "run")
    assert not found.record.interrupted
    assert_equal(found, run())


def test_permanent_saves_stay_and_are_loaded(tmp_path):
    policy = phx.checkpoint(tmp_path / "run", seconds=0.0, every=10)
    whole = run(checkpoint=policy)
    kept = sorted((tmp_path / "run").glob("save-*-at-*.json"))
    assert len(kept) >= 3 and len(list((tmp_path / "run").glob("save-*.json"))) <= len(kept) + 2
    for manifest in kept:
        found = phx.Posterior.load(manifest)
        count = int(manifest.stem.rpartition("-")[2])
        assert found.num_draws == count and count % 10 < 10
        np.testing.assert_array_equal(found["mean"], whole["mean"][:, :count])
    # without the later manifests, the same call continues from an earlier save
    for manifest in (tmp_path / "run").glob("save-*.json"):
        if manifest.name > kept[0].name:
            manifest.unlink()
    assert_equal(run(checkpoint=policy), whole)
    kept[1].write_text("{}")
    with pytest.raises(ValueError, match=rf"Posterior.load: '.*{kept[1].name}' is damaged: "):
        phx.Posterior.load(kept[1])


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: phx.checkpoint("x", seconds=-1.0), "seconds must be a number of at least 0; got -1.0"),
        (lambda: phx.checkpoint("x", every=0), "every must be a whole number of at least 1, or None; got 0"),
        (lambda: phx.checkpoint(3), "folder must be a path, such as 'out/run'; got 3"),  # pyright: ignore[reportArgumentType]
        (lambda: run(checkpoint=3), r"checkpoint must be a path, such as 'out/run', or phx.checkpoint\("),
    ],
)
def test_policies_are_checked(make, words):
    with pytest.raises((TypeError, ValueError), match=words):
        make()
