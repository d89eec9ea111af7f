"""Calling `phx.mcmc` again with another seed: what it costs above the warm-up and sampling themselves.

The model is a regression of 500 rows on 20 columns, whose run is short, so that overhead shows. Above the sampling is
the wall time of the call less the time inside the compiled blocks.
"""

from __future__ import annotations

import time
from dataclasses import replace

import side_by_side


def main() -> None:
    options = side_by_side.arguments(__doc__, rounds=9).parse_args()
    watch = side_by_side.Watch()
    import jax
    import numpy as np
    import numpyro.distributions as dist

    import phalanx as phx
    from phalanx.run import kept as module

    random = np.random.default_rng(0)
    x = random.normal(size=(500, 20)).astype(np.float32)
    y = (x.sum(1) + random.normal(size=500)).astype(np.float32)

    def model(x, y):
        w = phx.sample("w", dist.Normal(0.0, 1.0).expand([20]))
        phx.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    arguments = {"kernel": phx.hmc(num_steps=10), "num_chains": 4, "num_warmup": 500, "num_samples": 500}
    phx.mcmc(model, {"x": x, "y": y}, **arguments, progress=False)

    inside = [0.0]

    class Timed:
        """A compiled block with a clock on it."""

        def __init__(self, block):
            self._block = block

        def __call__(self, *args):
            began = time.perf_counter()
            out = jax.block_until_ready(self._block(*args))
            inside[0] += time.perf_counter() - began
            return out

        def __getattr__(self, name):
            return getattr(self._block, name)

    # the blocks of the run above, with a clock on each
    key, kept = next(iter(module._kept.items()))
    blocks = {name: Timed(getattr(kept, name)) for name in ("begin", "record", "constrain")}
    module._kept[key] = replace(kept, **blocks)
    times, compilations = {"call": [], "inside the blocks": []}, 0
    for seed in range(1, options.rounds + 1):
        inside[0] = 0.0
        began = time.perf_counter()
        posterior = phx.mcmc(model, {"x": x, "y": y}, **arguments, seed=seed, progress=False)
        times["call"].append(time.perf_counter() - began)
        times["inside the blocks"].append(inside[0])
        compilations += posterior.timing.compilations
    row = side_by_side.compare("a second call", "call", "inside the blocks", times, at_most=float("inf"))
    above = sorted(a - b for a, b in zip(times["call"], times["inside the blocks"], strict=True))[options.rounds // 2]
    row |= {"at_most": "50 ms above", "above_ms": round(1e3 * above, 2), "met": above <= 0.05 and compilations == 0}
    settings = {"rounds": options.rounds, "compilations": compilations}
    side_by_side.write("rerun_overhead", [row], settings, watch, options.results, times)


if __name__ == "__main__":
    main()
