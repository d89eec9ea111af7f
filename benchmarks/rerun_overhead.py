"""Overhead of calling `phx.mcmc` again with another seed, above warm-up and sampling themselves.

The model is a regression of 500 rows on 20 columns; its run is short, so that overhead shows. Overhead is the wall time
of the call less the time inside the compiled blocks. Learning between the rounds of warm-up, each of which is a block,
takes most of it, and HMC with a metric has twice as many rounds as without, so rounds are counted. A call without
warm-up has the rest: the trace that determines if anything must be compiled, the data, and the posterior.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import side_by_side

AT_MOST = 0.05
"""Seconds above."""


class Timed:
    """Compiled block with a clock."""

    seconds = 0.0

    def __init__(self, block: Any):
        self._block = block

    def __call__(self, *args: Any) -> Any:
        import jax

        began = time.perf_counter()
        out = jax.block_until_ready(self._block(*args))
        Timed.seconds += time.perf_counter() - began
        return out

    def __getattr__(self, name: str) -> Any:
        return getattr(self._block, name)


CASES = (
    ("a second call, no warm-up", "identity", 0),
    ("a second call, no metric", "identity", 500),
    ("a second call, with a metric", "auto", 500),
)
"""What is called, its metric, and iterations of warm-up."""


def calls(metric: str, num_warmup: int, rounds: int) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Return seconds of each call and inside its blocks; programs compiled and rounds of warm-up of the last call."""
    import numpy as np
    import numpyro.distributions as dist

    import phalanx as phx
    from phalanx.run.compile import executable_cache

    random = np.random.default_rng(0)
    x = random.normal(size=(500, 20)).astype(np.float32)
    y = (x.sum(1) + random.normal(size=500)).astype(np.float32)

    def model(x: Any, y: Any) -> None:
        w = phx.sample("w", dist.Normal(0.0, 1.0).expand([20]))
        phx.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    def call(seed: int) -> Any:
        kernel = phx.hmc(num_steps=10, metric=metric)
        sizes = {"num_chains": 4, "num_warmup": num_warmup, "num_samples": 500}
        return phx.mcmc(model, {"x": x, "y": y}, kernel=kernel, seed=seed, **sizes, progress=False)

    executable_cache.EXECUTABLES.clear()  # blocks of another case have a clock on them already
    call(0)
    key, executables = executable_cache.EXECUTABLES.last()  # the blocks of that run, with a clock on each
    blocks = {name: Timed(getattr(executables, name)) for name in ("begin", "record", "constrain")}
    executable_cache.EXECUTABLES.keep(key, replace(executables, **blocks))
    times: dict[str, list[float]] = {"call": [], "inside the blocks": []}
    compilations = warm_up = 0
    for seed in range(rounds + 1):
        Timed.seconds, began = 0.0, time.perf_counter()
        posterior = call(seed)
        if seed:  # the first of the timed blocks is of no account
            times["call"].append(time.perf_counter() - began)
            times["inside the blocks"].append(Timed.seconds)
            compilations += posterior.timing.compilations
        warm_up = len(posterior.warmup.get("step_size", ()))
    return times, {"compilations": compilations, "rounds_of_warm_up": warm_up}


def main() -> None:
    options = side_by_side.arguments(__doc__ or "", rounds=9).parse_args()
    watch, rows, settings, taken = side_by_side.Watch(), [], {"rounds": options.rounds}, {}
    for what, metric, num_warmup in CASES:
        times, counted = calls(metric, num_warmup, options.rounds)
        row = side_by_side.compare(what, "call", "inside the blocks", times, at_most=float("inf"))
        both = zip(times["call"], times["inside the blocks"], strict=True)
        above = sorted(call - inside for call, inside in both)[options.rounds // 2]
        met = above <= AT_MOST and counted["compilations"] == 0
        rows.append(row | {"at_most": "50 ms above", "above_ms": round(1e3 * above, 2), "met": met})
        settings[what], taken = counted, taken | {f"{what}, {name}": times[name] for name in times}
    side_by_side.write("rerun_overhead", rows, settings, watch, options.results, taken)


if __name__ == "__main__":
    main()
