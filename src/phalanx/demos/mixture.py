"""Random-walk Metropolis with a billion draws, reduced without storage, on a mixture with exact answers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from numpyro.distributions import Categorical, ImproperUniform, MixtureSameFamily, Normal, constraints
from scipy.optimize import root_scalar
from scipy.stats import norm

import phalanx as phx
from phalanx.demos.options import DemoOptions, finish, introduce, mesh_with
from phalanx.diagnostics.judging.checked_run import HIGH_RHAT
from phalanx.language.tracing import Program
from phalanx.report import console
from phalanx.report.plots import style
from phalanx.run.device.executables import WIDE

if TYPE_CHECKING:
    from jaxtyping import Float
    from matplotlib.figure import Figure

LOC = np.array([-2.0, 0.0, 3.2, 2.5])
SCALE = np.array([1.2, 1.0, 5.0, 2.8])
WEIGHT = np.array([0.2, 0.3, 0.1, 0.4])

STEP_SIZE = 0.1
SAMPLES = 10**9
CHAINS = 10_000
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SHOWN = 200_000
"""Draws in the picture."""

DRAWS_PER_ITERATION = 5
"""Draws per warm-up iteration: warm-up is long, since steps are short and chains begin near zero."""

BUDGET = 20.0
"""Maximal seconds of a timed run, estimated as ten times those of the smaller run before; slower runs are skipped."""

Way = Callable[[int, int], tuple[float, float]]
"""Function that runs a number of chains and draws, and returns seconds of compiling and of sampling."""

Points = dict[str, list[tuple[int, float, float]]]
"""Runs by name of the sampler: size, seconds of compiling, seconds of sampling."""

COLORS = {
    "NumPy": style.MUTED,
    "JAX, one loop": style.SECOND,
    "Phalanx": style.ACCENT,
    "Phalanx, MixtureSameFamily": style.INK,
}
EDGES = np.linspace(-12.0, 18.0, 121)


def log_density(x: Float[Array | np.ndarray, "..."]) -> Float[Array, "..."]:
    """Return the log density up to a constant. Its components are written out, so that XLA fuses it."""
    heights = np.log(WEIGHT / SCALE).tolist()
    terms = [h - 0.5 * ((x - m) / s) ** 2 for h, m, s in zip(heights, LOC.tolist(), SCALE.tolist(), strict=True)]
    highest = jnp.maximum(jnp.maximum(terms[0], terms[1]), jnp.maximum(terms[2], terms[3]))
    return highest + jnp.log(sum(jnp.exp(term - highest) for term in terms))


def model() -> None:
    """Model the mixture with its four components written out, so that the density is elementwise."""
    phx.factor("mixture", log_density(phx.sample("x", ImproperUniform(constraints.real, (), ()))))


def model_as_written() -> None:
    """Model the mixture by NumPyro's distribution."""
    phx.sample("x", MixtureSameFamily(Categorical(WEIGHT), Normal(LOC, SCALE)))


def density(x: Float[np.ndarray, "x"]) -> Float[np.ndarray, "x"]:
    """Return the density."""
    return WEIGHT @ norm.pdf(x, LOC[:, None], SCALE[:, None])


def exact_moments() -> tuple[float, float]:
    """Return mean and variance of the mixture."""
    mean = float(WEIGHT @ LOC)
    return mean, float(WEIGHT @ (SCALE**2 + LOC**2)) - mean**2


def exact_quantile(q: float) -> float:
    """Return a quantile of the mixture."""
    return root_scalar(lambda x: float(WEIGHT @ norm.cdf((x - LOC) / SCALE)) - q, bracket=(-60.0, 60.0)).root


