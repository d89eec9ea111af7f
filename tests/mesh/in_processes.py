"""What a user's script does in each of several processes; `test_processes` starts it, and compares."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
import numpyro.distributions as dist

import phalanx as phx

SIZES = {"num_chains": 4, "num_warmup": 40, "num_samples": 20, "progress": False}
X = np.random.default_rng(0).normal(size=(21, 2)).astype(np.float32)
Y = (X[:, 0] > 0.3).astype(np.int32)


def regression(x, y):
    """Global variables."""
    b = phx.sample("b", dist.Normal(0.0, 2.0).expand([2]))
    phx.sample("y", dist.Bernoulli(logits=x @ b), obs=y)


def levels(y):
    """Variables that lie with their rows."""
    scale = phx.sample("scale", dist.HalfNormal(1.0))
    level = phx.sample("level", dist.Normal(0.0, scale).expand(y.shape))
    phx.sample("y", dist.Normal(level, 1.0), obs=y)


def chains(mesh):
    """Chains over processes, stored draws, `predictive` and reducers."""
    posterior = phx.mcmc(regression, {"x": X, "y": Y}, mesh=mesh, reducers={"m": phx.reducers.moments()}, **SIZES)
    told = posterior.predictive({"x": X, "y": None})["y"]
    return {**posterior.draws, **posterior.stats, "m": posterior.reduced["m"]["b"].mean, "predictive": told}


def data(mesh):
    """Rows and their variables over processes, padded."""
    kernel = phx.hmc(4)  # the other scenarios have NUTS, which takes longer to compile
    return phx.mcmc(levels, {"y": phx.shard(X[:, 0], mesh)}, mesh=mesh, kernel=kernel, thin=2, **SIZES).draws


def folded(mesh):
    """Nothing stored, and an end by the clock, which processes must agree on."""
    reducers = {"m": phx.reducers.moments()}
    sizes = {**SIZES, "num_samples": 100_000}
    posterior = phx.mcmc(
        regression, {"x": phx.shard(X, mesh), "y": phx.shard(Y, mesh)}, mesh=mesh, keep=[], reducers=reducers,
        until=phx.until(seconds=1.0), **sizes,
    )  # fmt: skip
    return {"draws": np.array(posterior.record.folded_draws), "mean": posterior.reduced["m"]["b"].mean}


def interrupted(mesh):
    """Ctrl-C in one process ends the run in all, and it goes on."""

    def press(report):
        if report.phase == "sampling" and report.done >= 50 and jax.process_index() == jax.process_count() - 1:
            os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    sizes = {**SIZES, "num_samples": 200_000}
    part = phx.mcmc(regression, {"x": X, "y": Y}, mesh=mesh, on_block=press, **sizes)
    more = part.continue_run(10)
    return {"interrupted": np.array(part.record.interrupted), "more": np.array(more.num_draws - part.num_draws)}


SCENARIOS = {"chains": (chains, {"chain": 4}), "data": (data, {"chain": 1, "data": 4}),
             "folded": (folded, {"chain": 2, "data": 2}), "interrupted": (interrupted, {"chain": 4})}  # fmt: skip

if __name__ == "__main__":
    number, count, port, folder, *names = sys.argv[1:]
    jax.config.update("jax_num_cpu_devices", 4 // int(count))
    if int(count) > 1:
        phx.initialize(f"127.0.0.1:{port}", num_processes=int(count), process_id=int(number))
    for name in names:
        run, shape = SCENARIOS[name]
        np.savez(Path(folder) / f"{name}-{count}-{number}.npz", **run(phx.make_mesh(**shape)))
