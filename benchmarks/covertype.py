"""NUTS on the rows of Covertype's shape: against NumPyro and BlackJAX, 4 chains and 16.

Two figures: the time of a leapfrog of all chains on 581,012 rows x 55 columns; and, on fewer rows, the time of the
whole run per effective sample of the worst coefficient, with warm-up and without compilation. The columns are so
correlated that a peer's trajectories on all rows would take hours. Peers warm up as their documentation advises, with a
diagonal and with a dense metric; the faster of the two counts.
"""

from __future__ import annotations

import argparse
import itertools
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import side_by_side
from side_by_side import Measured, Way

CHAINS = (4, 16)
METRICS = ("diagonal", "dense")
SEEDS = itertools.count()
LEAPFROGS = 7
"""Of a trajectory, in the rows on the time of a leapfrog."""


def rows_of(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Generate rows as sparse as Covertype's."""
    from phalanx.datasets import generate_covertype

    data = generate_covertype()
    x, y = np.concatenate([data.train_x, data.test_x]), np.concatenate([data.train_y, data.test_y])
    return x[:count], y[:count]


def model_of(sample: Any) -> Any:
    import numpyro.distributions as dist

    def model(x, y):
        w = sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]))
        sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    return model


def worst_ess(draws: Any) -> float:
    from phalanx.diagnostics import ess

    return float(np.min(ess(np.asarray(draws))))


def phalanx_ways(options: argparse.Namespace) -> dict[str, Way]:
    import phalanx as phx

    mesh = phx.make_mesh(chain=1, data=options.serve_on)
    whole, some = (phx.shard(dict(zip("xy", rows_of(n), strict=True)), mesh) for n in (options.rows, options.some_rows))
    model, ways = model_of(phx.sample), {}
    for chains in CHAINS:
        fixed = phx.hmc(LEAPFROGS, step_size=1e-4, step_size_jitter=0.0)
        steps = phx.compile(model, whole, mesh=mesh, num_chains=chains, kernel=fixed)
        run = phx.compile(model, some, mesh=mesh, num_chains=chains)

        def leapfrogs(steps=steps):
            posterior = steps.run(num_warmup=0, num_samples=options.steps, progress=False)
            return Measured(posterior.timing.sampling, options.steps * LEAPFROGS)

        def effective(run=run):
            posterior = run.run(next(SEEDS), num_warmup=options.warmup, num_samples=options.draws, progress=False)
            return Measured(posterior.timing.warmup + posterior.timing.sampling, worst_ess(posterior.draws["w"]))

        ways[f"Phalanx, {chains} chains, a leapfrog"] = Way(leapfrogs)
        ways[f"Phalanx, {chains} chains, an effective sample"] = Way(effective)
    return ways


def numpyro_ways(options: argparse.Namespace) -> dict[str, Way]:
    import jax
    import numpyro
    from numpyro.infer import HMC, MCMC, NUTS

    (x, y), ways = rows_of(options.rows), {}
    whole = {"x": jax.numpy.asarray(x), "y": jax.numpy.asarray(y)}
    some = {name: array[: options.some_rows] for name, array in whole.items()}
    model = model_of(numpyro.sample)

    def mcmc(kernel, chains, warmup, draws):
        return MCMC(
            kernel, num_warmup=warmup, num_samples=draws, num_chains=chains, chain_method="vectorized",
            progress_bar=False,
        )  # fmt: skip

    for chains in CHAINS:
        fixed = HMC(model, step_size=1e-4, num_steps=LEAPFROGS, adapt_step_size=False, adapt_mass_matrix=False)
        steps = mcmc(fixed, chains, 0, options.steps)

        def timed(sampler, data):
            began = time.perf_counter()
            sampler.run(jax.random.key(next(SEEDS)), **data)
            draws = jax.block_until_ready(sampler.get_samples(group_by_chain=True)["w"])
            return time.perf_counter() - began, draws

        def leapfrogs(steps=steps, timed=timed):
            return Measured(timed(steps, whole)[0], options.steps * LEAPFROGS)

        ways[f"NumPyro, {chains} chains, a leapfrog"] = Way(leapfrogs)
        for metric in METRICS:
            run = mcmc(NUTS(model, dense_mass=metric == "dense"), chains, options.warmup, options.draws)

            def effective(run=run, timed=timed):
                seconds, draws = timed(run, some)
                return Measured(seconds, worst_ess(draws))

            ways[f"NumPyro, {chains} chains, an effective sample, {metric} metric"] = Way(effective)
    return ways


