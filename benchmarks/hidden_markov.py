"""A hidden Markov model by `phx.marginalize` against the forward algorithm by hand: gradients, compiling, states.

Both are programs of Phalanx, with the same HMC of four chains on one device; by hand means `jax.lax.scan` over the
steps and a `phx.factor`. States are drawn by `phx.recover`, and by hand backwards along the sums of the forward
algorithm.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import hmc_blocks
import numpy as np
import side_by_side
from side_by_side import Measured, Way

STATES, CHAINS, STEP_SIZE = 3, 4, 0.02
MEANS = np.array([-3.0, 0.0, 3.0], np.float32)


def observed(length: int) -> dict[str, np.ndarray]:
    """Return observations of a chain that stays in its state for a while."""
    random = np.random.default_rng(0)
    states = np.repeat(random.integers(0, STATES, length // 10 + 1), 10)[:length]
    return {"y": (MEANS[states] + random.normal(size=length)).astype(np.float32)}


def parameters() -> tuple[Any, Any]:
    """Sample the transition probabilities and the mean of each state."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    import phalanx as phx

    transitions = phx.sample("transitions", dist.Dirichlet(jnp.ones((STATES, STATES))).to_event(1))
    return transitions, phx.sample("means", dist.Normal(MEANS, 1.0).to_event(1))


def by_marginalize(y: Any) -> None:
    """Write the states as variables."""
    import numpyro.distributions as dist
    from numpyro.contrib.control_flow import scan

    import phalanx as phx

    transitions, means = parameters()

    def step(state: Any, y: Any) -> tuple[Any, None]:
        state = phx.sample("state", dist.Categorical(transitions[state]))
        phx.sample("y", dist.Normal(means[state], 1.0), obs=y)
        return state, None

    scan(step, 0, y)


def forward(transitions: Any, means: Any, y: Any) -> Any:
    """Return the log weights of the states at each step, given the observations so far."""
    import jax
    import jax.numpy as jnp
    import numpyro.distributions as dist

    likelihood = dist.Normal(means, 1.0).log_prob(y[:, None])
    log_transitions = jnp.log(transitions)

    def step(weights: Any, row: Any) -> tuple[Any, Any]:
        after = jax.nn.logsumexp(weights[:, None] + log_transitions, axis=0) + row
        return after, after

    first = log_transitions[0] + likelihood[0]
    _, others = jax.lax.scan(step, first, likelihood[1:])
    return jnp.concatenate([first[None], others])


def by_hand(y: Any) -> None:
    """Write the sum over all states as a factor."""
    import jax

    import phalanx as phx

    transitions, means = parameters()
    phx.factor("y", jax.nn.logsumexp(forward(transitions, means, y)[-1]))


def states_by_hand(draws: dict[str, np.ndarray], y: np.ndarray) -> np.ndarray:
    """Draw the states backwards, at each draw of the parameters."""
    import jax
    import jax.numpy as jnp

    def one(key: Any, transitions: Any, means: Any) -> Any:
        weights = forward(transitions, means, jnp.asarray(y))
        keys = jax.random.split(key, len(y))
        last = jax.random.categorical(keys[-1], weights[-1])

        def step(following: Any, row: Any) -> tuple[Any, Any]:
            key, weights = row
            state = jax.random.categorical(key, weights + jnp.log(transitions[:, following]))
            return state, state

        _, states = jax.lax.scan(step, last, (keys[:-1], weights[:-1]), reverse=True)
        return jnp.append(states, last)

    flat = {name: v.reshape(-1, *v.shape[2:]) for name, v in draws.items()}
    keys = jax.random.split(jax.random.key(0), len(flat["means"]))
    return np.asarray(jax.jit(jax.vmap(one))(keys, flat["transitions"], flat["means"]))


def ways(options: argparse.Namespace) -> dict[str, Way]:
    import jax

    import phalanx as phx

    jax.config.update("jax_enable_compilation_cache", False)  # each round compiles
    data, mesh = observed(options.length), phx.make_mesh(devices=jax.devices()[:1])
    programs = {"Phalanx": phx.marginalize(by_marginalize), "by hand": by_hand}
    found: dict[str, Way] = {}
    for name, program in programs.items():
        block = hmc_blocks.phalanx_block(program, data, options, STEP_SIZE, num_chains=CHAINS, chain=1, data=1)

        def compiled(program: Any = program) -> Measured:
            jax.clear_caches()
            began = time.process_time()
            jax.jit(jax.value_and_grad(phx.log_joint(program))).lower(*_at(data)).compile()
            return Measured(time.process_time() - began, 1.0)

        found[f"{name}, a leapfrog"] = Way(block, options.draws * options.leapfrogs)
        found[f"{name}, compiling"] = Way(compiled)
    run = {"num_chains": CHAINS, "num_warmup": 200, "num_samples": options.states, "progress": False, "mesh": mesh}
    posterior = phx.mcmc(programs["Phalanx"], data, **run)
    count = CHAINS * options.states
    found["Phalanx, states of a draw"] = Way(lambda: phx.recover(posterior), count)
    found["by hand, states of a draw"] = Way(lambda: states_by_hand(posterior.draws, data["y"]), count)
    return found


def _at(data: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    return {"transitions": np.full((STATES, STATES), 1 / STATES, np.float32), "means": MEANS}, data["y"]


def rows(times: side_by_side.Times) -> list[dict[str, Any]]:
    aims = {"a leapfrog": 1.2, "compiling": 1.3, "states of a draw": 3.0}
    return [
        side_by_side.compare(f"{what}, 200 steps", f"Phalanx, {what}", f"by hand, {what}", times, at_most=at_most)
        for what, at_most in aims.items()
    ]


def settings(options: argparse.Namespace) -> dict[str, Any]:
    return {"states": STATES, "chains": CHAINS, **{n: getattr(options, n) for n in ("length", "draws", "rounds")}}


if __name__ == "__main__":
    parser = hmc_blocks.add_sizes(side_by_side.arguments(__doc__, rounds=7), leapfrogs=20)
    parser.add_argument("--length", type=int, default=200, help="steps of the chain")
    parser.add_argument("--states", type=int, default=250, help="draws of each chain whose states are drawn")
    parser.set_defaults(draws=50)
    side_by_side.run(str(Path(__file__)), parser, (1,), ways, rows, settings)
