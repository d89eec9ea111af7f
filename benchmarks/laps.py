"""Gradients in sequence until 512 chains have arrived: ChEES-HMC, LAPS, and BlackJAX's LAPS.

What hardware does not change is the number of gradients that must be computed one after the other, by all chains side
by side. For each length of warm-up the chains of four seeds are held against the reference posterior after their next
draw. The bias of a mean is measured in standard deviations, that of a variance relative to the variance, over the root
of two: both squared, and the worst of all parameters. Chains have arrived if it is below .01; the chance error of
4 x 512 draws is some .003.

All begin uniformly in (-2, 2), unconstrained. BlackJAX's ends its first phase by itself; of those `BLACKJAX_LENGTHS` at
which its chains arrive, the one with fewest gradients counts. It refuses a model with a scan, such as garch11. Four
posteriors are of posteriordb, two of Inference Gym.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import side_by_side

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent / "reference")]

NAMES = ("ark", "eight_schools_noncentered", "mesquite", "nes", "banana", "brownian_motion")
CHAINS, SEEDS, ENOUGH, PROCESSES = 512, 4, 0.01, 2
LENGTHS = (20, 30, 40, 50, 100, 200, 400, 800)
"""Draws of a warm-up of ours, of several leapfrogs each."""

LEAPFROGS, CALLS = 15, 2
"""Steps of a draw in the second phase of BlackJAX's, by default, and the gradients of each."""

BLACKJAX_LENGTHS = ((100, 2), (100, 4), (100, 10), (300, 10))
"""The most leapfrogs of its first phase, which ends by itself after a fifth or more, and draws of the second."""

Draws = dict[str, np.ndarray]
Run = Callable[[Any, Any, int], tuple[Draws, float]]
"""Draws `(chain, ...)` of an entry of the database, after a warm-up of some length with a seed, and the gradients."""


def of_kernel(name: str) -> Run:
    def run(entry: Any, length: int, seed: int) -> tuple[Draws, float]:
        import phalanx as phx

        posterior = phx.mcmc(
            entry.program, entry.data(), keep=entry.names, kernel=getattr(phx, name)(), num_chains=CHAINS,
            num_warmup=length, num_samples=1, seed=seed, progress=False,
        )  # fmt: skip
        gradients = posterior.timing.gradient_evaluations / CHAINS
        return {name: np.asarray(posterior.draws[name])[:, 0] for name in entry.names}, gradients

    return run


def of_blackjax(entry: Any, length: tuple[int, int], seed: int) -> tuple[Draws, float]:
    import jax
    import numpyro
    from blackjax.adaptation.laps import laps
    from numpyro.infer.util import initialize_model

    numpyro.enable_validation(False)  # starts where an equation overflows are tried again, not refused
    found = initialize_model(jax.random.key(0), in_numpyro(entry), model_kwargs=entry.data())
    assert found.postprocess_fn is not None
    leaves, tree = jax.tree.flatten(found.param_info.z)

    def log_density(position: Any) -> Any:
        return -found.potential_fn(position)

    def begin(key: Any) -> Any:
        keys = jax.random.split(key, len(leaves))
        parts = [jax.random.uniform(k, leaf.shape, minval=-2, maxval=2) for k, leaf in zip(keys, leaves, strict=True)]
        return jax.tree.unflatten(tree, parts)

    mesh, second = jax.sharding.Mesh(jax.devices()[:1], "chains"), length[1] * LEAPFROGS * CALLS
    info, calls, _, final = laps(
        log_density, begin, sum(leaf.size for leaf in leaves), length[0], second, CHAINS, mesh, jax.random.key(seed),
        steps_per_sample=LEAPFROGS,
    )  # fmt: skip
    assert calls == CALLS  # up to 200 coordinates
    assert info is not None
    first = np.asarray(info["phase_1"]["step_size"])
    gradients = float(np.count_nonzero(first)) + second
    values = jax.vmap(found.postprocess_fn)(final.position)
    return {name: np.asarray(values[name]) for name in entry.names}, gradients


def in_numpyro(entry: Any) -> Callable[..., None]:
    import numpyro_models  # pyright: ignore[reportMissingImports]  # of `reference`
    from tests.statistical.posteriordb.entries import ENTRIES

    names = [name for name, known in ENTRIES.items() if known is entry]  # several have one program
    return getattr(numpyro_models, names[0]) if names else entry.program


