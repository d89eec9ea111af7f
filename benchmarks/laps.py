"""Gradients in sequence until 512 chains have arrived: ChEES-HMC, LAPS, and BlackJAX's LAPS.

What hardware does not change is the number of gradients that must be computed one after the other, by all chains side
by side. For each length of warm-up the chains of four seeds are held against the reference posterior after their next
draw. The bias of a mean is measured in standard deviations, that of a variance relative to the variance, over the root
of two: both squared, and the worst of all parameters. Chains have arrived if it is below .01; the chance error of
4 x 512 draws is some .003.

All begin uniformly in (-2, 2), unconstrained. BlackJAX's ends its first phase by itself; its second has ten draws. It
refuses a model with a scan, such as garch11.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import side_by_side

sys.path.insert(0, str(Path(__file__).parents[1]))

NAMES = ("ark", "eight_schools_noncentered", "mesquite", "nes")
CHAINS, SEEDS, ENOUGH = 512, 4, 0.01
LENGTHS = (30, 50, 100, 200, 400, 800)
"""Draws of a warm-up of ours, of several leapfrogs each."""

BLACKJAX_LENGTHS = (100, 300)
"""The most leapfrogs of the first phase of BlackJAX's, which ends it by itself after a fifth or more."""

DRAWS, LEAPFROGS = 10, 15

Draws = dict[str, np.ndarray]
Run = Callable[[Any, int, int], tuple[Draws, float]]
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


def of_blackjax(entry: Any, length: int, seed: int) -> tuple[Draws, float]:
    import jax
    import numpyro
    from blackjax.adaptation.laps import laps
    from numpyro.infer.util import initialize_model
    from tests.statistical.posteriordb.entries import ENTRIES

    sys.path.insert(0, str(Path(__file__).parent / "reference"))
    import numpyro_models  # pyright: ignore[reportMissingImports]  # of `reference`

    numpyro.enable_validation(False)  # starts where an equation overflows are tried again, not refused
    name = next(name for name, known in ENTRIES.items() if known is entry)  # several have one program
    found = initialize_model(jax.random.key(0), getattr(numpyro_models, name), model_kwargs=entry.data())
    assert found.postprocess_fn is not None
    leaves, tree = jax.tree.flatten(found.param_info.z)

    def log_density(position: Any) -> Any:
        return -found.potential_fn(position)

    def begin(key: Any) -> Any:
        keys = jax.random.split(key, len(leaves))
        parts = [jax.random.uniform(k, leaf.shape, minval=-2, maxval=2) for k, leaf in zip(keys, leaves, strict=True)]
        return jax.tree.unflatten(tree, parts)

    calls = 2  # gradients of a step of the second phase's integrator
    mesh = jax.sharding.Mesh(jax.devices()[:1], "chains")
    info, calls, _, final = laps(
        log_density, begin, sum(leaf.size for leaf in leaves), length, DRAWS * LEAPFROGS * calls, CHAINS, mesh,
        jax.random.key(seed),
    )  # fmt: skip
    assert info is not None
    first = np.asarray(info["phase_1"]["step_size"])
    gradients = float(np.count_nonzero(first)) + DRAWS * LEAPFROGS * calls
    values = jax.vmap(found.postprocess_fn)(final.position)
    return {name: np.asarray(values[name]) for name in entry.names}, gradients


RUNS: dict[str, tuple[Run, tuple[int, ...]]] = {
    "ChEES": (of_kernel("chees"), LENGTHS),
    "LAPS": (of_kernel("laps"), LENGTHS),
    "BlackJAX's LAPS": (of_blackjax, BLACKJAX_LENGTHS),
}


def worst_bias(entry: Any, runs: list[Draws]) -> float:
    """Return the worst squared bias of the chains of several runs."""
    from tests.statistical.posteriordb.reference import stored

    def rows() -> Iterator[tuple[str, np.ndarray]]:
        for name in entry.names:
            values = np.concatenate([draws[name] for draws in runs]).astype(np.float64)
            columns = values.reshape(len(values), -1).T
            for i, column in enumerate(columns):
                yield (name if values.ndim == 1 else f"{name}[{i + 1}]"), column

    reference, found = stored(entry.reference)["reference"], []
    for name, column in rows():
        mean, sd = reference[name]["mean"], reference[name]["sd"]
        found += [((column.mean() - mean) / sd) ** 2, (column.var() / sd**2 - 1) ** 2 / 2]
    return float(np.max(found))


def arrived(entry: Any, run: Run, lengths: tuple[int, ...]) -> dict[str, float | None]:
    """Return the fewest gradients after which the chains have arrived, None if they have not, and the bias."""
    best: dict[str, float | None] = {"gradients": None}
    for length in lengths:
        made = [run(entry, length, seed) for seed in range(SEEDS)]
        bias, gradients = worst_bias(entry, [draws for draws, _ in made]), float(np.mean([n for _, n in made]))
        fewest = best["gradients"]
        if bias < ENOUGH and (fewest is None or gradients < fewest):
            best = {"gradients": gradients, "length": length, "bias": bias}
        if fewest is not None:  # a longer warm-up may take fewer gradients than the shortest that suffices
            break
        if best["gradients"] is None:
            best = {"gradients": None, "length": length, "bias": bias, "tried": gradients}
    return best


def main() -> None:
    from tests.statistical.posteriordb.entries import ENTRIES

    parser = side_by_side.arguments(__doc__ or "", rounds=1)
    parser.add_argument("--names", nargs="+", default=NAMES)
    options = parser.parse_args()
    watch, found = side_by_side.Watch(), {}
    for name in options.names:
        found[name] = {way: arrived(ENTRIES[name], *run) for way, run in RUNS.items()}
        print(name, found[name], flush=True)

    def cell(result: dict[str, float | None]) -> str:
        if result["gradients"] is None:
            return f"not in {result['tried']:.0f} (bias {result['bias']:.2g})"
        return f"{result['gradients']:.0f} (bias {result['bias']:.4f})"

    lines = [[name, *(cell(result) for result in results.values())] for name, results in found.items()]
    columns = ["sequential gradients until the worst squared bias is below .01, 512 chains", *RUNS]
    settings = {"chains": CHAINS, "seeds": SEEDS, "enough": ENOUGH}
    more = {"table": {"columns": columns, "lines": lines}, "found": found}
    side_by_side.write(Path(__file__).stem, [], settings, watch, options.results, **more)


if __name__ == "__main__":
    main()
