"""A run is a value after every block: written, read in a new process and continued, it makes the same draws."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from tests.apart import compiled_in, of_a_run

import phalanx as phx

Y = np.array([1.0, 2.0, 4.0], np.float32)
SIZES = {"num_chains": 4, "num_warmup": 40, "thin": 2, "progress": False}
NUM_SAMPLES = 60
KERNELS = {
    "nuts": phx.nuts(),
    "nuts, centring": phx.nuts(centring="auto"),
    "chees": phx.chees(),
    "laps": phx.laps(),
    "rwmh": phx.rwmh(),
    "hmc": phx.hmc(num_steps=3, metric="dense"),
    "sgld": phx.sgld(0.01, 2),
}
KEPT = {
    "stored": {"reducers": {"q": phx.reducers.quantiles([0.5])}},
    "reduced": {"keep": [], "reducers": {"m": phx.reducers.moments(), "r": phx.reducers.reservoir(7)}},
}


def model(y):
    scale = phx.sample("scale", dist.HalfNormal(2.0))
    mean = phx.sample("mean", dist.Normal(0.0, scale).expand([2]))
    phx.sample("y", dist.Normal(mean.sum(), scale), obs=y)


def sampler_of(name, kept):
    sizes = {**SIZES, "kernel": KERNELS[name], **KEPT[kept]}
    sampler = phx.compile(model, {"y": Y}, mesh=phx.make_mesh(chain=2), **compiled_in(sizes))
    block_length = sampler.executables.block_length
    block_length.learn(1, 0.04)  # blocks of some ten ticks, all of them
    block_length.learn = lambda ticks, seconds: None
    return sampler


def arrays_of(posterior):
    return jax.tree.leaves((posterior.draws, posterior.stats, posterior.reduced, posterior.warmup))


def continue_all(name, kept, folder):
    """Continue each run of a folder; print the first that ends otherwise than the whole run."""
    sampler, whole = sampler_of(name, kept), phx.Posterior.load(folder / "whole.npz")
    for file in sorted(folder.glob("part*.npz")):
        part = phx.Posterior.load(file)
        done = part.record.reduced_draws if kept == "reduced" else part.num_draws
        both = sampler.continue_run(part, NUM_SAMPLES - SIZES["thin"] * done, progress=False)
        pairs = zip(arrays_of(both), arrays_of(whole), strict=True)
        if not all(np.array_equal(a, b, equal_nan=True) for a, b in pairs):
            print(f"{file.name} ends otherwise")
            return
        assert both.timing.gradient_evaluations == whole.timing.gradient_evaluations
    print("all equal")


@pytest.mark.slow
@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize(
    "name", [name if name == "nuts, centring" else pytest.param(name, marks=pytest.mark.slow) for name in KERNELS]
)
@pytest.mark.filterwarnings("ignore:continue_run. it was not checked")
def test_after_every_block_in_a_new_process(name, kept, tmp_path):
    files = []

    def save(report):
        phases.add(report.phase)
        if report.done < report.total or report.phase == "warm-up":
            files.append(report.so_far().save(tmp_path / f"part{len(files):03d}.npz"))

    phases = set()
    whole = sampler_of(name, kept).run(3, num_samples=NUM_SAMPLES, on_block=save, **of_a_run(SIZES))
    assert phases == {"warm-up", "sampling"} and len(files) > 6
    assert {phx.Posterior.load(file).state.in_warm_up for file in files} == {True, False}
    whole.save(tmp_path / "whole.npz")
    command = (
        f"import warnings; warnings.simplefilter('ignore'); from pathlib import Path\n"
        f"import phalanx; phalanx.use_cpu_devices({jax.device_count()})\n"
        f"from tests.unit.run.test_state_after_every_block import continue_all\n"
        f"continue_all({name!r}, {kept!r}, Path({str(tmp_path)!r}))"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", command], cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "all equal", done.stdout + done.stderr[-3000:]