RUNS: dict[str, tuple[Run, Sequence[Any]]] = {
    "ChEES": (of_kernel("chees"), LENGTHS),
    "LAPS": (of_kernel("laps"), LENGTHS),
    "BlackJAX's LAPS": (of_blackjax, BLACKJAX_LENGTHS),
}


def moments_of(entry: Any, name: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return known means and standard deviations of the elements of a variable."""
    from tests.statistical.posteriordb.reference import stored

    if hasattr(entry, "known"):
        return entry.known[name]
    reference = stored(entry.reference)["reference"]
    known = [reference[key] for key in ([name] if name in reference else [f"{name}[{i + 1}]" for i in range(count)])]
    return np.array([each["mean"] for each in known]), np.array([each["sd"] for each in known])


def worst_bias(entry: Any, runs: list[Draws]) -> float:
    """Return the worst squared bias of the chains of several runs."""
    found = []
    for name in entry.names:
        values = np.concatenate([draws[name] for draws in runs]).astype(np.float64)
        values = values.reshape(len(values), -1)
        mean, sd = moments_of(entry, name, values.shape[1])
        of_mean, of_variance = (values.mean(0) - mean) / sd, values.var(0) / sd**2 - 1
        found += [(of_mean**2).max(), (of_variance**2).max() / 2]
    return float(np.max(found))


def arrived(entry: Any, run: Run, lengths: Sequence[Any]) -> dict[str, Any]:
    """Return the fewest gradients after which the chains have arrived, None if they have not, and the bias."""
    best: dict[str, Any] = {"gradients": None}
    for length in lengths:
        made = [run(entry, length, seed) for seed in range(SEEDS)]
        bias, gradients = worst_bias(entry, [draws for draws, _ in made]), float(np.mean([n for _, n in made]))
        fewest = best["gradients"]
        if bias < ENOUGH and (fewest is None or gradients < fewest):
            best = {"gradients": gradients, "length": length, "bias": bias}
        elif fewest is not None:  # a longer warm-up took fewer gradients than the shortest that sufficed, or did not
            break
        else:
            best = {"gradients": None, "length": length, "bias": bias, "tried": gradients}
    return best


def of_ways(name: str, ways: Sequence[str]) -> dict[str, Any]:
    """Return the result of each way by its name."""
    from inference_gym_targets import TARGETS  # pyright: ignore[reportMissingImports]  # of `reference`
    from tests.statistical.posteriordb.entries import ENTRIES

    entry = {**ENTRIES, **TARGETS}[name]
    found = {way: arrived(entry, *RUNS[way]) for way in ways}
    print(name, found, flush=True)
    return found


def main() -> None:
    parser = side_by_side.arguments(__doc__ or "", rounds=1)
    parser.add_argument("--names", nargs="+", default=NAMES)
    parser.add_argument(
        "--ways", nargs="+", default=list(RUNS), help="to measure; others, and other names, keep what the file has"
    )
    options = parser.parse_args()
    watch = side_by_side.Watch()
    # gradients are counted, so that other work beside them changes nothing
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        made = pool.map(partial(of_ways, ways=options.ways), options.names)
        found = dict(zip(options.names, made, strict=True))
    file = options.results / f"{Path(__file__).stem}.json"
    before = json.loads(file.read_text())["found"] if file.exists() else {}
    found = before | {name: {**before.get(name, {}), **results} for name, results in found.items()}

    def cell(result: dict[str, Any] | None) -> str:
        if result is None:
            return "not measured"
        if result["gradients"] is None:
            return f"not in {result['tried']:.0f} (bias {result['bias']:.2g})"
        return f"{result['gradients']:.0f} (bias {result['bias']:.4f})"

    lines = [[name, *(cell(results.get(way)) for way in RUNS)] for name, results in found.items()]
    columns = ["sequential gradients until the worst squared bias is below .01, 512 chains", *RUNS]
    settings = {"chains": CHAINS, "seeds": SEEDS, "enough": ENOUGH}
    more = {"table": {"columns": columns, "lines": lines}, "found": found}
    side_by_side.write(Path(__file__).stem, [], settings, watch, options.results, **more)


if __name__ == "__main__":
    main()