def main(options: DemoOptions) -> phx.Posterior:
    """Run the demo, time it against plain loops, and write pictures to `options.out`."""
    chains = CHAINS if options.chains is None else options.chains
    draws = (SAMPLES if options.samples is None else options.samples) // chains
    sizes = options.sizes(chains, draws // DRAWS_PER_ITERATION, draws)
    introduce(
        "A mixture, by random-walk Metropolis",
        "\n    x ~ 0.2 N(-2, 1.2) + 0.3 N(0, 1) + 0.1 N(3.2, 5) + 0.4 N(2.5, 2.8);  proposals x + N(0, 0.1)\n",
        "none",
    )
    posterior = phx.mcmc(
        model,
        kernel=phx.rwmh(step_size=STEP_SIZE),
        **sizes,
        seed=options.seed,
        mesh=options.mesh(1),
        keep=[],
        reducers={
            "moments": phx.reducers.moments(),
            "rhat": phx.reducers.rhat(),
            "quantiles": phx.reducers.quantiles(QUANTILES),
            "shown": phx.reducers.reservoir(SHOWN),
        },
    )
    headline, text = headline_of(posterior, sizes["num_samples"])
    console().print(f"\n{text}\n", style="bold", markup=False, highlight=False)
    total = sizes["num_chains"] * sizes["num_samples"]
    ways: dict[str, Way] = {
        "NumPy": partial(time_numpy, options.seed),
        "JAX, one loop": partial(time_jax, options.seed),
        "Phalanx": partial(time_phalanx, options.seed, model),
        "Phalanx, MixtureSameFamily": partial(time_phalanx, options.seed, model_as_written),
    }
    by_samples = time_by_samples(ways, total)
    by_chains = time_by_chains(ways, total)
    memory = memory_by_samples(ways["Phalanx"], total)
    figures = {
        "histogram": density_figure(posterior.reduced["shown"]["x"]),
        "time_against_samples": time_figure(by_samples, "draws of each of 1,000 chains"),
        "time_against_chains": time_figure(by_chains, "chains, of 1,000 draws each"),
        "memory_against_samples": memory_figure(memory),
    }
    headline |= {"time_against_samples": by_samples, "time_against_chains": by_chains, "memory_against_samples": memory}
    finish(
        posterior,
        headline,
        f"The pictures compare time and memory with a loop in NumPy and one in JAX. Loops run on one device, Phalanx "
        f"on up to {jax.device_count()}; the loop in JAX is compiled with the same flags. Phalanx samples the density "
        f"with its components written out, as the loops do, and as MixtureSameFamily.",
        figures,
        options.out,
    )
    return posterior


def headline_of(posterior: phx.Posterior, draws: int) -> tuple[dict[str, object], str]:
    """Return the main results of chains of `draws` draws, by name and in words."""
    results, (mean, variance) = posterior.reduced, exact_moments()
    moments = results["moments"]["x"]
    r_hat = float(results["rhat"]["x"])
    quantiles = [float(q) for q in results["quantiles"]["x"]]
    exact = [exact_quantile(q) for q in QUANTILES]
    total = posterior.num_chains * draws
    seconds = posterior.timing.sampling
    verdict = "Good to use: the chains agree."
    if not r_hat < HIGH_RHAT:  # with few draws each chain covers only a part of the mixture
        verdict = (
            f"Not good to use: the chains are still near their starts, which biases mean and quantiles. A chain needs "
            f"tens of thousands of steps of {STEP_SIZE} to cross the mixture, and each made {draws:,}. Pass a larger "
            f"--samples, or a smaller --chains."
        )
    lines = [
        f"{total:,} samples in {seconds:.2f} s of sampling: {total / seconds / 1e6:,.0f} million a second",
        f"mean {moments.mean:.4f} (exact {mean:.4f}), variance {moments.variance:.4f} (exact {variance:.4f})",
        *(f"{q:4.0%} quantile {a:8.4f} (exact {b:8.4f})" for q, a, b in zip(QUANTILES, quantiles, exact, strict=True)),
        f"R-hat over {posterior.num_chains:,} chains {r_hat:.4f}",
        verdict,
    ]
    headline = {
        "samples": total,
        "sampling_seconds": seconds,
        "samples_per_second": total / seconds,
        "mean": float(moments.mean),
        "exact_mean": mean,
        "variance": float(moments.variance),
        "exact_variance": variance,
        "quantiles": dict(zip(map(str, QUANTILES), quantiles, strict=True)),
        "exact_quantiles": dict(zip(map(str, QUANTILES), exact, strict=True)),
        "r_hat": r_hat if math.isfinite(r_hat) else None,
        "converged": r_hat < HIGH_RHAT,
    }
    return headline, "\n".join(lines)


# -- the race against plain loops --------------------------------------------------------------------------------------


def time_numpy(seed: int, chains: int, draws: int) -> tuple[float, float]:
    """Time a loop over draws of all chains at once, with running sums for the moments."""
    heights = np.log(WEIGHT / SCALE)[:, None]

    def log_density_in_numpy(x: np.ndarray) -> np.ndarray:
        terms = heights - 0.5 * ((x - LOC[:, None]) / SCALE[:, None]) ** 2
        highest = terms.max(0)
        return highest + np.log(np.exp(terms - highest).sum(0))

    generator = np.random.default_rng(seed)
    x = np.zeros(chains, np.float32)
    height = log_density_in_numpy(x)
    total = np.zeros(chains)
    squares = np.zeros(chains)
    began = time.perf_counter()
    for _ in range(draws):
        proposal = x + STEP_SIZE * generator.standard_normal(chains, np.float32)
        proposed = log_density_in_numpy(proposal)
        accept = np.log1p(-generator.random(chains, np.float32)) < proposed - height
        x = np.where(accept, proposal, x)
        height = np.where(accept, proposed, height)
        total = total + x
        squares = squares + x**2
    return 0.0, time.perf_counter() - began


def time_jax(seed: int, chains: int, draws: int) -> tuple[float, float]:
    """Time one jitted `fori_loop` over draws, compiled with the flags of Phalanx, with sums for the moments."""

    def step(number: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        key, x, height, total, squares = carry
        key, propose, decide = random.split(key, 3)
        proposal = x + STEP_SIZE * random.normal(propose, x.shape)
        proposed = log_density(proposal)
        accept = jnp.log(random.uniform(decide, x.shape)) < proposed - height
        x = jnp.where(accept, proposal, x)
        height = jnp.where(accept, proposed, height)
        return key, x, height, total + x, squares + x**2

    x = jnp.zeros(chains)
    begin = random.key(seed), x, log_density(x), x, x
    began = time.perf_counter()
    loop = jax.jit(lambda begin: lax.fori_loop(0, draws, step, begin)).lower(begin).compile(WIDE)
    compile_end = time.perf_counter()
    jax.block_until_ready(loop(begin))
    return compile_end - began, time.perf_counter() - compile_end


def time_phalanx(seed: int, model: Program, chains: int, draws: int) -> tuple[float, float]:
    """Time a run of Phalanx."""
    run = phx.mcmc(
        model,
        kernel=phx.rwmh(step_size=STEP_SIZE),
        num_chains=chains,
        num_warmup=0,
        num_samples=draws,
        seed=seed,
        mesh=None if chains % jax.device_count() else mesh_with(1),
        keep=[],
        reducers={"m": phx.reducers.moments()},
        progress=False,
    )
    return run.timing.compile, run.timing.sampling


def time_by_samples(ways: Mapping[str, Way], most: int) -> Points:
    """Time 1,000 chains with increasing numbers of draws, up to `most` draws over all chains."""
    return _points(ways, [(10**k, 1000, 10**k) for k in range(3, 7) if 10 ** (k + 3) <= most])


def time_by_chains(ways: Mapping[str, Way], most: int) -> Points:
    """Time 1,000 draws of increasing numbers of chains, up to `most` draws over all chains."""
    return _points(ways, [(10**k, 10**k, 1000) for k in range(1, 7) if 10 ** (k + 3) <= most])


def _points(ways: Mapping[str, Way], sizes: Sequence[tuple[int, int, int]]) -> Points:
    points: Points = {}
    for name, way in ways.items():
        points[name] = []
        seconds = 0.0
        for size, chains, draws in sizes:
            if seconds > BUDGET:
                break
            compiling, sampling = way(chains, draws)
            points[name].append((size, compiling, sampling))
            seconds = 10 * sampling
    return points


def memory_by_samples(way: Way, most: int) -> list[tuple[int, float]]:
    """Return draws and resident MB after runs of 10,000 chains; empty if the system does not report memory."""
    points = []
    status = Path("/proc/self/statm")
    for samples in (10**k for k in range(6, 10) if 10**k <= most):
        way(10_000, samples // 10_000)
        if status.exists():
            points.append((samples, int(status.read_text().split()[1]) * 4096 / 1e6))
    return points


# -- pictures ----------------------------------------------------------------------------------------------------------


def density_figure(samples: Float[np.ndarray, "draw"]) -> Figure:
    """Draw the histogram of samples over the exact density."""
    figure = style.new_figure(7.5, 3.6)
    axes = figure.subplots()
    heights = np.histogram(samples, EDGES)[0] / max(len(samples), 1) / np.diff(EDGES)
    axes.bar(EDGES[:-1], heights, np.diff(EDGES), align="edge", color=style.BAND, label="samples")
    x = np.linspace(EDGES[0], EDGES[-1], 600)
    axes.plot(x, density(x), color=style.ACCENT, linewidth=1.8, label="exact density")
    style.finish(axes, "", "x", "density")
    style.explain(figure)
    return figure


def time_figure(points: Points, size: str) -> Figure:
    """Draw seconds of sampling against a size, and dashed those of compiling, for each way."""
    figure = style.new_figure(7.5, 4.0)
    axes = figure.subplots()
    for name, runs in points.items():
        if not runs:
            continue
        sizes, compiling, sampling = map(np.array, zip(*runs, strict=True))
        axes.plot(sizes, sampling, "o-", color=COLORS[name], linewidth=1.8, markersize=5, label=name)
        if compiling.any():
            axes.plot(sizes, compiling, ":", color=COLORS[name], linewidth=1.2, label=f"{name}: compiling")
    axes.set(xscale="log", yscale="log")
    style.finish(axes, "", size, "seconds", grid="both")
    style.explain(figure)
    return figure


def memory_figure(points: Sequence[tuple[int, float]]) -> Figure:
    """Draw resident memory against samples."""
    figure = style.new_figure(7.5, 3.2)
    axes = figure.subplots()
    if points:
        samples, megabytes = map(np.array, zip(*points, strict=True))
        axes.plot(samples, megabytes, "o-", color=style.ACCENT, linewidth=1.8, markersize=5)
        axes.set(xscale="log", ylim=(0, 1.3 * megabytes.max()))
    style.finish(axes, "", "samples", "resident memory (MB)")
    return figure
