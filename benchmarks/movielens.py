"""HMC on MovieLens at full size, 2 chains: against the same mathematics by hand and against NumPyro; time and memory.

By hand means what a good JAX programmer would write for this one model, with `jax.grad` over the whole matrix: users
sharded over two devices in a `shard_map` whose leapfrog ends in a `psum`, or a device for each chain. NumPyro has its
chains vectorised or a device for each. The fastest of each is quoted. Memory is the peak of a process that does nothing
else.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hmc_blocks
import numpy as np
import side_by_side
from side_by_side import Times, Way

USERS, FILMS, DIMENSIONS = 6040, 3706, 20
CHAINS, STEP_SIZE = 2, 1e-3
WAYS = {
    "Phalanx, users over 2": 2, "Phalanx, chains over 2": 2, "by hand, users over 2": 2, "by hand, chains over 2": 2,
    "NumPyro, vectorized": 1, "NumPyro, parallel": 2,
}  # fmt: skip
"""And the devices of each."""


def load(folder: Path | None) -> np.ndarray:
    if folder is None:
        return (np.random.default_rng(0).random((USERS, FILMS)) < 0.0447).astype(np.int8)
    from phalanx.datasets import movielens

    return movielens(folder).matrix


def phalanx_model(watched):
    import numpyro.distributions as dist

    import phalanx as phx

    users, films = watched.shape
    film_embeddings = phx.sample("V", dist.Normal(0.0, 1.0).expand([films, DIMENSIONS]))
    film_biases = phx.sample("v", dist.Normal(0.0, 1.0).expand([films]))
    user_embeddings = phx.sample("U", dist.Normal(0.0, 1.0).expand([users, DIMENSIONS]))
    user_biases = phx.sample("u", dist.Normal(0.0, 1.0).expand([users]))

    def rows(embeddings, biases):
        return dist.Bernoulli(logits=embeddings @ film_embeddings.T + biases[:, None] + film_biases[None]).to_event(1)

    phx.sample("watched", phx.blocked(rows, user_embeddings, user_biases), obs=watched)


def numpyro_model(watched):
    import numpyro
    import numpyro.distributions as dist

    users, films = watched.shape
    film_embeddings = numpyro.sample("V", dist.Normal(0.0, 1.0).expand([films, DIMENSIONS]).to_event(2))
    film_biases = numpyro.sample("v", dist.Normal(0.0, 1.0).expand([films]).to_event(1))
    user_embeddings = numpyro.sample("U", dist.Normal(0.0, 1.0).expand([users, DIMENSIONS]).to_event(2))
    user_biases = numpyro.sample("u", dist.Normal(0.0, 1.0).expand([users]).to_event(1))
    logits = user_embeddings @ film_embeddings.T + user_biases[:, None] + film_biases
    numpyro.sample("watched", dist.Bernoulli(logits=logits).to_event(2), obs=watched)


def by_hand(watched: np.ndarray, options: argparse.Namespace, over: str) -> Callable[[], None]:
    """Return HMC on (U, u, V, v); users over two devices, chains under `vmap`, or a chain on each device."""
    import jax
    import jax.numpy as jnp
    from jax import P, lax, random

    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = over == "users"
    users = USERS // 2 if spread else USERS
    shapes = (users, DIMENSIONS), (users,), (FILMS, DIMENSIONS), (FILMS,)
    local = (True, True, False, False)

    def log_likelihood(position, watched):
        user_embeddings, user_biases, film_embeddings, film_biases = position
        logits = user_embeddings @ film_embeddings.T + user_biases[:, None] + film_biases
        return jnp.sum(watched * logits - jax.nn.softplus(logits))

    def add(parts):
        """Return the sum of the sharded parts over devices, plus the replicated parts."""
        own = sum(part for part, here in zip(parts, local, strict=True) if here)
        replicated = sum(part for part, here in zip(parts, local, strict=True) if not here)
        return (lax.psum(own, "d") if spread else own) + replicated

    def half_square(x):
        return add([0.5 * jnp.sum(leaf * leaf) for leaf in x])

    def grad(position, watched):
        gradient = jax.grad(log_likelihood)(position, watched)
        if spread:
            gradient = (*gradient[:2], *lax.psum(gradient[2:], "d"))
        return tuple(g - x for g, x in zip(gradient, position, strict=True))

    def value(position, watched):
        found = log_likelihood(position, watched)
        return (lax.psum(found, "d") if spread else found) - half_square(position)

    def chain(key, state, watched):
        def leapfrog(_, phase):
            position, momentum, gradient = phase
            momentum = tuple(p + 0.5 * STEP_SIZE * g for p, g in zip(momentum, gradient, strict=True))
            position = tuple(x + STEP_SIZE * p for x, p in zip(position, momentum, strict=True))
            gradient = grad(position, watched)
            return position, tuple(p + 0.5 * STEP_SIZE * g for p, g in zip(momentum, gradient, strict=True)), gradient

        def draw(i, carry):
            state, draws = carry
            position, before, gradient = state
            *keys, decide = random.split(random.fold_in(key, i), 5)
            pairs = zip(keys, local, strict=True)
            own = [random.fold_in(k, lax.axis_index("d")) if spread and here else k for k, here in pairs]
            momentum = tuple(random.normal(k, shape) for k, shape in zip(own, shapes, strict=True))
            new, end, new_gradient = lax.fori_loop(0, options.leapfrogs, leapfrog, (position, momentum, gradient))
            after = value(new, watched)
            accepted = jnp.log(random.uniform(decide)) < after - before - half_square(end) + half_square(momentum)
            state = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), (new, after, new_gradient), state)
            return state, jax.tree.map(lambda d, x: d.at[i].set(x), draws, state[0])

        draws = tuple(jnp.zeros((options.draws, *shape)) for shape in shapes)
        return lax.fori_loop(0, options.draws, draw, (state, draws))

    def block(keys, state, watched):
        if spread:
            return jax.vmap(chain, in_axes=(0, 0, None))(keys, state, watched)
        one = chain(keys[0], jax.tree.map(lambda leaf: leaf[0], state), watched)  # no batch of one
        return jax.tree.map(lambda leaf: leaf[None], one)

    if spread:
        leaves = (P(None, "d"), P(None, "d"), P(), P())
        drawn, whole, of_keys = (P(None, None, "d"), P(None, None, "d"), P(), P()), P("d"), P()
        states = (leaves, P(), leaves)
    else:
        drawn, whole, of_keys, states = P("d"), P(), P("d"), P("d")
    run_block = jax.jit(
        jax.shard_map(block, mesh=mesh, in_specs=(of_keys, states, whole), out_specs=(states, drawn), check_vma=False)
    )
    sizes = (USERS, DIMENSIONS), (USERS,), (FILMS, DIMENSIONS), (FILMS,)
    start = tuple(0.1 * jnp.ones((CHAINS, *size)) for size in sizes)
    state = (start, jnp.full(CHAINS, -jnp.inf), tuple(jnp.zeros_like(x) for x in start))
    watched = jax.device_put(watched, jax.NamedSharding(mesh, whole))
    keys = random.split(random.key(0), CHAINS)

    def run() -> None:
        nonlocal state
        state, _ = jax.block_until_ready(run_block(keys, state, watched))

    return run


def way(name: str, options: argparse.Namespace) -> Callable[[], None]:
    """Return one of the ways, ready to run."""
    system, how = name.split(", ")
    watched = load(options.data)
    if system == "by hand":
        return by_hand(watched, options, how.split()[0])
    if system == "NumPyro":
        import jax.numpy as jnp

        data = {"watched": jnp.asarray(watched)}
        return hmc_blocks.numpyro_block(numpyro_model, data, options, STEP_SIZE, num_chains=CHAINS, method=how)
    sizes = {"chain": 1, "data": 2} if how.startswith("users") else {"chain": 2, "data": 1}
    return hmc_blocks.phalanx_block(phalanx_model, {"watched": watched}, options, STEP_SIZE, num_chains=CHAINS, **sizes)


def ways(options: argparse.Namespace) -> dict[str, Way]:
    leapfrogs = options.draws * options.leapfrogs
    return {name: Way(way(name, options), leapfrogs) for name, count in WAYS.items() if count == options.serve_on}


def peaks() -> dict[str, float]:
    """Return the peak memory, in GB, of a process that does nothing else, by way."""
    found = {}
    for name in WAYS:
        command = [sys.executable, __file__, *sys.argv[1:], "--alone", name]
        found[name] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])
    return found


def alone(options: argparse.Namespace) -> None:
    """Run one way, and print its peak memory."""
    import jax

    jax.config.update("jax_num_cpu_devices", WAYS[options.alone])
    run = way(options.alone, options)
    run()
    run()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def rows(times: Times) -> list[dict[str, Any]]:
    found = [
        side_by_side.compare(
            f"a leapfrog of {CHAINS} chains", side_by_side.fastest(times, "Phalanx"),
            side_by_side.fastest(times, theirs), times, at_most=at_most,
        )
        for theirs, at_most in (("by hand", 1.053), ("NumPyro", 0.667))
    ]  # fmt: skip
    memory = peaks()
    ours, theirs = found[-1]["ours"], found[-1]["theirs"]
    ratio = memory[ours] / memory[theirs]
    row = {
        "what": "peak memory", "ours": ours, "ours_time": memory[ours], "theirs": theirs,
        "theirs_time": memory[theirs], "unit": "GB", "ratio": round(ratio, 3), "middle_half": [round(ratio, 3)] * 2,
        "at_most": 0.5, "met": ratio <= 0.5, "all": memory,
    }  # fmt: skip
    return [*found, row]


def settings(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "data": f"{USERS} x {FILMS}, {'MovieLens 1M' if options.data else 'random entries, as many'}",
        "chains": CHAINS, "draws": options.draws, "leapfrogs": options.leapfrogs, "rounds": options.rounds,
    }  # fmt: skip


if __name__ == "__main__":
    parser = hmc_blocks.add_sizes(side_by_side.arguments(__doc__, rounds=5), leapfrogs=10)
    parser.add_argument("--data", type=Path, help="folder of MovieLens; random entries, as many, without it")
    parser.add_argument("--alone", choices=list(WAYS), help=argparse.SUPPRESS)
    found = parser.parse_args()
    if found.alone:
        alone(found)
    else:
        side_by_side.run(__file__, parser, (1, 2), ways, rows, settings)
