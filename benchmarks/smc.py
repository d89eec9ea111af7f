"""Evidence by particles: time for a given error, against BlackJAX's adaptive tempered SMC.

The evidences have closed forms: a regression of 20 coordinates, and two modes in 20 dimensions. A turn is one run with
a seed of its own; its unit of work is the precision, one over the mean squared error of all runs of the way so far, so
that a time is that for an error of one nat. BlackJAX moves by HMC with the variances of its particles as the metric, as
its own tuning does, and with the step sizes and numbers of moves, of those in `--grid`, that need the least time. Both
leave compilation out.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import side_by_side
from side_by_side import Measured, Way

COORDINATES, ROWS = 20, 200
SEEDS = itertools.count()


class Problem(NamedTuple):
    """A standard deviation of the prior, a log likelihood of `jax.numpy`, and the log evidence."""

    scale: float
    log_likelihood: Callable[[Any], Any]
    log_evidence: float


def problems() -> dict[str, Problem]:
    import jax.numpy as jnp
    from jax.scipy.special import logsumexp
    from jax.scipy.stats import norm

    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, COORDINATES))
    y = x @ random.normal(size=COORDINATES) + random.normal(size=ROWS)
    _, log_det = np.linalg.slogdet(np.eye(ROWS) + x @ x.T)
    quadratic = y @ np.linalg.solve(np.eye(ROWS) + x @ x.T, y)
    of_regression = -0.5 * (log_det + quadratic + ROWS * math.log(2 * math.pi))
    near, far = 0.5**2 + 2.0**2, 1.5
    of_modes = -0.5 * COORDINATES * (math.log(2 * math.pi * near) + far**2 / near)
    rows, outcomes = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)

    def two_modes(w: Any) -> Any:
        modes = jnp.stack([norm.logpdf(w, centre, 0.5).sum() for centre in (far, -far)])
        return logsumexp(modes + jnp.log(jnp.array([0.9, 0.1])))

    return {
        "regression": Problem(1.0, lambda w: norm.logpdf(outcomes, rows @ w, 1.0).sum(), of_regression),
        "two modes": Problem(2.0, two_modes, of_modes),
    }


class Errors:
    """Squared errors of the runs of a way."""

    def __init__(self, log_evidence: float):
        self._truth, self._squares = log_evidence, []

    def measured(self, seconds: float, found: float) -> Measured:
        """Return a run whose units are the precision of a run."""
        self._squares.append((found - self._truth) ** 2)
        return Measured(seconds, 1 / float(np.mean(self._squares)))


def phalanx_ways(options: argparse.Namespace) -> dict[str, Way]:
    import jax.numpy as jnp
    import numpyro.distributions as dist

    import phalanx as phx

    ways = {}
    for name, problem in problems().items():

        def model(problem=problem) -> None:
            w = phx.sample("w", dist.Normal(jnp.zeros(COORDINATES), problem.scale))
            phx.factor("likelihood", problem.log_likelihood(w))

        for kind in ("tempered", "persistent"):
            errors = Errors(problem.log_evidence)

            def run(model=model, kind=kind, errors=errors) -> Measured:
                particles = phx.smc(
                    model, seed=next(SEEDS), num_particles=options.particles, kernel=phx.hmc(num_steps=options.steps),
                    persistent=kind == "persistent", progress=False,
                )  # fmt: skip
                return errors.measured(particles.timing.sampling, particles.evidence().log_evidence)

            ways[f"Phalanx, {kind}, {name}"] = Way(run)
    return ways


def blackjax_ways(options: argparse.Namespace) -> dict[str, Way]:
    import blackjax
    import jax
    import jax.numpy as jnp
    from blackjax.smc import adaptive_tempered, resampling
    from jax.scipy.stats import norm

    def runner(problem: Problem, step_size: float, moves: int) -> Callable[[int], tuple[float, float]]:
        kernel = adaptive_tempered.build_kernel(
            lambda w: norm.logpdf(w, 0.0, problem.scale).sum(), problem.log_likelihood, blackjax.hmc.build_kernel(),
            blackjax.hmc.init, resampling.systematic, 0.5,
        )  # fmt: skip

        def again(carry: Any) -> Any:
            key, state, total = carry
            key, now = jax.random.split(key)
            parameters = {
                "step_size": jnp.full(1, step_size), "inverse_mass_matrix": jnp.var(state.particles, axis=0)[None],
                "num_integration_steps": jnp.full(1, options.steps),
            }  # fmt: skip
            state, info = kernel(now, state, moves, parameters)
            return key, state, total + info.log_likelihood_increment

        @jax.jit
        def whole(key: Any) -> Any:
            key, first = jax.random.split(key)
            state = adaptive_tempered.init(problem.scale * jax.random.normal(first, (options.particles, COORDINATES)))
            begun = key, state, jnp.zeros(())
            return jax.lax.while_loop(lambda carry: carry[1].tempering_param < 1, again, begun)[2]

        def run(seed: int) -> tuple[float, float]:
            began = time.perf_counter()
            found = float(whole(jax.random.key(seed)))
            return time.perf_counter() - began, found

        run(0)  # compiles
        return run

    ways = {}
    for name, problem in problems().items():
        tried = {}
        for step_size, moves in itertools.product(*options.grid):
            runs = [runner(problem, step_size, moves)(1000 + seed) for seed in range(options.tries)]
            squares = [(found - problem.log_evidence) ** 2 for _, found in runs]
            tried[step_size, moves] = float(np.mean([seconds for seconds, _ in runs]) * np.mean(squares))
        best, errors = min(tried, key=lambda one: tried[one]), Errors(problem.log_evidence)
        chosen = runner(problem, *best)

        def run(chosen=chosen, errors=errors) -> Measured:
            return errors.measured(*chosen(next(SEEDS)))

        ways[f"BlackJAX, {name}"] = Way(run)
    return ways


def ways(options: argparse.Namespace) -> dict[str, Way]:
    options.grid = tuple([float(x) for x in part.split(",")] for part in options.grid.split(";"))
    options.grid = options.grid[0], [int(x) for x in options.grid[1]]
    return blackjax_ways(options) if options.serve_on == 1 else phalanx_ways(options)


def main() -> None:
    parser = side_by_side.arguments(__doc__ or "", rounds=20)
    parser.add_argument("--particles", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=5, help="leapfrogs of a move, of both")
    parser.add_argument("--grid", default="0.2,0.4,0.6;3,6,12", help="step sizes, and numbers of moves, of BlackJAX")
    parser.add_argument("--tries", type=int, default=5, help="runs of each by which the best is chosen")
    devices = [1, max(2, side_by_side.machine()["cores"])]

    def rows(times: side_by_side.Times) -> list[dict[str, Any]]:
        return [
            side_by_side.compare(
                f"an error of one nat, {name}", f"Phalanx, {kind}, {name}", f"BlackJAX, {name}", times, at_most=1.0
            )
            for name, kind in itertools.product(problems(), ("tempered", "persistent"))
        ]

    def settings(options: argparse.Namespace) -> dict[str, Any]:
        return {name: getattr(options, name) for name in ("particles", "steps", "grid", "rounds", "tries")}

    side_by_side.run(str(Path(__file__)), parser, devices, ways, rows, settings)


if __name__ == "__main__":
    main()
