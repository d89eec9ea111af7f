"""Random-walk Metropolis with a billion draws, reduced without storage, on a mixture with exact answers."""

from __future__ import annotations

import math

import jax
from numpyro.distributions import Categorical, ImproperUniform, MixtureSameFamily, Normal, constraints

from phalanx import reducers
from phalanx.demos.mixture_race import PhalanxWays, Race
from phalanx.demos.models.mixture_density import LOC, SCALE, WEIGHT, density, exact_moments, exact_quantile, log_density
from phalanx.demos.options import DemoOptions, Sizes, choose, mesh_with
from phalanx.demos.pictures.mixture import density_figure, memory_figure, time_figure
from phalanx.demos.show import finish, introduce
from phalanx.diagnostics.judging.checked_run import HIGH_RHAT
from phalanx.kernels.rwmh import rwmh
from phalanx.language.tracing import Program, factor, sample
from phalanx.posterior.posterior import Posterior
from phalanx.report import console
from phalanx.run.mcmc import compile, mcmc

STEP_SIZE = 0.1
SAMPLES, CHAINS = 10**9, 10_000
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SHOWN = 200_000
"""Draws in the picture."""

DRAWS_PER_ITERATION = 5
"""Draws per warm-up iteration: warm-up is long, since steps are short and chains begin near zero."""


def model() -> None:
    """Model the mixture with its four components written out, so that the density is elementwise."""
    factor("mixture", log_density(sample("x", ImproperUniform(constraints.real, (), ()))))


def model_as_written() -> None:
    """Model the mixture by NumPyro's distribution."""
    sample("x", MixtureSameFamily(Categorical(WEIGHT), Normal(LOC, SCALE)))


def main(options: DemoOptions) -> Posterior:
    """Run the demo, time it against plain loops, and write pictures to `options.out`."""
    chains = CHAINS if options.chains is None else options.chains
    draws = (SAMPLES if options.samples is None else options.samples) // chains
    sizes = choose(options, Sizes(chains, draws // DRAWS_PER_ITERATION, draws))
    introduce(
        "A mixture, by random-walk Metropolis",
        "\n    x ~ 0.2 N(-2, 1.2) + 0.3 N(0, 1) + 0.1 N(3.2, 5) + 0.4 N(2.5, 2.8);  proposals x + N(0, 0.1)\n",
        "none",
    )
    sampler = compile(
        model, kernel=rwmh(step_size=STEP_SIZE), num_chains=sizes.chains, mesh=mesh_with(options.data_shards or 1),
        keep=[], reducers=REDUCERS,
    )  # fmt: skip
    posterior = sampler.run(options.seed, num_warmup=sizes.warmup, num_samples=sizes.draws)
    headline, words = _headline(posterior, sizes)
    console().print(f"\n{words}\n", style="bold", markup=False, highlight=False)
    race = Race(STEP_SIZE, options.seed, _phalanx_ways(options.seed))
    total = sizes.chains * sizes.draws
    by_samples, by_chains, memory = race.by_samples(total), race.by_chains(total), race.memory(total)
    figures = {
        "histogram": density_figure(posterior.reduced["shown"]["x"], density),
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


REDUCERS = {
    "moments": reducers.moments(),
    "rhat": reducers.rhat(),
    "quantiles": reducers.quantiles(QUANTILES),
    "shown": reducers.reservoir(SHOWN),
}


def _headline(posterior: Posterior, sizes: Sizes) -> tuple[dict[str, object], str]:
    found, (mean, variance) = posterior.reduced, exact_moments()
    moments, r_hat = found["moments"]["x"], float(found["rhat"]["x"])
    quantiles = [float(q) for q in found["quantiles"]["x"]]
    exact = [exact_quantile(q) for q in QUANTILES]
    total, seconds = sizes.chains * sizes.draws, posterior.timing.sampling
    lines = [
        f"{total:,} samples in {seconds:.2f} s of sampling: {total / seconds / 1e6:,.0f} million a second",
        f"mean {moments.mean:.4f} (exact {mean:.4f}), variance {moments.variance:.4f} (exact {variance:.4f})",
        *(f"{q:4.0%} quantile {a:8.4f} (exact {b:8.4f})" for q, a, b in zip(QUANTILES, quantiles, exact, strict=True)),
        f"R-hat over {sizes.chains:,} chains {r_hat:.4f}",
        _judged(r_hat, sizes),
    ]
    headline = {
        "samples": total, "sampling_seconds": seconds, "samples_per_second": total / seconds,
        "mean": float(moments.mean), "exact_mean": mean,
        "variance": float(moments.variance), "exact_variance": variance,
        "quantiles": dict(zip(map(str, QUANTILES), quantiles, strict=True)),
        "exact_quantiles": dict(zip(map(str, QUANTILES), exact, strict=True)),
        "r_hat": r_hat if math.isfinite(r_hat) else None, "converged": r_hat < HIGH_RHAT,
    }  # fmt: skip
    return headline, "\n".join(lines)


def _judged(r_hat: float, sizes: Sizes) -> str:
    """Return whether the chains agree, in words: with few draws each chain covers only a part of the mixture."""
    if r_hat < HIGH_RHAT:
        return "Good to use: the chains agree."
    return (
        f"Not good to use: the chains are still near their starts, which biases mean and quantiles. A chain needs tens "
        f"of thousands of steps of {STEP_SIZE} to cross the mixture, and each made {sizes.draws:,}. Pass a larger "
        f"--samples, or a smaller --chains."
    )


def _phalanx_ways(seed: int) -> PhalanxWays:
    return {
        "Phalanx": lambda chains, draws: _timed(model, chains, draws, seed),
        "Phalanx, MixtureSameFamily": lambda chains, draws: _timed(model_as_written, chains, draws, seed),
    }


def _timed(model: Program, chains: int, draws: int, seed: int) -> tuple[float, float]:
    """Return the seconds of compiling and of sampling."""
    devices = jax.device_count()
    run = mcmc(
        model, kernel=rwmh(step_size=STEP_SIZE), num_chains=chains, num_warmup=0, num_samples=draws, seed=seed,
        mesh=None if chains % devices else mesh_with(1), keep=[], reducers={"m": reducers.moments()}, progress=False,
    )  # fmt: skip
    return run.timing.compile, run.timing.sampling
