"""Rounds of warm-up on the devices: the same draws and record as when the host learns from each round."""

from __future__ import annotations

import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.adaptation.warm_up import WarmUp
from phalanx.run.compile.executable_cache import EXECUTABLES

Y = np.random.default_rng(0).normal(size=10).astype(np.float32)
SIZES = {"num_chains": 4, "num_warmup": 200, "num_samples": 20, "progress": False}


def model(y):
    mean = phx.sample("mean", dist.Normal(0.0, 10.0))
    scale = phx.sample("scale", dist.HalfNormal(1.0))
    phx.sample("y", dist.Normal(mean, scale), obs=y)


def on_host(monkeypatch):
    monkeypatch.setattr(WarmUp, "runs_on_devices", property(lambda self: False))


KERNELS = [
    phx.nuts(),
    *(
        pytest.param(kernel, marks=pytest.mark.slow)
        for kernel in (phx.hmc(4, metric="diagonal"), phx.chees(), phx.rwmh())
    ),
]


def calls_of(sampler, **options):
    """Return a run, and the number of blocks of its warm-up."""
    sampler.executables.block_length.learn(1, 1e-6)  # blocks are as long as they may be
    blocks = []

    def count(report):
        blocks.extend([report] if report.phase == "warm-up" else [])

    return sampler.run(3, num_warmup=200, num_samples=20, progress=False, on_block=count, **options), len(blocks)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("devices", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_draws_and_record_are_those_of_rounds_that_the_host_ends(kernel, devices, mesh_of, monkeypatch):
    mesh = mesh_of(devices, 1)
    sampler = phx.compile(model, {"y": Y}, kernel=kernel, mesh=mesh, num_chains=4)
    found, blocks = calls_of(sampler)
    on_host(monkeypatch)
    EXECUTABLES.clear()
    expected, host_blocks = calls_of(phx.compile(model, {"y": Y}, kernel=kernel, mesh=mesh, num_chains=4))
    for name, draws in expected.draws.items():
        np.testing.assert_array_equal(found.draws[name], draws)
    assert set(found.warmup) == set(expected.warmup)
    for name, values in expected.warmup.items():
        np.testing.assert_allclose(found.warmup[name], values, rtol=1e-6, err_msg=name)
    assert blocks <= 8 < host_blocks  # a block for each window, and one of a tick


def test_a_window_that_takes_more_than_the_slots_has_the_same_draws(mesh_of, monkeypatch):
    mesh = mesh_of(2, 1)
    runs = [phx.mcmc(model, {"y": Y}, mesh=mesh, seed=1, **{**SIZES, "num_chains": 2})]
    monkeypatch.setattr("phalanx.run.device.blocks.BLOCK_DRAWS", 7)
    EXECUTABLES.clear()
    runs.append(phx.mcmc(model, {"y": Y}, mesh=mesh, seed=1, **{**SIZES, "num_chains": 2}))
    np.testing.assert_array_equal(runs[0].draws["mean"], runs[1].draws["mean"])
    np.testing.assert_allclose(runs[0].warmup["step_size"], runs[1].warmup["step_size"], rtol=1e-6)


def test_chains_alone_exchange_one_message_a_round(mesh_of):
    """XLA mixes up the order of messages of a program that it reads from a cache, unless there is one."""
    sampler = phx.compile(model, {"y": Y}, mesh=mesh_of(4, 1), num_chains=4)
    assert sampler.executables.record is not None
    hlo = sampler.executables.record.as_text() or ""
    assert hlo.count(" all-gather(") + hlo.count(" all-gather-start(") == 1
    assert "all-reduce" not in hlo
