"""Runs of which each process keeps the draws of its own chains, for one process and for several."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
import numpyro.distributions as dist

import phalanx as phx
from phalanx.run.host import draw_store

DEVICES = 4
SIZES: dict[str, Any] = {"num_chains": 8, "num_warmup": 12, "num_samples": 60, "seed": 3, "progress": False}
KERNEL = dataclasses.replace(phx.nuts(6, step_size=0.3), tuners=())
"""Nothing is tuned, so that no sum over devices is rounded in an order that depends on processes."""

Y = np.array([1.0, 2.0, 4.0], np.float32)
WAIT = float(os.environ.get("WAIT", "0"))
"""Seconds between two blocks."""

REDUCERS = {"m": phx.reducers.moments()}


def model(y):
    mean = phx.sample("mean", dist.Normal(0.0, 5.0).expand([2]))
    scale = phx.sample("scale", dist.HalfNormal(2.0))
    phx.sample("y", dist.Normal(mean.sum(), scale), obs=y)


def run(mesh, reducers=None, **options):
    """Draw in short blocks, after which some chains are ahead of others, and keep the draws of warm-up."""
    sampler = phx.compile(model, {"y": Y}, kernel=KERNEL, mesh=mesh, num_chains=8, reducers=reducers)
    block_length = sampler.executables.block_length
    block_length.learn(1, 0.04)
    block_length.learn = lambda ticks, seconds: None
    options = {name: value for name, value in {**SIZES, **options}.items() if name != "num_chains"}
    return sampler.run(**{"on_block": lambda report: time.sleep(WAIT), "save_warmup": True, **options})


def arrays_of(posterior: Any) -> dict[str, np.ndarray]:
    """Return draws and statistics by name, those of warm-up too."""
    warm_up = {f"{name} of warm-up": v for name, v in {**posterior.warmup_draws, **posterior.warmup_stats}.items()}
    return {name: np.asarray(v) for name, v in {**posterior.draws, **posterior.stats, **warm_up}.items()}


def results(posterior: Any, folder: Path) -> dict[str, np.ndarray]:
    """Return what is computed from the draws of all chains."""
    table, container = posterior.summary(), posterior.to_arviz()
    terms = posterior.log_likelihood()["y"]
    predicted = posterior.predictive(num_draws=7)["y"]
    squares = posterior.predict(lambda draw, key: draw["mean"] ** 2 + jax.random.normal(key), batch_size=37)
    assert posterior.save(folder / "saved.npz").is_file()
    return {
        "summary": table.to_numpy(), "words": np.array([str(posterior.verdict()), str(table.verdict)]),
        "frame": posterior.to_dataframe().to_numpy(), "arviz": container.posterior["mean"].values,
        "lp": container.sample_stats["lp"].values, "warm-up": container.warmup_posterior["mean"].values,
        "xarray": posterior.to_xarray()["scale"].values,
        "terms": terms, "predicted": predicted, "squares": squares, "loo": np.array(posterior.loo().elpd),
        "sizes": np.array([posterior.num_chains, posterior.num_draws, posterior.num_divergences]),
        **{f"gathered {name}": values for name, values in arrays_of(posterior.gather()).items()},
    }  # fmt: skip


def whole(mesh, folder):
    """A run in memory: its own draws, and results of all."""
    posterior = run(mesh)
    own = {f"own {name}": values for name, values in arrays_of(posterior).items()}
    return {"chains": posterior.chains, "shown": np.array(repr(posterior)), **own, **results(posterior, folder)}


def others(mesh, folder):
    """Runs that begin with another's draws, are continued, stop by a condition, stream, and start elsewhere."""
    first = run(mesh, REDUCERS, num_samples=20)
    longer = first.continue_run(40)
    assert longer.report(folder / "page.html").is_file()
    stopped = run(mesh, REDUCERS, num_samples=150, until=phx.until(ess=10))
    again = run(mesh, REDUCERS, init=first, num_samples=5)
    blocks = []
    for block in phx.stream(
        model, {"y": Y}, kernel=KERNEL, mesh=mesh, reducers=REDUCERS, **{**SIZES, "num_samples": 40}
    ):
        blocks.append(block)
    backwards = phx.make_mesh(chain=DEVICES, devices=jax.devices()[::-1])  # each process holds other chains
    moved = phx.compile(model, {"y": Y}, kernel=KERNEL, mesh=backwards, num_chains=8, reducers=REDUCERS)
    elsewhere = moved.continue_run(first, 10, progress=False)
    found = {"longer": longer, "stopped": stopped, "again": again, "elsewhere": elsewhere}
    gathered = {f"{of} {n}": v for of, one in found.items() for n, v in arrays_of(one.gather()).items()}
    streamed = np.concatenate([block["mean"] for block in blocks], axis=1)
    means = {f"m of {of}": one.reduced["m"]["mean"].mean for of, one in found.items()}
    return {"chains": blocks[0].chains, "own streamed": streamed, **means, **gathered}


def stored(mesh, folder):
    """A run with a store and a checkpoint, saved after every block."""
    posterior = run(mesh, store=folder / "run.zarr", checkpoint=phx.checkpoint(folder / "of-store", seconds=0.0))
    return arrays_of(posterior)


def saved(mesh, folder):
    """A run with a checkpoint, saved after every block; or what is left of one."""
    posterior = run(mesh, checkpoint=phx.checkpoint(folder / "saves", seconds=0.0))
    return arrays_of(posterior.gather())


def exchanged(mesh, folder):
    """Bytes that processes exchange in each block of sampling."""
    from jax.experimental import multihost_utils

    sizes, blocks = [0], []
    gather = multihost_utils.process_allgather

    def counted(*arguments, **options):
        found = gather(*arguments, **options)
        sizes[0] += sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(found))
        return found

    def on_block(report):
        if (
            report.phase == "sampling"
        ):  # the end of a window of warm-up gathers its draws, from which a metric is learned
            blocks.append(sizes[0])
        sizes[0] = 0

    multihost_utils.process_allgather = counted
    try:
        run(mesh, num_samples=400, on_block=on_block)
    finally:
        multihost_utils.process_allgather = gather
    return {"bytes": np.array(blocks[1:])}  # the first includes the end of warm-up


SCENARIOS = {one.__name__: one for one in (whole, others, stored, saved, exchanged)}

if __name__ == "__main__":
    number, count, port, folder, *names = sys.argv[1:]
    warnings.simplefilter("ignore")
    draw_store.SECONDS = 0.0
    jax.config.update("jax_num_cpu_devices", DEVICES // int(count))
    if int(count) > 1:
        phx.initialize(f"127.0.0.1:{port}", num_processes=int(count), process_id=int(number))
    for name in names:
        found: Any = SCENARIOS[name](phx.make_mesh(chain=DEVICES), Path(folder))
        np.savez(Path(folder) / f"{name}-{number}.npz", **found)
