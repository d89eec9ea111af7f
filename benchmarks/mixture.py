"""Random-walk Metropolis on the mixture: Phalanx, a jitted step called from Python, and one compiled loop.

The generator draws from 1,000 chains, as such programs do; loops are given the number of chains they are fastest with.
All add up the moments; none stores a draw. Loops run on one device, as one writes them, without and with the compiler's
flag that Phalanx sets; Phalanx runs on every core, and on one. The density has its components written out, or is as one
writes it: a log-sum-exp over the components in the loop, `MixtureSameFamily` in Phalanx.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import side_by_side
from side_by_side import Measured, Way

LOOPS = (1_000, 4_000, 16_000)
CHAINS = (1_000, 10_000, 1_000_000)
STEP_SIZE = 0.1


def phalanx_ways(options: argparse.Namespace) -> dict[str, Way]:
    import resource

    import jax

    import phalanx as phx
    from phalanx.demos.mixture import model, model_as_written

    def way(model: Any, chains: int, mesh: Any = None) -> Way:
        kernel, reducers = phx.rwmh(step_size=STEP_SIZE), {"m": phx.reducers.moments()}
        sampler = phx.compile(model, kernel=kernel, num_chains=chains, mesh=mesh, keep=[], reducers=reducers)

        def run() -> Measured:
            posterior = sampler.run(num_warmup=0, num_samples=options.samples // chains, progress=False)
            note = options.results / "mixture_memory.txt"
            note.write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6))
            return Measured(posterior.timing.sampling, posterior.reduced["m"]["x"].count)

        return Way(run)

    one = phx.make_mesh(devices=jax.devices()[:1])
    ways = {f"Phalanx, {chains:,} chains": way(model, chains) for chains in CHAINS}
    ways["Phalanx on one device, 1,000 chains"] = way(model, 1_000, one)
    return ways | {
        f"Phalanx, MixtureSameFamily, {chains:,} chains": way(model_as_written, chains) for chains in CHAINS[:2]
    }


def plain_ways(options: argparse.Namespace) -> dict[str, Way]:
    import jax
    import jax.numpy as jnp
    from jax.scipy.special import logsumexp

    from phalanx.demos.mixture import LOC, SCALE, WEIGHT, log_density
    from phalanx.run.device.executables import WIDE

    def log_sum_exp(x):
        return logsumexp(np.log(WEIGHT / SCALE) - 0.5 * ((x[..., None] - LOC) / SCALE) ** 2, axis=-1)

    def step(carry, density=log_density):
        key, x, height, total, squares = carry
        key, propose, decide = jax.random.split(key, 3)
        proposal = x + STEP_SIZE * jax.random.normal(propose, x.shape)
        proposed = density(proposal)
        accept = jnp.log(jax.random.uniform(decide, x.shape)) < proposed - height
        x, height = jnp.where(accept, proposal, x), jnp.where(accept, proposed, height)
        return key, x, height, total + x, squares + x**2

    def begin(chains, density=log_density):
        x = jnp.zeros(chains)
        return jax.random.key(0), x, density(x), x, x

    jitted = jax.jit(step)

    def generator() -> None:
        carry, draws = begin(1_000), options.plain_samples // 10_000
        for _ in range(draws):
            carry = jitted(carry)
        jax.block_until_ready(carry)

    def loop(density: Any, chains: int, flags: Any = None) -> Way:
        draws = options.plain_samples // chains
        whole = jax.jit(
            lambda carry: jax.lax.fori_loop(0, draws, lambda _, c: step(c, density), carry), compiler_options=flags
        )
        return Way(lambda: jax.block_until_ready(whole(begin(chains, density))), draws * chains)

    ways = {"a generator, 1,000 chains": Way(generator, options.plain_samples // 10_000 * 1_000)}
    for chains in LOOPS:
        ways[f"one loop, {chains:,} chains"] = loop(log_density, chains)
        ways[f"one loop with our flag, {chains:,} chains"] = loop(log_density, chains, WIDE)
        ways[f"one loop of a log-sum-exp with our flag, {chains:,} chains"] = loop(log_sum_exp, chains, WIDE)
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
        # a nanosecond a sample is a second for 1e9 of them
        billion = {name: [1e6 * t for t in taken] for name, taken in times.items()}
        written_out = {name: times[name] for name in (f"Phalanx, {chains:,} chains" for chains in CHAINS)}
        ours, written = side_by_side.fastest(written_out, ""), side_by_side.fastest(times, "MixtureSameFamily")
        plain, flag, summed = (
            side_by_side.fastest(times, f"one loop{kind}, ")
            for kind in ("", " with our flag", " of a log-sum-exp with our flag")
        )
        alone, most = "Phalanx on one device, 1,000 chains", f"Phalanx, {CHAINS[-1]:,} chains"
        pairs = [
            ("Phalanx, 1,000 chains", "a generator, 1,000 chains", 0.1),
            (ours, plain, 0.4),
            (ours, flag, 1.0),
            (alone, flag, 1.0),
            (written, summed, 1.0),
            (written, ours, 1.25),
            (most, ours, 1.25),
        ]
        found = [side_by_side.compare("a sample", a, b, billion, at_most=at_most, unit="ns") for a, b, at_most in pairs]
        note = options.results / "mixture_memory.txt"
        memory = float(note.read_text())
        note.unlink()
        return [row | {"peak_memory_gb": round(memory, 2)} for row in found]

    def settings(options: argparse.Namespace) -> dict[str, Any]:
        return {name: getattr(options, name) for name in ("samples", "plain_samples", "rounds")}

    side_by_side.run(str(Path(__file__)), parser, devices, ways, rows, settings)


if __name__ == "__main__":
    main()
