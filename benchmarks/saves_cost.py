"""Cost of the saves of `checkpoint=`, at one save every ten seconds; `kills.py` runs it and keeps the results."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import side_by_side

MOST_OVERHEAD = 1.02

Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], np.float32)
SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], np.float32)


def schools(y: Any, sigma: Any) -> None:
    import numpyro.distributions as dist

    import phalanx as phx

    mu = phx.sample("mu", dist.Normal(0.0, 5.0))
    tau = phx.sample("tau", dist.HalfCauchy(5.0))
    z = phx.sample("z", dist.Normal(0.0, 1.0).expand([8]).to_event(1))
    phx.sample("y", dist.Normal(mu + tau * z, sigma).to_event(1), obs=y)


def regression(x: Any, y: Any) -> None:
    import numpyro.distributions as dist

    import phalanx as phx

    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]))
    phx.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def overhead_cases(at_least: float) -> Iterator[tuple[str, Callable[[Path | None], Any]]]:
    """Yield what is drawn, and a run of at least so many seconds with saves every ten seconds to a folder, if any."""
    import jax

    import phalanx as phx

    random = np.random.default_rng(0)
    x = random.normal(size=(1_000, 100)).astype(np.float32)
    data = {"x": x, "y": (x[:, 0] > 0).astype(np.int32)}
    mesh = phx.make_mesh(devices=jax.devices()[:1])
    for what, model, arguments in (
        ("eight schools", schools, {"y": Y, "sigma": SIGMA}),
        ("a logistic regression of 100 columns", regression, data),
    ):
        sampler = phx.compile(model, arguments, num_chains=4, mesh=mesh)
        options = {"num_warmup": 300, "progress": False}
        sampler.run(num_samples=1_000, **options)
        trial = sampler.run(num_samples=10_000, **options)
        num_samples = int(10_000 * at_least / trial.timing.sampling)
        size = sum(array.nbytes for array in trial.draws.values()) * num_samples / 10_000 / 1e6
        yield f"{what}, {size:.0f} MB of draws", partial(_saved_to, sampler, options | {"num_samples": num_samples})


def _saved_to(sampler: Any, options: dict[str, Any], folder: Path | None) -> None:
    sampler.run(checkpoint=folder, **options)
    if folder is not None:
        shutil.rmtree(folder)


def overhead(pairs: int, at_least: float, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the time of runs with saves against that of runs without, in turns; for an idle machine."""
    rows = []
    for what, run_to in overhead_cases(at_least):
        times: dict[str, list[float]] = {"with": [], "without": []}
        for number in range(pairs):
            for way in list(times)[:: 1 if number % 2 else -1]:
                began = time.perf_counter()
                run_to(folder / "run" if way == "with" else None)
                times[way].append(time.perf_counter() - began)
        named = f"overhead of saves, {what}"
        rows.append(side_by_side.compare(named, "with", "without", times, at_most=MOST_OVERHEAD))
    return rows


def share(at_least: float, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the CPU time of the threads that save, while they do, against that of the whole run.

    Other work on the machine changes times by more than a save takes, and CPU times hardly at all.
    """
    from phalanx.posterior.run_folder import RunFolder
    from phalanx.run.checkpoint import RunCheckpoint

    rows, taken = [], []

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*arguments)
            finally:
                taken.append(time.thread_time() - began)

        return count

    # type checkers refuse an assignment to a method
    setattr(RunCheckpoint, "offer", counted(RunCheckpoint.offer))  # noqa: B010
    setattr(RunFolder, "write", counted(RunFolder.write))  # noqa: B010
    for what, run_to in overhead_cases(at_least):
        taken.clear()
        began = time.process_time()
        run_to(folder / "run")
        times = {"saves": [sum(taken)], "the run": [time.process_time() - began]}
        named = f"CPU time of saves, {what}"
        rows.append(side_by_side.compare(named, "saves", "the run", times, at_most=round(MOST_OVERHEAD - 1, 3)))
    return rows
