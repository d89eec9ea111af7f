"""Many chains with stored draws: lanes advanced in tiles, against all lanes of a device at once.

A turn is a whole run on one device, without warm-up.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from typing import Any

import side_by_side
from side_by_side import Way

AT_MOST = 1.05
"""Of the time of all lanes at once, for any number of chains: tiles are then used for all."""


def ways(options: argparse.Namespace) -> dict[str, Way]:
    import jax
    import numpyro.distributions as dist

    import phalanx as phx

    def quartic() -> None:
        x = phx.sample("x", dist.Normal(0.0, 1.0).expand([options.size]))
        phx.factor("tails", -0.1 * (x**4).sum())

    kernels = {"rwmh": phx.rwmh(0.8), "hmc": phx.hmc(10, step_size=0.2), "nuts": phx.nuts(step_size=0.3)}
    one = phx.make_mesh(devices=jax.devices()[:1])
    ways = {}
    for chains in options.chains:
        for name, kernel in kernels.items():
            for kind, tile in (("tiles", ""), ("all at once", str(chains))):
                os.environ["PHALANX_TILE"] = tile  # read when a sampler is compiled
                sampler = phx.compile(quartic, kernel=kernel, num_chains=chains, mesh=one)
                sizes = {"num_warmup": 0, "num_samples": options.draws // chains, "progress": False}
                ways[f"{name}, {chains:,} chains, {kind}"] = Way(partial(sampler.run, 0, **sizes))
    return ways


def main() -> None:
    parser = side_by_side.arguments(__doc__ or "", rounds=5)
    parser.add_argument("--size", type=int, default=10, help="coordinates")
    parser.add_argument("--draws", type=int, default=200_000, help="of a turn, over all chains")
    parser.add_argument("--chains", type=int, nargs="+", default=[256, 2_000, 10_000])

    def rows(times: side_by_side.Times) -> list[dict[str, Any]]:
        names = [name.removesuffix(", tiles") for name in times if name.endswith(", tiles")]
        return [
            side_by_side.compare(name, f"{name}, tiles", f"{name}, all at once", times, at_most=AT_MOST)
            for name in names
        ]

    def settings(options: argparse.Namespace) -> dict[str, Any]:
        return {name: getattr(options, name) for name in ("size", "draws", "chains", "rounds")}

    side_by_side.run(str(Path(__file__)), parser, [1], ways, rows, settings)


if __name__ == "__main__":
    main()
