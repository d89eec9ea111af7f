"""Runs of chains whose verdict has a finding, and a picture of each: `PICTURES`, by the topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from matplotlib.figure import Figure
from numpyro.distributions import constraints
from verdict_style import CALM, POSTERIOR, WRONG, beside_density, panel, traces

import phalanx as phx

SCHOOLS = {
    "effects": np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]),
    "errors": np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]),
}
SHORT: dict[str, Any] = {"num_warmup": 300, "num_samples": 300, "progress": False}


def centred(effects: Any, errors: Any) -> None:
    """Model eight schools in the form that has a funnel."""
    mean = phx.sample("mean", dist.Normal(0.0, 5.0))
    spread = phx.sample("spread", dist.HalfCauchy(5.0))
    theta = phx.sample("theta", dist.Normal(mean, spread).expand([8]))
    phx.sample("effects", dist.Normal(theta, errors), obs=effects)


def funnel() -> None:
    """Model Neal's funnel."""
    v = phx.sample("v", dist.Normal(0.0, 3.0))
    phx.sample("x", dist.Normal(0.0, jnp.exp(v / 2)).expand([5]))


def swapped(y: Any) -> None:
    """Model a mixture whose components may swap their names."""
    means = phx.sample("means", dist.Normal(0.0, 5.0).expand([2]))
    phx.sample("y", dist.MixtureSameFamily(dist.Categorical(np.array([0.5, 0.5])), dist.Normal(means, 1.0)), obs=y)


def narrow() -> None:
    """Model two variables whose correlation is 0.999."""
    phx.sample("x", dist.MultivariateNormal(jnp.zeros(2), jnp.array([[1.0, 0.999], [0.999, 1.0]])))


def correlated() -> None:
    """Model two variables whose correlation is 0.9."""
    phx.sample("x", dist.MultivariateNormal(jnp.zeros(2), jnp.array([[1.0, 0.9], [0.9, 1.0]])))


def two_modes() -> None:
    """Model a variable with two modes of the same mass."""
    x = phx.sample("x", dist.Normal(0.0, 10.0))
    phx.factor("modes", jnp.logaddexp(-2.0 * (x - 4.0) ** 2, -2.0 * (x + 4.0) ** 2))


def log_of_two_modes(x: np.ndarray) -> np.ndarray:
    """Return the log density of `two_modes`, up to a constant."""
    return np.logaddexp(-2.0 * (x - 4.0) ** 2, -2.0 * (x + 4.0) ** 2) - x**2 / 200


def lopsided() -> None:
    """Model a variable whose second mode has no mass."""
    x = phx.sample("x", dist.ImproperUniform(constraints.real, (), ()))
    left, right = (dist.Normal(at, 1.0).log_prob(x) for at in (-30.0, 30.0))
    phx.factor("modes", jnp.logaddexp(left, right - 40.0))


def average(y: Any) -> None:
    """Model normal rows with an unknown mean."""
    mean = phx.sample("mean", dist.Normal(0.0, 10.0))
    phx.sample("y", dist.Normal(mean, 1.0), obs=y)


def mixture_rows() -> dict[str, np.ndarray]:
    """Return rows of two groups."""
    return {"y": np.random.default_rng(0).normal([-3.0, 3.0], size=(50, 2)).ravel()}


def divergences() -> tuple[Any, Figure]:
    """Draw where draws diverge: at the neck, where the scale is small."""
    posterior = phx.mcmc(centred, SCHOOLS, num_chains=8, num_warmup=500, num_samples=1000, progress=False)
    diverging = np.asarray(posterior.stats["diverging"]).ravel().astype(bool)
    spread, theta = np.log(posterior["spread"]).ravel(), posterior["theta"][..., 0].ravel()
    figure, axes = panel()
    axes.plot(theta, spread, ".", markersize=1, color=CALM)
    axes.plot(theta[diverging], spread[diverging], "o", markersize=4, color=WRONG, label="diverged")
    axes.legend(frameon=False)
    axes.set(xlabel="theta[0]", ylabel="log of spread")
    return posterior, figure


def low_e_bfmi() -> tuple[Any, Figure]:
    """Draw the energies of a funnel, and their changes from draw to draw."""
    posterior = phx.mcmc(funnel, **SHORT)
    energy = np.asarray(posterior.stats["energy"], float)
    figure, axes = panel()
    for values, name in ((energy - energy.mean(), "energy less its mean"), (np.diff(energy, axis=1), "its change")):
        axes.hist(values.ravel(), bins=60, range=(-15, 15), density=True, alpha=0.5, label=name)
    axes.legend(frameon=False)
    axes.set(xlabel="nats", ylabel="density", yticks=[])
    return posterior, figure


def full_trees() -> tuple[Any, Figure]:
    """Draw the leapfrogs of each draw, most of which reach the largest tree."""
    posterior = phx.mcmc(narrow, kernel=phx.nuts(max_depth=3, metric="diagonal"), **SHORT)
    figure, axes = panel()
    steps = np.asarray(posterior.stats["num_steps"]).ravel()
    _, _, bars = axes.hist(steps, bins=np.arange(0.5, 8.5))
    bars[-1].set_color(WRONG)
    axes.set(xlabel="leapfrogs of a draw; 7 are the most with max_depth=3", ylabel="draws")
    return posterior, figure


