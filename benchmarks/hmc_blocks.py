"""HMC with fixed steps as Phalanx and as NumPyro compile it: blocks of draws, each from the end of the last."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def add_sizes(parser: argparse.ArgumentParser, leapfrogs: int) -> argparse.ArgumentParser:
    """Add the options for the size of a turn."""
    parser.add_argument("--draws", type=int, default=2, help="draws in a turn")
    parser.add_argument("--leapfrogs", type=int, default=leapfrogs, help="leapfrogs in a draw")
    return parser


def phalanx_block(
    model: Callable[..., Any], host: Mapping[str, np.ndarray], options: argparse.Namespace, step_size: float, *,
    num_chains: int = 1, **sizes: int,
) -> Callable[[], None]:  # fmt: skip
    """Return Phalanx's compiled block on a mesh of these sizes, with arrays sharded over `data`."""
    import jax

    import phalanx as phx
    from phalanx.run.device.executables import block_arguments
    from phalanx.run.init_values import Initial

    mesh = phx.make_mesh(**sizes)
    kernel = phx.hmc(num_steps=options.leapfrogs, step_size=step_size)
    sampler = phx.compile(model, phx.shard(host, mesh), kernel=kernel, num_chains=num_chains, mesh=mesh)
    blocks, seed = sampler.executables, np.uint32(0)
    chains = blocks.start(seed, sampler.arrays, Initial()).chains
    tuning = jax.device_put(kernel.tuning, jax.NamedSharding(mesh, jax.P()))
    until_done = block_arguments(np.full(num_chains, options.draws), ticks=options.draws)

    def run() -> None:
        nonlocal chains
        made = 0
        while made < options.draws:  # a block holds as many draws as fit into it
            none = blocks.no_records(sampler.arrays, np.zeros(num_chains, np.int32))
            arguments = seed, sampler.arrays, tuning, until_done, blocks.rounds.no_rounds(), chains, none
            advanced = jax.block_until_ready(blocks.record(*arguments))
            chains, made = advanced.chains, made + int(np.asarray(advanced.sinks.count).min())

    return run


def numpyro_block(
    model: Callable[..., Any], data: Mapping[str, Any], options: argparse.Namespace, step_size: float, *,
    num_chains: int, method: str,
) -> Callable[[], None]:  # fmt: skip
    """Return NumPyro's kernel in a compiled loop with the data as arguments: `MCMC.run` would compile in every call."""
    import jax
    import jax.numpy as jnp
    from jax import lax, random
    from numpyro.infer import HMC

    kernel = HMC(
        model, step_size=step_size, num_steps=options.leapfrogs, trajectory_length=None, adapt_step_size=False,
        adapt_mass_matrix=False,
    )  # fmt: skip
    keys = random.split(random.key(0), num_chains)
    # HMC.init prepares HMC.sample for one chain, or for a batch of them when given a batch of keys
    several = method == "vectorized" and num_chains > 1
    state = kernel.init(keys if several else keys[0], 0, None, (), data)

    def block(state, data):
        def draw(i, carry):
            state, draws = carry
            state = kernel.sample(state, (), data)
            return state, jax.tree.map(lambda d, new: d.at[i].set(new), draws, state.z)

        draws = jax.tree.map(lambda z: jnp.zeros((options.draws, *z.shape), z.dtype), state.z)
        return lax.fori_loop(0, options.draws, draw, (state, draws))

    if method == "parallel":
        run_block = jax.pmap(block, in_axes=(0, None))
        state = jax.pmap(lambda key: kernel.init(key, 0, None, (), data))(keys)
    else:
        run_block = jax.jit(block)

    def run() -> None:
        nonlocal state
        state, _ = jax.block_until_ready(run_block(state, data))
        assert int(jnp.max(state.num_steps)) == options.leapfrogs

    return run
