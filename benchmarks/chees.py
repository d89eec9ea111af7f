"""ChEES-HMC with 256 chains on a logistic regression of 25 columns: time per effective sample, against BlackJAX's.

Both warm up for the same number of iterations. "sampling" is the time of the draws alone, "whole run" includes the
warm-up; both exclude compilation.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

import side_by_side
from many_chains import MODELS, data_of, model_of, worst_ess
from side_by_side import Measured, Way

MODEL = MODELS[2]
SEEDS = itertools.count()


def phalanx_ways(options: argparse.Namespace) -> dict[str, Way]:
    import phalanx as phx

    model, data = model_of(MODEL, phx.sample), data_of(MODEL)
    sampler = phx.compile(model, data, kernel=phx.chees(), num_chains=options.chains)

    def run(whole: bool) -> Measured:
        posterior = sampler.run(next(SEEDS), num_warmup=options.warmup, num_samples=options.draws, progress=False)
        return Measured(posterior.timing.sampling + whole * posterior.timing.warmup, worst_ess(posterior.draws))

    return {"Phalanx, sampling": Way(lambda: run(False)), "Phalanx, whole run": Way(lambda: run(True))}


def blackjax_ways(options: argparse.Namespace) -> dict[str, Way]:
    import blackjax
    import jax
    import jax.numpy as jnp
    import optax

    x, y = (jnp.asarray(array) for array in data_of(MODEL).values())

    def log_density(w):
        logits = x @ w
        return jnp.sum(y * logits - jax.nn.softplus(logits)) - 0.5 * jnp.sum(w**2)

    @jax.jit
    def warm_up(key, starts):
        warmup = blackjax.chees_adaptation(log_density, options.chains)
        (states, parameters), _ = warmup.run(key, starts, 0.1, optax.adam(0.02), options.warmup)
        return states, parameters["step_size"], parameters["integration_steps_params"]

    def sampled(key, states, step_size, lengths):
        parameters = blackjax_parameters(step_size, lengths)
        kernel = jax.vmap(blackjax.dynamic_hmc(log_density, **parameters).step)

        def step(states, key):
            states, _ = kernel(jax.random.split(key, options.chains), states)
            return states, states.position

        return jax.lax.scan(step, states, jax.random.split(key, options.draws))[1]

    # the functions that draw the numbers of steps are no arrays: they are taken from one warm-up and kept
    warmup = blackjax.chees_adaptation(log_density, options.chains)
    key, starts = jax.random.key(0), jax.random.uniform(jax.random.key(1), (options.chains, 25), minval=-2, maxval=2)
    (_, found), _ = warmup.run(key, starts, 0.1, optax.adam(0.02), 2)

    def blackjax_parameters(step_size, lengths):
        return found | {"step_size": step_size, "integration_steps_params": lengths}

    draw = jax.jit(sampled)

    def run(whole: bool) -> Measured:
        first, second, third = jax.random.split(jax.random.key(next(SEEDS)), 3)
        starts = jax.random.uniform(first, (options.chains, 25), minval=-2.0, maxval=2.0)
        began = time.perf_counter()
        warm = jax.block_until_ready(warm_up(second, starts))
        middle = time.perf_counter()
        draws = jax.block_until_ready(draw(third, *warm))
        return Measured(time.perf_counter() - (began if whole else middle), worst_ess({"w": draws.swapaxes(0, 1)}))

    return {"BlackJAX, sampling": Way(lambda: run(False)), "BlackJAX, whole run": Way(lambda: run(True))}


def ways(options: argparse.Namespace) -> dict[str, Way]:
    return blackjax_ways(options) if options.serve_on == 1 else phalanx_ways(options)


def main() -> None:
    parser = side_by_side.arguments(__doc__ or "", rounds=5)
    parser.add_argument("--chains", type=int, default=256)
    parser.add_argument("--warmup", type=int, default=300)
    parser.add_argument("--draws", type=int, default=200)
    devices = [1, max(2, side_by_side.machine()["cores"])]

    def rows(times: side_by_side.Times) -> list[dict[str, Any]]:
        return [
            side_by_side.compare(
                f"an effective sample, {phase}", f"Phalanx, {phase}", f"BlackJAX, {phase}", times, at_most=at_most
            )
            for phase, at_most in (("sampling", 0.667), ("whole run", 1.0))
        ]

    def settings(options: argparse.Namespace) -> dict[str, Any]:
        return {name: getattr(options, name) for name in ("chains", "warmup", "draws", "rounds")}

    side_by_side.run(str(Path(__file__)), parser, devices, ways, rows, settings)


if __name__ == "__main__":
    main()
