"""Random-walk Metropolis on the mixture: Phalanx, a jitted step called from Python, and one compiled loop.

The generator draws from 1,000 chains, as such programs do; the loop is given the number of chains it is fastest with.
All add up the moments; none stores a draw.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import side_by_side
from side_by_side import Measured, Way

LOOPS = (1_000, 4_000, 16_000)
CHAINS = (1_000, 10_000, 1_000_000)
STEP_SIZE = 0.1


def phalanx_ways(options: argparse.Namespace) -> dict[str, Way]:
    import resource

    import phalanx as phx
    from phalanx.demos.mixture import model

    ways = {}
    for chains in CHAINS:
        sampler = phx.compile(
            model, kernel=phx.rwmh(step_size=STEP_SIZE), num_chains=chains, num_warmup=0,
            num_samples=options.samples // chains, keep=[], reducers={"m": phx.reducers.moments()}, progress=False,
        )  # fmt: skip

        def run(sampler=sampler):
            posterior = sampler.run()
            note = options.results / "mixture_memory.txt"
            note.write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6))
            return Measured(posterior.timing.sampling, posterior.reduced["m"]["x"].count)

        ways[f"Phalanx, {chains:,} chains"] = Way(run)
    return ways


def plain_ways(options: argparse.Namespace) -> dict[str, Way]:
    import jax
    import jax.numpy as jnp

    from phalanx.demos.mixture_density import log_density

    def step(carry):
        key, x, height, total, squares = carry
        key, propose, decide = jax.random.split(key, 3)
        proposal = x + STEP_SIZE * jax.random.normal(propose, x.shape)
        proposed = log_density(proposal)
        accept = jnp.log(jax.random.uniform(decide, x.shape)) < proposed - height
        x, height = jnp.where(accept, proposal, x), jnp.where(accept, proposed, height)
        return key, x, height, total + x, squares + x**2

    def begin(chains):
        x = jnp.zeros(chains)
        return jax.random.key(0), x, log_density(x), x, x

    jitted, ways = jax.jit(step), {}

    def generator():
        carry, draws = begin(1_000), options.plain_samples // 10_000
        for _ in range(draws):
            carry = jitted(carry)
        jax.block_until_ready(carry)

    ways["a generator, 1,000 chains"] = Way(generator, options.plain_samples // 10_000 * 1_000)
    for chains in LOOPS:
        draws = options.plain_samples // chains
        loop = jax.jit(lambda carry, draws=draws: jax.lax.fori_loop(0, draws, lambda _, c: step(c), carry))

        def run(loop=loop, chains=chains):
            jax.block_until_ready(loop(begin(chains)))

        ways[f"one loop, {chains:,} chains"] = Way(run, draws * chains)
    return ways


def ways(options: argparse.Namespace) -> dict[str, Way]:
    return plain_ways(options) if options.serve_on == 1 else phalanx_ways(options)


def main() -> None:
    parser = side_by_side.arguments(__doc__ or "", rounds=3)
    parser.add_argument("--samples", type=int, default=10**9, help="of a run of Phalanx")
    parser.add_argument("--plain-samples", type=int, default=10**8, help="of a run of the others")
    options = parser.parse_args()
    devices = [1, max(2, side_by_side.machine()["cores"])]

    def rows(times: side_by_side.Times) -> list[dict[str, Any]]:
        ours, loop = side_by_side.fastest(times, "Phalanx"), side_by_side.fastest(times, "one loop")
        # a nanosecond a sample is a second for 1e9 of them
        billion = {name: [1e6 * t for t in taken] for name, taken in times.items()}
        thousand = "Phalanx, 1,000 chains"
        found = [
            side_by_side.compare("a sample", thousand, "a generator, 1,000 chains", billion, at_most=0.1, unit="ns"),
            side_by_side.compare("a sample", ours, loop, billion, at_most=0.4, unit="ns"),
            side_by_side.compare("a sample", f"Phalanx, {CHAINS[-1]:,} chains", ours, billion, at_most=1.25, unit="ns"),
        ]
        note = options.results / "mixture_memory.txt"
        memory = float(note.read_text())
        note.unlink()
        return [row | {"peak_memory_gb": round(memory, 2)} for row in found]

    def settings(options: argparse.Namespace) -> dict[str, Any]:
        return {name: getattr(options, name) for name in ("samples", "plain_samples", "rounds")}

    side_by_side.run(str(Path(__file__)), parser, devices, ways, rows, settings)


if __name__ == "__main__":
    main()
