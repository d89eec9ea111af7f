"""What a user's script does in each of several processes; `test_processes` starts it, and compares."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
import numpyro.distributions as dist
import optax

import phalanx as phx

FOLDER: Path | None = None
"""Folder for what scenarios save, the same in all processes; None where they save nothing."""

STEPS: dict[str, Any] = {"num_steps": 12, "num_particles": 4, "until": False, "progress": False}
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
    posterior = posterior.gather()
    return {**posterior.draws, **posterior.stats, "m": posterior.reduced["m"]["b"].mean, "predictive": told}


def data(mesh):
    """Rows and their variables over processes, padded."""
    kernel = phx.hmc(4)  # the other scenarios have NUTS, which takes longer to compile
    return phx.mcmc(levels, {"y": phx.shard(X[:, 0], mesh)}, mesh=mesh, kernel=kernel, thin=2, **SIZES).draws


def centred(mesh):
    """Chains and rows over processes, with a centring that all processes learn together."""
    kernel, placed = phx.nuts(4, centring="auto"), {"y": phx.shard(X[:, 0], mesh)}
    posterior = phx.mcmc(levels, placed, mesh=mesh, kernel=kernel, **SIZES)
    return {"weights": np.array(posterior.record.centring["level"]), **posterior.gather().draws}


def reduced(mesh):
    """Nothing stored, and an end by the clock, which processes must agree on."""
    reducers = {"m": phx.reducers.moments()}
    sizes = {**SIZES, "num_samples": 100_000}
    posterior = phx.mcmc(
        regression, {"x": phx.shard(X, mesh), "y": phx.shard(Y, mesh)}, mesh=mesh, keep=[], reducers=reducers,
        until=phx.until(seconds=1.0), **sizes,
    )  # fmt: skip
    return {"draws": np.array(posterior.record.reduced_draws), "mean": posterior.reduced["m"]["b"].mean}


def interrupted(mesh):
    """Ctrl-C in one process ends the run in all, and it goes on."""

    pressed = []

    def press(report):
        is_last = jax.process_index() == jax.process_count() - 1
        if report.phase == "sampling" and report.done >= 50 and is_last and not pressed:
            pressed.append(True)  # another Ctrl-C would end the run that goes on
            os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    sizes = {**SIZES, "num_samples": 200_000}
    part = phx.mcmc(regression, {"x": X, "y": Y}, mesh=mesh, on_block=press, **sizes)
    more = part.continue_run(10)
    return {"interrupted": np.array(part.record.interrupted), "more": np.array(more.num_draws - part.num_draws)}


def fit(mesh):
    """A fit to rows over processes, padded, and draws from it."""
    placed = {"x": phx.shard(X, mesh), "y": phx.shard(Y, mesh)}
    return learned(phx.fit(regression, phx.guides.mean_field(), placed, mesh=mesh, **STEPS))


def fits(mesh):
    """A fit with particles over processes, saved; one of parameters that lie with their rows; and batches of rows."""
    saved: dict[str, Any] = {} if FOLDER is None else {"checkpoint": FOLDER / "fit"}
    found = learned(phx.fit(regression, phx.guides.mean_field(), {"x": X, "y": Y}, mesh=mesh, **STEPS, **saved))
    over = phx.make_mesh(chain=1, data=mesh.size)
    of_rows = phx.fit(levels, phx.guides.mean_field(), {"y": phx.shard(X[:20, 0], over)}, mesh=over, **STEPS)
    batches = phx.fit(regression, phx.guides.mean_field(), phx.batches({"x": X, "y": Y}, 8), mesh=over, **STEPS)
    return {**found, **{f"batches {k}": v for k, v in batches.params.items()}, **of_rows.params}


def learned(fit):
    return {**fit.params, "losses": fit.losses.elbo, **fit.sample(n=16)}


def network():
    return phx.ensembles.learner(
        lambda key: jax.random.normal(key, (2, 2)), lambda w, x: x @ w, phx.ensembles.classification_loss,
        optax.adam(0.1),
    )  # fmt: skip


def members(mesh, epochs=2):
    """Members over processes, two on some devices, saved; what they predict; and one of them."""
    one, data = network(), (X[:20], Y[:20])
    ensemble = phx.ensemble(one.init, one.update, 5, mesh=mesh)
    saved: dict[str, Any] = {} if FOLDER is None else {"checkpoint": FOLDER / "members", "log": FOLDER / "log.csv"}
    list(ensemble.train(data, batch_size=8, num_epochs=epochs, order="own", apply=one.apply, **saved))
    averages = {name: np.asarray(values) for name, values in ensemble.history[-1].items()}
    ensemble.update(data)
    predicted = ensemble.predict(one.apply, X).mean
    return {**averages, "members": ensemble.members.params, "predicted": predicted, "last": ensemble.member(4).params}


def rows_of_members(mesh):
    """Two members, their rows over the devices of several processes."""
    one = network()
    ensemble = phx.ensemble(one.init, one.update, 2, mesh=mesh)
    list(ensemble.train((X[:20], Y[:20]), batch_size=8, num_epochs=2))
    return {"members": ensemble.members.params}


SCENARIOS = {"chains": (chains, {"chain": 4}), "data": (data, {"chain": 1, "data": 4}),
             "centred": (centred, {"chain": 2, "data": 2}),
             "fit": (fit, {"chain": 1, "data": 4}), "fits": (fits, {"chain": 4}), "members": (members, {"chain": 4}),
             "rows_of_members": (rows_of_members, {"chain": 2, "data": 2}),
             "reduced": (reduced, {"chain": 2, "data": 2}), "interrupted": (interrupted, {"chain": 4})}  # fmt: skip

if __name__ == "__main__":
    number, count, port, folder, *names = sys.argv[1:]
    jax.config.update("jax_num_cpu_devices", 4 // int(count))
    if int(count) > 1:
        phx.initialize(f"127.0.0.1:{port}", num_processes=int(count), process_id=int(number))
    FOLDER = Path(folder)
    for name in names:
        run, shape = SCENARIOS[name]
        np.savez(Path(folder) / f"{name}-{count}-{number}.npz", **run(phx.make_mesh(**shape)))