def blackjax_ways(options: argparse.Namespace) -> dict[str, Way]:
    import blackjax
    import jax
    import jax.numpy as jnp

    (x, y), ways = rows_of(options.some_rows), {}
    x, y = jnp.asarray(x), jnp.asarray(y)

    def density(w, x, y):
        logits = x @ w
        return jnp.sum(y * logits - jax.nn.softplus(logits)) - 0.5 * jnp.sum(w**2)

    @partial(jax.jit, static_argnums=4)
    def run(keys, starts, x, y, diagonal):
        def log_density(w):
            return density(w, x, y)

        adaptation = blackjax.window_adaptation(blackjax.nuts, log_density, is_mass_matrix_diagonal=diagonal)
        kernel = blackjax.nuts.build_kernel()

        def one(key, start):
            warm, sample = jax.random.split(key)
            (state, tuned), _ = adaptation.run(warm, start, options.warmup)

            def step(state, key):
                state, _ = kernel(key, state, log_density, **tuned)
                return state, state.position

            return jax.lax.scan(step, state, jax.random.split(sample, options.draws))[1]

        return jax.vmap(one)(keys, starts)

    for chains, metric in itertools.product(CHAINS, METRICS):

        def effective(chains=chains, diagonal=metric == "diagonal"):
            first, second = jax.random.split(jax.random.key(next(SEEDS)))
            starts = jax.random.uniform(first, (chains, x.shape[1]), minval=-2.0, maxval=2.0)
            began = time.perf_counter()
            draws = jax.block_until_ready(run(jax.random.split(second, chains), starts, x, y, diagonal))
            return Measured(time.perf_counter() - began, worst_ess(draws))

        ways[f"BlackJAX, {chains} chains, an effective sample, {metric} metric"] = Way(effective)
    return ways


def ways(options: argparse.Namespace) -> dict[str, Way]:
    # the peers' chains are one program on one device, whose threads use every core
    if options.serve_on > 1:
        return phalanx_ways(options)
    return numpyro_ways(options) | blackjax_ways(options)


def main() -> None:
    parser = side_by_side.arguments(__doc__ or "", rounds=1)
    parser.add_argument("--rows", type=int, default=581_012, help="rows for the time of a leapfrog")
    parser.add_argument("--some-rows", type=int, default=5_000, help="rows for the time of an effective sample")
    parser.add_argument("--steps", type=int, default=4, help="trajectories for the time of a leapfrog")
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--draws", type=int, default=100)

    def rows(times: side_by_side.Times) -> list[dict[str, Any]]:
        found = []
        for chains in CHAINS:
            for peer, what in (
                ("NumPyro", "a leapfrog"),
                *((p, "an effective sample") for p in ("NumPyro", "BlackJAX")),
            ):
                theirs = side_by_side.fastest(times, f"{peer}, {chains} chains, {what}")
                row = f"{what}, {chains} chains", f"Phalanx, {chains} chains, {what}", theirs
                found.append(side_by_side.compare(*row, times, at_most=0.6))
        return found

    def settings(options: argparse.Namespace) -> dict[str, Any]:
        return {name: getattr(options, name) for name in ("rows", "some_rows", "warmup", "draws", "rounds")}

    devices = [1, max(2, side_by_side.machine()["cores"])]
    side_by_side.run(str(Path(__file__)), parser, devices, ways, rows, settings)


if __name__ == "__main__":
    main()
