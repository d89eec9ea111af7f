"""Fits whose verdict has a finding, and a picture of each: `PICTURES`, by the topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from findings_of_runs import SCHOOLS, SHORT, centred, correlated, log_of_two_modes, two_modes
from matplotlib.figure import Figure
from numpyro.distributions import constraints
from verdict_style import CALM, POSTERIOR, WRONG, beside_density, clouds, panel

import phalanx as phx


def coin(heads: Any) -> None:
    """Model a coin by the logarithm of its odds."""
    logit = phx.sample("logit", dist.Normal(0.0, 3.0))
    phx.sample("heads", dist.Binomial(3, logits=logit), obs=heads)


def located(y: Any) -> None:
    """Model one measurement of two numbers."""
    x = phx.sample("x", dist.Normal(0.0, 1.0).expand([2]))
    phx.sample("y", dist.Normal(x, 0.2), obs=y)


def anywhere() -> None:
    """Propose two numbers from their prior."""
    phx.sample("x", dist.Normal(0.0, 1.0).expand([2]))


def variance(y: Any) -> None:
    """Model normal rows by their variance, with a prior that lets it be negative."""
    v = phx.sample("v", dist.Normal(2.0, 1.0))
    phx.sample("y", dist.Normal(0.0, jnp.sqrt(v)), obs=y)


def one_mean(y: Any) -> None:
    """Model two rows of one mean."""
    mean = phx.sample("mean", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(mean, 1.0), obs=y)


def positive() -> None:
    """Guide a mean by a distribution of positive numbers."""
    phx.sample("mean", dist.HalfNormal(phx.param("scale", 1.0, constraints.positive)))


def box() -> None:
    """Guide a mean by a box of width one."""
    middle = phx.param("middle", 0.0)
    phx.sample("mean", dist.Uniform(middle - 0.5, middle + 0.5))


def log_of_mean(grid: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the log density of `one_mean`, up to a constant."""
    return -0.5 * grid**2 - 0.5 * np.sum((grid[:, None] - y) ** 2, axis=1)


def heavy_weights() -> tuple[Any, Figure]:
    """Draw how few draws of a mean-field guide hold most of the weight."""
    fits = [
        phx.fit(centred, phx.guides.mean_field(), SCHOOLS, progress=False),
        phx.fit(coin, phx.guides.mean_field(), {"heads": np.array(2.0)}, progress=False),
    ]
    figure, axes = panel()
    for fit, name, colour in zip(fits, ("k-hat above 0.7", "a guide that fits"), (WRONG, POSTERIOR), strict=True):
        log_weights = np.float64(fit.posterior(4000).stats["log_weight"]).ravel()
        weights = np.sort(np.exp(log_weights - log_weights.max()))[::-1]
        axes.plot(np.arange(1, 4001), 100 * np.cumsum(weights) / weights.sum(), color=colour, label=name)
    axes.legend(frameon=False)
    axes.set(xlabel="draws with the largest weights, of 4,000", ylabel="% of all weight", xscale="log", ylim=0)
    return fits[0], figure


def means_off() -> tuple[Any, Figure]:
    """Draw a Laplace approximation of a posterior with a long tail on one side."""
    fit = phx.fit(coin, phx.guides.laplace(), {"heads": np.array(3.0)}, progress=False)
    grid = np.linspace(-4, 10, 300)
    log_density = -(grid**2) / 18 - 3 * np.log1p(np.exp(-grid))
    draws = np.asarray(fit.sample(seed=1, n=4000)["logit"])
    return fit, beside_density(draws, grid, log_density, "guide", "posterior", "log of the odds")


def scales_off() -> tuple[Any, Figure]:
    """Draw points of a mean-field guide over those of the posterior."""
    fit, posterior = phx.fit(correlated, phx.guides.mean_field(), progress=False), phx.mcmc(correlated, **SHORT)
    right, other = posterior["x"].reshape(-1, 2)[:1000], fit.sample(seed=1, n=1000)["x"]
    return fit, clouds(right, np.asarray(other), "posterior", "guide", "x[0]", "x[1]")


def missed_tails() -> tuple[Any, Figure]:
    """Draw a guide of positive numbers for a mean that may be negative."""
    return guided(positive)


def missed_modes() -> tuple[Any, Figure]:
    """Draw a guide in one of two modes, and the density."""
    fit = phx.fit(two_modes, phx.guides.mean_field(), progress=False)
    grid = np.linspace(-8, 8, 300)
    draws = np.asarray(fit.sample(seed=1, n=4000)["x"])
    return fit, beside_density(draws, grid, log_of_two_modes(grid), "guide", "posterior", "x")


def support() -> tuple[Any, Figure]:
    """Draw a guide that ends where the posterior does not."""
    return guided(box)


def guided(guide: Callable[[], None]) -> tuple[Any, Figure]:
    """Fit a guide to the mean of two rows, and draw it with the posterior."""
    y = np.array([0.3, 0.6])
    fit = phx.fit(one_mean, guide, {"y": y}, num_steps=1000, progress=False)
    grid = np.linspace(-2, 2.5, 300)
    draws = np.asarray(fit.sample(seed=1, n=4000)["mean"])
    return fit, beside_density(draws, grid, log_of_mean(grid, y), "guide", "posterior", "mean")


