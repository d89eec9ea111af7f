"""Pathfinder as far as 1,000 draws and, of Phalanx, their verdict: against BlackJAX's with 8 paths, and PyMC's with 64.

All resample their draws by smoothed importance weights. Phalanx's time contains the verdict on the draws, which neither
of the others gives: Markov moves of 2,000 draws, and a search for other modes. Draws are equally good if the weights
have the same tail index, k-hat; the settings contain the medians over five seeds of Phalanx's and BlackJAX's.
BlackJAX's is compiled once. With 64 paths, in float32, it had not ended after 200 s on eight schools and 90 s on the
regression (one seed each). So second calls are compared with 8 paths; with 64 it is ended after half a minute, and its
row says that the ratio is a bound. PyMC's (of `pymc-extras`, in an environment of its own, `--peers`) does not report
k-hat, compiles in every call, and is slower if PyTensor finds no BLAS, which its wheels lack.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import side_by_side
from many_chains import MODELS, data_of, model_of
from side_by_side import Measured, Way

FEW, MANY, DRAWS, AT_MOST = 8, 64, 1_000, 0.5
PATIENCE = 30  # seconds that BlackJAX has with many paths
NAMES = (MODELS[0], MODELS[2])
PYMC = Path(__file__).parent / "reference" / "run_pymc_pathfinder.py"

Run = Callable[[int], float]
"""Makes the draws of a seed, and returns their k-hat."""


def phalanx_run(name: str, paths: int) -> Run:
    import phalanx as phx

    model, data, guide = model_of(name, phx.sample), data_of(name), phx.guides.pathfinder(num_paths=paths)

    def run(seed: int) -> float:
        fit = phx.fit(model, guide, data, seed=seed, progress=False)
        fit.posterior(DRAWS)
        return fit.evidence().k_hat

    return run


def blackjax_run(name: str, paths: int) -> Run:
    import blackjax
    import jax
    import numpyro
    from numpyro.infer.util import initialize_model

    found = initialize_model(jax.random.key(0), model_of(name, numpyro.sample), model_kwargs=data_of(name))
    position, potential = found.param_info.z, found.potential_fn
    algorithm = blackjax.multipathfinder(lambda position: -potential(position))

    @jax.jit
    def draws(key: Any) -> Any:
        first, second, third = jax.random.split(key, 3)
        leaves, tree = jax.tree.flatten(position)
        keys = jax.random.split(first, len(leaves))
        starts = [
            jax.random.uniform(key, (paths, *leaf.shape), minval=-2.0, maxval=2.0)
            for key, leaf in zip(keys, leaves, strict=True)
        ]
        state, _ = algorithm.init(second, jax.tree.unflatten(tree, starts))
        return algorithm.sample(third, state, DRAWS), blackjax.vi.multipathfinder.psis_weights(state)[1]

    return lambda seed: float(jax.block_until_ready(draws(jax.random.key(seed)))[1])


RUNS = {"Phalanx": phalanx_run, "BlackJAX": blackjax_run}


def blackjax_alone(number: int) -> None:
    """Run BlackJAX's with many paths, in a process that can be ended; print the seconds of the call."""
    run = blackjax_run(NAMES[number], MANY)
    began = time.perf_counter()
    run(0)
    print(time.perf_counter() - began)


def blackjax(name: str) -> float:
    """Return the seconds of that call, or of waiting for it."""
    command = [sys.executable, __file__, "--alone", str(NAMES.index(name))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return PATIENCE
    return float(done.stdout.split()[-1])


def pymc(name: str, seed: int, python: str) -> float:
    """Return the seconds of a call."""
    command = [python, str(PYMC), str(NAMES.index(name)), str(MANY), str(DRAWS), str(seed)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def again(run: Run, seeds: Iterator[int]) -> Measured:
    """Time a compiled call, after one that is not timed, since other ways cleared the caches."""
    run(next(seeds))
    began = time.perf_counter()
    run(next(seeds))
    return Measured(time.perf_counter() - began, 1.0)


def anew(run: Run, seed: int) -> float:
    """Time the same with compilation, but without the translation of the model to a log density for BlackJAX."""
    import jax

    from phalanx.learning import compiled

    compiled.COMPILED.clear()
    jax.clear_caches()
    return run(seed)


def ways(options: argparse.Namespace) -> dict[str, Way]:
    seeds = itertools.count(1)
    found = {}
    for name in NAMES:
        for system, make in RUNS.items():
            run = make(name, FEW)
            run(0)
            found[f"{system}, {name}, {FEW} paths, again"] = Way(lambda run=run: again(run, seeds))
            found[f"{system}, {name}, {FEW} paths, first"] = Way(lambda run=run: anew(run, next(seeds)))
        run = phalanx_run(name, MANY)
        found[f"Phalanx, {name}, {MANY} paths"] = Way(lambda run=run: anew(run, next(seeds)))
        found[f"BlackJAX, {name}, {MANY} paths"] = Way(lambda name=name: Measured(blackjax(name), 1.0))
        if options.peers:
            found[f"PyMC, {name}, {MANY} paths"] = Way(
                lambda name=name: Measured(pymc(name, next(seeds), options.peers), 1.0)
            )
    return found


def main() -> None:
    parser = side_by_side.arguments(__doc__ or "", rounds=5)
    parser.add_argument("--peers", help="Python that has pymc-extras; without it PyMC is left out")
    parser.add_argument("--alone", type=int, choices=range(len(NAMES)), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone is not None:
        return blackjax_alone(options.alone)

    def rows(times: side_by_side.Times) -> list[dict[str, Any]]:
        compared = [
            *((f"{name}, {FEW} paths, {call}", "BlackJAX") for name in NAMES for call in ("first", "again")),
            *((f"{name}, {MANY} paths", system) for system in ("BlackJAX", "PyMC") for name in NAMES),
        ]

        def ended(system: str, what: str) -> str:
            waited = min(times[f"{system}, {what}"]) >= PATIENCE and system == "BlackJAX"
            return f" (ended after {PATIENCE} s without a result)" if waited else ""

        return [
            side_by_side.compare(
                f"{what}, {system}{ended(system, what)}",
                f"Phalanx, {what}",
                f"{system}, {what}",
                times,
                at_most=AT_MOST,
            )
            for what, system in compared
            if f"{system}, {what}" in times
        ]

    def settings(options: argparse.Namespace) -> dict[str, Any]:
        runs = {f"{system}, {name}": make(name, FEW) for name in NAMES for system, make in RUNS.items()}
        k_hat = {name: round(statistics.median(run(seed) for seed in range(5)), 3) for name, run in runs.items()}
        return {"draws": DRAWS, "rounds": options.rounds, f"k_hat of {FEW} paths": k_hat}

    if options.serve_on:
        os.environ["PHALANX_CACHE"] = "off"  # a first call compiles
    side_by_side.run(str(Path(__file__)), parser, [1], ways, rows, settings)


if __name__ == "__main__":
    main()