def low_acceptance() -> tuple[Any, Figure]:
    """Draw traces of a random walk with steps that are far too large."""
    posterior = phx.mcmc(correlated, kernel=phx.rwmh(step_size=30.0), **SHORT)
    return posterior, traces(posterior["x"][..., 0], "x[0]")


def high_r_hat() -> tuple[Any, Figure]:
    """Draw traces of chains that sit in different modes."""
    posterior = phx.mcmc(swapped, mixture_rows(), seed=1, **SHORT)
    return posterior, traces(posterior["means"][..., 0], "means[0]")


def relocated_chains() -> tuple[Any, Figure]:
    """Draw traces of a warm-up that moves chains out of a mode without mass."""
    options: dict[str, Any] = {"num_chains": 8, "num_warmup": 200, "num_samples": 100, "progress": False}
    posterior = phx.mcmc(lopsided, save_warmup=True, **options)
    return posterior, traces(posterior.warmup_draws["x"], "x", "draw of warm-up")


def one_chain() -> tuple[Any, Figure]:
    """Draw one chain in one of two modes."""
    posterior = phx.mcmc(two_modes, num_chains=1, **SHORT)
    grid = np.linspace(-8, 8, 300)
    return posterior, beside_density(
        posterior["x"].ravel(), grid, log_of_two_modes(grid), "the chain", "posterior", "x"
    )


def low_ess() -> tuple[Any, Figure]:
    """Draw traces of a random walk with short steps."""
    posterior = phx.mcmc(correlated, kernel=phx.rwmh(step_size=0.1), **SHORT)
    return posterior, traces(posterior["x"][..., 0], "x[0]")


def approximate_kernel() -> tuple[Any, Figure]:
    """Draw draws of stochastic gradients over the posterior of a mean, which is known."""
    y = np.random.default_rng(0).normal(1.0, 1.0, size=1000)
    kernel = phx.sgld(step_size=1e-3, batch_size=20)
    posterior = phx.mcmc(average, {"y": y}, kernel=kernel, num_warmup=300, num_samples=1000, progress=False)
    grid = np.linspace(y.mean() - 0.5, y.mean() + 0.5, 300)
    log_density = -0.5 * len(y) * (grid - y.mean()) ** 2
    return posterior, beside_density(posterior["mean"].ravel(), grid, log_density, "sgld", "posterior", "mean")


def few_ancestors() -> tuple[Any, Figure]:
    """Draw from how many draws of the prior the particles descend, by temperature."""

    def far() -> None:
        x = phx.sample("x", dist.Normal(0.0, 1.0).expand([8]))
        phx.sample("y", dist.Normal(x, 0.01), obs=np.full(8, 1.5, np.float32))

    figure, axes = panel()
    options: dict[str, Any] = {"kernel": phx.hmc(num_steps=3), "num_moves": 3, "progress": False}
    few, many = (phx.smc(far, num_particles=number, **options) for number in (64, 4096))
    for particles, number, colour in ((few, 64, WRONG), (many, 4096, POSTERIOR)):
        stages = particles.stages
        axes.plot(stages["temperature"], stages["ancestors"], ".-", color=colour, label=f"{number:,} particles")
    axes.axhline(30, color=CALM, linestyle="--", label="enough")
    axes.legend(frameon=False)
    axes.set(xlabel="temperature: power of the likelihood", xscale="log", yscale="log", ylabel="effective ancestors")
    return few, figure


def short_moves() -> tuple[Any, Figure]:
    """Draw by how much the distances of particles still change at the end of their moves."""

    def narrow_sum(y: Any) -> None:
        x = phx.sample("x", dist.Normal(0.0, 1.0).expand([10]))
        phx.sample("y", dist.Normal(x.sum(), 0.05), obs=y)

    figure, axes = panel()
    options: dict[str, Any] = {"num_particles": 1000, "progress": False}
    walk = phx.smc(narrow_sum, {"y": 2.0}, kernel=phx.rwmh(step_size=0.02), num_moves=5, **options)
    hmc = phx.smc(narrow_sum, {"y": 2.0}, kernel=phx.hmc(num_steps=8), **options)
    for particles, name, colour in ((walk, "5 steps of a walk", WRONG), (hmc, "HMC, as many as needed", POSTERIOR)):
        changes = 100 * (particles.stages["change"] - 1)
        axes.plot(particles.stages["temperature"], changes, ".-", color=colour, label=name)
    axes.legend(frameon=False)
    axes.set(xlabel="temperature: power of the likelihood", xscale="log", ylabel="last change of distance², %", ylim=0)
    return walk, figure


PICTURES: dict[str, Callable[[], tuple[Any, Figure]]] = {
    "divergences": divergences,
    "low E-BFMI": low_e_bfmi,
    "full trees": full_trees,
    "low acceptance": low_acceptance,
    "high R-hat": high_r_hat,
    "relocated chains": relocated_chains,
    "one chain": one_chain,
    "low ESS": low_ess,
    "approximate kernel": approximate_kernel,
    "few ancestors": few_ancestors,
    "short moves": short_moves,
}
"""By the topic of the finding."""
