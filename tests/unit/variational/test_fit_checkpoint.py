"""Checkpoints of fits: the same call continues a fit that was lost at any moment, and ends with the same numbers."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from tests.unit.damages import damaged_copies

import phalanx as phx
from phalanx.store import checkpoint as module
from phalanx.store.saves import BackgroundWriter

ROOT = Path(__file__).parents[3]
Y = np.random.default_rng(0).normal(2.0, 1.0, 40).astype(np.float32)


def model(y):
    mean = phx.sample("mean", dist.Normal(0.0, 5.0).expand([3]))
    scale = phx.sample("scale", dist.HalfNormal(2.0))
    phx.sample("y", dist.Normal(mean.sum(), scale), obs=y)


def go(folder=None, seconds=0.0, every=None, **options):
    """Fit in blocks of at most 50 steps, until windows agree."""
    module.SAVE_FRACTION = 1e9
    checkpoint = None if folder is None else phx.checkpoint(folder, seconds=seconds, every=every)
    options = {"num_steps": 3000, "seed": 1, **options}
    return phx.fit(
        model, phx.guides.mean_field(), {"y": Y}, mesh=phx.make_mesh(devices=jax.devices()[:1]), checkpoint=checkpoint,
        progress=False, **options,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(module, "SAVE_FRACTION", 1e9)
    monkeypatch.setattr("phalanx.variational.methods.stochastic.ROOM", 50)


@pytest.fixture(scope="module")
def straight():
    return go()


def same(found, expected):
    np.testing.assert_array_equal(found.losses.elbo, expected.losses.elbo)
    jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)
    assert found.unsettled == expected.unsettled and found.steps == expected.steps


class Lost(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("until", [None, pytest.param(False, marks=pytest.mark.slow)])
def test_a_fit_that_is_lost_again_and_again_ends_with_the_same_parameters(straight, tmp_path, until, monkeypatch):
    monkeypatch.setattr(BackgroundWriter, "is_idle", True)  # every block is saved
    choose, losses = random.Random(1), 0
    expected = straight if until is None else go(until=until, num_steps=500)

    def sometimes(report):
        if choose.random() < 0.15:
            raise Lost

    while True:
        try:
            steps = {} if until is None else {"num_steps": 500}
            found = go(tmp_path / "fit", until=until, on_block=sometimes, **steps)
        except Lost:
            losses += 1
            continue
        break
    assert losses > 1 and (until is False or found.unsettled == "")
    same(found, expected)
    if until is None:
        same(go(tmp_path / "fit"), expected)  # returns what the folder holds


@pytest.mark.slow
def test_ctrl_c_saves_the_fit(straight, tmp_path):
    def press(report):
        if report.done > 100:
            signal.raise_signal(signal.SIGINT)

    part = go(tmp_path / "fit", seconds=1e9, on_block=press)
    assert part.record.interrupted and 100 < part.steps < straight.steps
    same(go(tmp_path / "fit"), straight)


@pytest.mark.slow
def test_permanent_saves_are_made_at_their_steps(straight, tmp_path):
    same(go(tmp_path / "fit", seconds=1e9, every=70), straight)
    kept = sorted((tmp_path / "fit").glob("save-*-at-*.json"))
    assert [int(path.stem.rpartition("-")[2]) for path in kept] == list(range(70, straight.steps + 1, 70))
    for manifest in (tmp_path / "fit").glob("save-*.json"):
        if manifest.name > kept[0].name:
            manifest.unlink()
    same(go(tmp_path / "fit"), straight)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept") / "fit"
    go(folder)
    return folder


@pytest.mark.slow
def test_the_save_before_a_damaged_one_is_used(straight, folder, tmp_path):
    outcomes = []
    for copy in damaged_copies(folder, tmp_path / "copy", 14):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("warnings.warn", lambda message, **_: outcomes.append(str(message)))
            try:
                same(go(copy), straight)
            except ValueError as error:
                outcomes.append(str(error))
                assert "is damaged: " in str(error) and "Restore the folder from a copy" in str(error)
    assert any("the save before it is used" in outcome for outcome in outcomes)


@pytest.mark.slow
def test_other_fits_are_refused(folder, tmp_path):
    with pytest.raises(
        ValueError, match=r"^fit: checkpoint='.*' holds another fit: num_steps is 3000 there, and 9 here"
    ):
        go(folder, num_steps=9)
    with pytest.raises(ValueError, match="seed is 1 there, and 2 here"):
        go(folder, seed=2)
    with pytest.raises(ValueError, match="stops when settled is True there, and False here"):
        go(folder, until=False)
    with pytest.raises(ValueError, match="checkpoint: a fit with optimizer='lbfgs' is not saved"):
        go(folder, optimizer="lbfgs")
    with pytest.raises(ValueError, match="checkpoint: with num_steps=0 there are no steps"):
        go(folder, num_steps=0)
    with pytest.raises(ValueError, match=r"training= has a checkpoint, '.*other', too. Give one of them"):
        go(folder, training=phx.training(checkpoint=tmp_path / "other"))
    with pytest.raises(ValueError, match="laplace.* is found by a climb, which is not saved"):
        phx.fit(model, phx.guides.laplace(), {"y": Y}, checkpoint=folder, progress=False)


SCRIPT = """
import sys
import jax
import numpy as np
import phalanx as phx
phx.use_cpu_devices(8)
from phalanx.variational.methods import stochastic
from tests.unit.variational.test_fit_checkpoint import go
stochastic.ROOM = 50
found = go(sys.argv[1], seconds=0.01, on_block=lambda report: print(report.done, flush=True))
leaves = jax.tree.leaves(found.params)
np.savez(sys.argv[1] + ".npz", found.losses.elbo, *map(np.asarray, leaves))
"""


def killed(folder, kill, seconds):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        _, stderr = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(kill)
        _, stderr = process.communicate(timeout=300)
    assert process.returncode in (-kill, 128 + kill, 0), stderr
    return process.returncode


def ended(folder):
    """Run the script to its end, and return losses and parameters."""
    assert killed(folder, signal.SIGKILL, 60.0) == 0
    with np.load(f"{folder}.npz") as found:
        return dict(found)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """In a process without the tests' configuration, for which XLA may round differently."""
    return ended(tmp_path_factory.mktemp("alone") / "fit")


@pytest.mark.slow
@pytest.mark.parametrize("kind, kills", [(signal.SIGKILL, 1), (signal.SIGTERM, 1), pytest.param(
    signal.SIGKILL, 20, marks=pytest.mark.slow)])  # fmt: skip
def test_a_process_that_is_killed(alone, tmp_path, kind, kills):
    choose = random.Random(kills)
    for _ in range(kills):
        status = killed(tmp_path / "fit", kind, choose.random() * 0.1)
        assert status == 0 or kind is signal.SIGKILL or list((tmp_path / "fit").glob("save-*.json"))
    found = ended(tmp_path / "fit")
    assert found.keys() == alone.keys()
    for name, values in alone.items():
        np.testing.assert_array_equal(found[name], values)
