"""Pathfinder with 64 paths, as far as 1,000 draws: against BlackJAX's and PyMC's.

All resample their draws by smoothed importance weights, and by the shape of the weights' tail (k-hat) they are equally
good where a row says so: of each the median k-hat of five seeds is in the settings. BlackJAX's own function is compiled
once, paths side by side; PyMC's (of `pymc-extras`, in an environment of its own, `--peers`) compiles in every call.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import side_by_side
from many_chains import MODELS, data_of, model_of
from side_by_side import Measured, Way

PATHS, DRAWS, AT_MOST = 64, 1_000, 0.5
NAMES = (MODELS[0], MODELS[2])
PYMC = Path(__file__).parent / "reference" / "run_pymc_pathfinder.py"

Run = Callable[[int], float]
"""Makes the draws of a seed, and returns their k-hat."""


def phalanx_run(name: str) -> Run:
    import phalanx as phx

    model, data, guide = model_of(name, phx.sample), data_of(name), phx.guides.pathfinder(num_paths=PATHS)

    def run(seed: int) -> float:
        fit = phx.fit(model, guide, data, seed=seed, progress=False)
        fit.posterior(DRAWS)
        return fit.evidence().k_hat

    return run


def blackjax_run(name: str) -> Run:
    import blackjax
    import jax
    import numpyro
    from numpyro.infer.util import initialize_model

    found = initialize_model(jax.random.key(0), model_of(name, numpyro.sample), model_kwargs=data_of(name))
    position, potential = found.param_info.z, found.potential_fn
    algorithm = blackjax.multi_pathfinder(lambda position: -potential(position))

    @jax.jit
    def draws(key: Any) -> Any:
        first, second, third = jax.random.split(key, 3)
        leaves, tree = jax.tree.flatten(position)
        keys = jax.random.split(first, len(leaves))
        starts = [
            jax.random.uniform(key, (PATHS, *leaf.shape), minval=-2.0, maxval=2.0)
            for key, leaf in zip(keys, leaves, strict=True)
        ]
        state, _ = algorithm.init(second, jax.tree.unflatten(tree, starts))
        return algorithm.sample(third, state, DRAWS), blackjax.vi.multipathfinder.psis_weights(state)[1]

    return lambda seed: float(jax.block_until_ready(draws(jax.random.key(seed)))[1])


RUNS = {"Phalanx": phalanx_run, "BlackJAX": blackjax_run}


def pymc(name: str, seed: int, python: str) -> tuple[float, float]:
    """Seconds of a call, and its k-hat."""
    command = [python, str(PYMC), str(NAMES.index(name)), str(PATHS), str(DRAWS), str(seed)]
    seconds, k_hat = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-2:]
    return float(seconds), float(k_hat)


def anew(make: Callable[[str], Run], name: str, seed: int) -> float:
    """The same from nothing, compiling included."""
    import jax

    from phalanx.variational import compiled

    compiled.COMPILED.clear()
    jax.clear_caches()
    return make(name)(seed)


def ways(options: argparse.Namespace) -> dict[str, Way]:
    found = {}
    for name in NAMES:
        for system, make in RUNS.items():
            seeds, run = iter(range(1, 10**6)), make(name)
            run(0)
            found[f"{system}, {name}, again"] = Way(lambda run=run, seeds=seeds: run(next(seeds)))
            found[f"{system}, {name}, first"] = Way(
                lambda make=make, name=name, seeds=seeds: anew(make, name, next(seeds))
            )
        if options.peers:
            found[f"PyMC, {name}, first"] = Way(
                lambda name=name: Measured(pymc(name, int(time.time()) % 10**6, options.peers)[0], 1.0)
            )
    return found


def main() -> None:
    parser = side_by_side.arguments(__doc__ or "", rounds=5)
    parser.add_argument("--peers", help="Python that has pymc-extras; without it PyMC is left out")
    options = parser.parse_args()

    def rows(times: side_by_side.Times) -> list[dict[str, Any]]:
        found = []
        for name in NAMES:
            for system, calls in (("BlackJAX", ("again", "first")), ("PyMC", ("first",))):
                for call in calls:
                    ours, theirs = f"Phalanx, {name}, {call}", f"{system}, {name}, {call}"
                    if theirs in times:
                        what = f"{name}, a {'second' if call == 'again' else 'first'} call, {system}"
                        found.append(side_by_side.compare(what, ours, theirs, times, at_most=AT_MOST))
        return found

    def settings(options: argparse.Namespace) -> dict[str, Any]:
        k_hat = {
            f"{system}, {name}": [run(seed) for seed in range(5)]
            for name in NAMES
            for system, run in ((system, make(name)) for system, make in RUNS.items())
        }
        if options.peers:
            k_hat |= {f"PyMC, {name}": [pymc(name, seed, options.peers)[1] for seed in range(5)] for name in NAMES}
        medians = {name: round(statistics.median(values), 3) for name, values in k_hat.items()}
        return {"paths": PATHS, "draws": DRAWS, "rounds": options.rounds, "k_hat": medians}

    if options.serve_on:
        import os

        os.environ["PHALANX_CACHE"] = "off"  # a first call compiles
    side_by_side.run(str(Path(__file__)), parser, [1], ways, rows, settings)


if __name__ == "__main__":
    sys.exit(main())
