"""Script that tests start under `phalanx launch`, and what it does in each process: see `SCENARIOS`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import numpyro.distributions as dist
from jax.experimental import multihost_utils
from tests.mesh.in_processes import SIZES, X, Y, data, regression

import phalanx as phx
from phalanx.mesh import failure

NUMBER = phx.initialize() if __name__ == "__main__" else 0
LAST = jax.process_count() - 1 if __name__ == "__main__" else 0
WAYS_TO_FAIL = ("raise", "exit", "SIGKILL", "SIGSTOP", "SIGSTOP of the first")


def exchange(seconds: float = 0.05) -> None:
    multihost_utils.process_allgather(np.ones(1))
    time.sleep(seconds)


def fail(way: str) -> None:
    exchange()
    (Path.cwd() / f"fails-{NUMBER}").touch()
    if (0 if way.endswith("first") else LAST) == NUMBER:
        if way == "raise":
            raise ValueError("boom")
        if way == "exit":
            sys.exit("no such file")
        os.kill(os.getpid(), getattr(signal, way.partition(" ")[0]))
    while True:
        exchange()


def end_at_different_times() -> None:
    exchange()
    time.sleep(1.5 * NUMBER)
    print("done\nwithout a line", end="")


def leave_early(way: str) -> None:
    """End the last process with status 0 while the others exchange arrays, or compute for longer than they may wait."""
    failure.PATIENCE = 2.0
    exchange()
    if NUMBER == LAST:
        sys.exit(0) if way == "sys.exit" else os._exit(0) if way == "os._exit" else None
    while NUMBER != LAST and way.endswith("exit"):
        exchange()
    until = time.monotonic() + 3 * failure.PATIENCE
    while NUMBER != LAST and way == "compute" and time.monotonic() < until:
        sum(range(10_000))
    if NUMBER != LAST and way == "wait for a program":
        subprocess.run(["sleep", str(3 * failure.PATIENCE)], check=True)
    print("done")


def own_scale(y):
    """The prior is another one in each process."""
    mean = phx.sample("mean", dist.Normal(0.0, 1.0 + NUMBER))
    phx.sample("y", dist.Normal(mean, 1.0), obs=y)


def mean_of(y):
    phx.sample("y", dist.Normal(phx.sample("mean", dist.Normal(0.0, 1.0)), 1.0), obs=y)


def differ() -> None:
    """Print in every process what is refused."""
    sizes = {"num_chains": 2, "num_warmup": 5, "num_samples": 5, "progress": False}
    chains = {**sizes, "mesh": phx.make_mesh(chain=2)}
    own_rows = phx.shard(X[:, 0] + NUMBER, phx.make_mesh(data=2))  # each process has rows of its own
    for what, call in {
        "data": lambda: phx.mcmc(regression, {"x": X, "y": (Y + NUMBER) % 2}, **chains),
        "shape": lambda: phx.mcmc(regression, {"x": X[NUMBER:], "y": Y[NUMBER:]}, **chains),
        "value": lambda: phx.mcmc(own_scale, {"y": X[:, 0]}, **chains),
        "kernel": lambda: phx.mcmc(regression, {"x": X, "y": Y}, kernel=phx.hmc(3 + NUMBER), **chains),
        "seed": lambda: phx.mcmc(regression, {"x": X, "y": Y}, seed=NUMBER, **chains),
        "rows": lambda: phx.mcmc(mean_of, {"y": own_rows}, **sizes),
    }.items():
        try:
            call()
            print(f"{what}: accepted")
        except ValueError as error:
            print(f"{what}: {error}")


def alone() -> None:
    """Make a call in the first process only, and other calls at the same time."""
    sizes = {"num_chains": 2, "num_warmup": 5, "num_samples": 5, "progress": False, "mesh": phx.make_mesh(chain=2)}
    calls = [
        lambda: phx.mcmc(mean_of, {"y": X[:, 0]}, **sizes),
        lambda: phx.fit(mean_of, phx.guides.mean_field(), {"y": X[:, 0]}, mesh=phx.make_mesh(), progress=False),
    ]
    for call in (calls[NUMBER], calls[0]) if NUMBER == 0 else (calls[NUMBER],):
        try:
            call()
        except (ValueError, RuntimeError) as error:
            print(error)


def sample(folder: str, seconds: str = "0") -> None:
    """Draw slowly, and save."""

    def wait(report):
        time.sleep(float(seconds) if report.phase == "sampling" else 0.0)
        if NUMBER == 0 and report.phase == "sampling":
            Path(folder).with_suffix(".sampling").touch()

    posterior = phx.mcmc(
        regression, {"x": X, "y": Y}, mesh=phx.make_mesh(), on_block=wait, checkpoint=folder,
        **{**SIZES, "num_samples": 20_000, "progress": True},
    )  # fmt: skip
    np.savez(f"{folder}-{NUMBER}.npz", **posterior.gather().draws)  # pyright: ignore[reportArgumentType]


def leave(folder: str) -> None:
    """End the last process in the middle of a run that is saved."""

    def on_block(report):
        if report.phase == "sampling" and NUMBER == LAST:
            Path(folder).with_suffix(".left").touch()
            sys.exit("had enough")

    sizes = {**SIZES, "num_samples": 1_000_000}
    phx.mcmc(regression, {"x": X, "y": Y}, mesh=phx.make_mesh(), on_block=on_block, checkpoint=folder, **sizes)


def rows(folder: str) -> None:
    """Rows over all devices of all processes."""
    np.savez(f"{folder}-{NUMBER}.npz", **data(phx.make_mesh(chain=1, data=4)))  # pyright: ignore[reportArgumentType]


SCENARIOS = {f.__name__: f for f in (fail, end_at_different_times, leave_early, differ, alone, sample, leave, rows)}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]](*sys.argv[2:])
