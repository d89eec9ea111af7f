"""Checkpoints of streams: each block is yielded at least once, and all together are the blocks of one stream."""

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

import phalanx as phx
from phalanx.run.device import blocks as device_blocks
from phalanx.run.phases import streaming

ROOT = Path(__file__).parents[3]
KINDS = {"stored": {}, "both": {"reducers": {"m": phx.reducers.moments()}}, "reduced": {"keep": [], "reducers": {
    "m": phx.reducers.moments(), "r": phx.reducers.reservoir(5)}}}  # fmt: skip


def model():
    phx.sample("x", dist.Normal(0.0, 1.0).expand([2]))


def stream(kind, folder=None, seconds=0.0, **options):
    device_blocks.BLOCK_DRAWS = streaming.STREAM_DRAWS = 40
    checkpoint = None if folder is None else phx.checkpoint(folder, seconds=seconds)
    options = {"num_samples": 390, **KINDS[kind], **options}
    return phx.stream(
        model, num_chains=4, num_warmup=40, thin=2, seed=3, mesh=phx.make_mesh(chain=2), checkpoint=checkpoint,
        progress=False, **options,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    for module, name in ((device_blocks, "BLOCK_DRAWS"), (streaming, "STREAM_DRAWS")):
        monkeypatch.setattr(module, name, 40)


def plain(block):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(dict(block))]


def equal(a, b):
    """Compare blocks bit for bit."""
    assert sorted(a) == sorted(b)
    for first in a:
        for one, other in zip(plain(a[first]), plain(b[first]), strict=True):
            np.testing.assert_array_equal(one, other)


class Lost(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_is_lost_again_and_again_yields_the_same_blocks(kind, tmp_path):
    expected = {block.first: block for block in stream(kind)}
    assert sorted(expected) == [0, 40, 80, 120, 160]
    found, order, choose = {}, [], random.Random(2)

    def sometimes(report):
        if choose.random() < 0.2:
            raise Lost

    for _ in range(200):
        try:
            for block in stream(kind, tmp_path / "s", on_block=sometimes):
                order.append(block.first)
                if choose.random() < 0.3:
                    raise Lost
                found[block.first] = block
        except Lost:
            continue
        break
    assert order == sorted(order)
    equal(found, expected)
    assert list(stream(kind, tmp_path / "s")) == []
    more = {block.first: block for block in stream(kind, tmp_path / "s", num_samples=500)}
    assert min(more) == 195 and next(iter(more.values())).first == 195


@pytest.mark.slow
def test_the_block_that_was_left_is_yielded_again(tmp_path):
    expected = {block.first: block for block in stream("stored")}
    assert any(block.first == 80 for block in stream("stored", tmp_path / "s", seconds=1e9))
    found = {block.first: block for block in stream("stored", tmp_path / "s")}
    assert sorted(found) == [80, 120, 160]
    equal(found, {first: block for first, block in expected.items() if first >= 80})


@pytest.mark.slow
def test_ctrl_c_yields_what_was_made_once(tmp_path):
    expected = np.concatenate([block["x"] for block in stream("stored")], axis=1)

    def press(report):
        if report.phase == "sampling" and len(blocks) == 2:
            signal.raise_signal(signal.SIGINT)

    blocks = []
    for block in stream("stored", tmp_path / "s", on_block=press):
        blocks.append(block)
    assert len(blocks) in (2, 3)
    blocks += stream("stored", tmp_path / "s")
    np.testing.assert_array_equal(np.concatenate([block["x"] for block in blocks], axis=1), expected)
    assert [block.first for block in blocks[1:]] == list(np.cumsum([block["x"].shape[1] for block in blocks])[:-1])


@pytest.mark.slow
def test_runs_and_streams_differ(tmp_path):
    next(stream("stored", tmp_path / "s"))
    options = {"num_chains": 4, "num_warmup": 40, "thin": 2, "seed": 3, "num_samples": 390, "progress": False}
    with pytest.raises(ValueError, match=r"call is phx.stream there, and phx.mcmc here"):
        phx.mcmc(model, mesh=phx.make_mesh(chain=2), checkpoint=tmp_path / "s", **options)
    list(stream("stored", tmp_path / "s"))
    with pytest.raises(ValueError, match=r"has made 390 iterations, and num_samples=10 are asked for"):
        next(stream("stored", tmp_path / "s", num_samples=10))


SCRIPT = """
import sys
import numpy as np
import phalanx as phx
phx.use_cpu_devices(8)
from tests.unit.run.test_stream_checkpoint import stream
for block in stream("both", sys.argv[1], seconds=0.02, on_block=lambda report: print(report.done, flush=True)):
    np.savez(f"{sys.argv[1]}-{block.first}.npz", x=block["x"], mean=block["m"]["x"].mean)
open(f"{sys.argv[1]}-over", "w").close()
"""


def killed(folder, kill, seconds):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    try:
        _, stderr = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(kill)
        _, stderr = process.communicate(timeout=300)
    assert process.returncode in (-kill, 128 + kill, 0), stderr
    return process.returncode


@pytest.mark.slow
def test_kill_9_and_sigterm(tmp_path):
    kills = 6
    choose = random.Random(kills)
    for number in range(kills):
        kill = signal.SIGTERM if number % 3 == 1 else signal.SIGKILL
        killed(tmp_path / "s", kill, choose.random() * 0.2)
    while not (tmp_path / "s-over").exists():
        killed(tmp_path / "s", signal.SIGKILL, 60.0)
    for block in stream("both"):
        found = np.load(tmp_path / f"s-{block.first}.npz")
        np.testing.assert_array_equal(found["x"], block["x"])
        np.testing.assert_allclose(found["mean"], block["m"]["x"].mean, atol=1e-5)