def heavy_tails() -> tuple[Any, Figure]:
    """Draw standard deviations and quartiles of sets of draws from a tail that is heavy."""
    fit = phx.importance(lambda: phx.sample("x", dist.StudentT(2.3)), lambda: phx.sample("x", dist.StudentT(2.6)))
    sets = np.asarray(fit.sample(seed=1, n=40_000)["x"], np.float64).reshape(40, 1000)
    figure, axes = panel()
    axes.plot(sets.std(axis=1), ".", color=WRONG, label="standard deviation")
    axes.plot(
        np.subtract(*np.quantile(sets, [0.75, 0.25], axis=1)), ".", color=POSTERIOR, label="distance of quartiles"
    )
    axes.legend(frameon=False)
    axes.set(xlabel="set of 1,000 draws", ylim=0)
    return fit, figure


def few_effective_draws() -> tuple[Any, Figure]:
    """Draw proposals, and those with weight."""
    y = np.array([1.0, 0.5])
    fit = phx.importance(located, anywhere, {"y": y})
    proposed = np.random.default_rng(0).normal(size=(4000, 2))
    weights = np.exp(-12.5 * np.sum((proposed - y) ** 2, axis=1))
    figure, axes = panel()
    axes.plot(*proposed.T, ".", markersize=1, color=CALM, label="4,000 draws")
    axes.scatter(*proposed.T, s=60 * weights / weights.max(), color=WRONG, alpha=0.5, label="area: weight")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.set(xlabel="x[0]", ylabel="x[1]")
    return fit, figure


def not_settled() -> tuple[Any, Figure]:
    """Draw the bound of a fit that ends too early."""
    fit = phx.fit(centred, phx.guides.mean_field(), SCHOOLS, num_steps=150, progress=False)
    longer = phx.fit(centred, phx.guides.mean_field(), SCHOOLS, num_steps=2000, progress=False)
    figure, axes = panel()
    axes.plot(longer.losses.elbo, color=CALM, linewidth=0.5, label="2,000 steps")
    axes.plot(fit.losses.elbo, color=WRONG, linewidth=0.8, label="150 steps")
    axes.legend(frameon=False)
    axes.set(xlabel="step", ylabel="bound, nats", xscale="log")
    return fit, figure


def failed_steps() -> tuple[Any, Figure]:
    """Draw the bound of a fit whose guide draws negative variances, and the steps without a bound."""
    y = 1.5 * np.random.default_rng(0).normal(size=5)
    fit = phx.fit(
        variance, phx.guides.mean_field(), {"y": y}, num_steps=1000, init={"v": np.array(2.0)}, progress=False
    )
    elbo = np.asarray(fit.losses.elbo)
    failed = np.flatnonzero(np.isnan(elbo))
    figure, axes = panel()
    axes.plot(elbo, color=POSTERIOR, linewidth=0.5, label="bound")
    lowest = np.nanquantile(elbo, 0.01)  # a few bounds are far lower
    axes.plot(failed, np.full(len(failed), lowest), "|", color=WRONG, label="no number")
    axes.legend(frameon=False, loc="center right")
    axes.set(xlabel="step", ylabel="bound, nats", ylim=(lowest - 1, 0))
    return fit, figure


def ranks() -> tuple[Any, Figure]:
    """Draw the ranks of true values among draws that are too narrow."""

    def model(y: Any) -> None:
        x = phx.sample("x", dist.MultivariateNormal(jnp.zeros(2), jnp.array([[1.0, 0.9], [0.9, 1.0]])))
        phx.sample("y", dist.Normal(jnp.sum(x), 1.0), obs=y)

    def infer(data: Any, seed: int) -> Any:
        fit = phx.fit(model, phx.guides.mean_field(), data, seed=seed, num_steps=500, progress=False)
        return fit.posterior(63, seed=seed)

    found = phx.calibrate(model, infer, {"y": np.zeros(())}, num_simulations=200)
    figure, axes = panel()
    axes.hist(found.ranks["x"][:, 0], bins=np.arange(0, 65, 8))
    axes.axhline(found.num_simulations / 8, color=CALM, linestyle="--", label="uniform")
    axes.legend(frameon=False)
    axes.set(xlabel="rank of the true x[0] among 63 draws", ylabel="simulations")
    return found, figure


PICTURES: dict[str, Callable[[], tuple[Any, Figure]]] = {
    "heavy weights": heavy_weights,
    "means off": means_off,
    "scales off": scales_off,
    "missed tails": missed_tails,
    "missed modes": missed_modes,
    "heavy tails": heavy_tails,
    "few effective draws": few_effective_draws,
    "not settled": not_settled,
    "failed steps": failed_steps,
    "support": support,
    "ranks that are not uniform": ranks,
}
"""By the topic of the finding."""
