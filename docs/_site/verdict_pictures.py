"""Maker of the pictures of "When the verdict says no": `python docs/_site/verdict_pictures.py [NAME ...]`.

Each picture is of a run or fit whose verdict has the finding; a run without the finding is an error.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from matplotlib.figure import Figure
from pictures import save_small

import phalanx as phx

FOLDER = Path(__file__).parents[1] / "pictures/findings"
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


def panel() -> tuple[Figure, Any]:
    """Return a figure and its axes."""
    figure = Figure(figsize=(5.6, 3.0), dpi=110, layout="constrained")
    return figure, figure.subplots()


def mixture_rows() -> dict[str, np.ndarray]:
    """Return rows of two groups."""
    return {"y": np.random.default_rng(0).normal([-3.0, 3.0], size=(50, 2)).ravel()}


def divergences() -> tuple[Any, Figure]:
    """Draw where draws diverge: at the neck, where the scale is small."""
    posterior = phx.mcmc(centred, SCHOOLS, **SHORT)
    diverging = np.asarray(posterior.stats["diverging"]).ravel().astype(bool)
    spread, theta = np.log(posterior["spread"]).ravel(), posterior["theta"][..., 0].ravel()
    figure, axes = panel()
    axes.plot(theta, spread, ".", markersize=2, color="0.6")
    axes.plot(theta[diverging], spread[diverging], "o", markersize=4, color="#d0273b", label="diverged")
    axes.legend(frameon=False)
    axes.set(xlabel="theta[0]", ylabel="log of spread")
    return posterior, figure


def low_e_bfmi() -> tuple[Any, Figure]:
    """Draw the energies of a funnel, and their changes from draw to draw."""
    posterior = phx.mcmc(funnel, **SHORT)
    energy = np.asarray(posterior.stats["energy"], float)
    figure, axes = panel()
    for values, name in ((energy - energy.mean(), "energy"), (np.diff(energy, axis=1), "change in a draw")):
        axes.hist(values.ravel(), bins=60, range=(-15, 15), density=True, alpha=0.5, label=name)
    axes.legend(frameon=False)
    axes.set(yticks=[])
    return posterior, figure


def full_trees() -> tuple[Any, Figure]:
    """Draw the leapfrogs of each draw, most of which reach the largest tree."""
    kernel = phx.nuts(max_depth=3, metric="diagonal")
    posterior = phx.mcmc(narrow, kernel=kernel, **SHORT)
    figure, axes = panel()
    steps = np.asarray(posterior.stats["num_steps"]).ravel()
    axes.hist(steps, bins=np.arange(0.5, 9.5))
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


def low_ess() -> tuple[Any, Figure]:
    """Draw traces of a random walk with short steps."""
    posterior = phx.mcmc(correlated, kernel=phx.rwmh(step_size=0.1), **SHORT)
    return posterior, traces(posterior["x"][..., 0], "x[0]")


def traces(values: np.ndarray, name: str) -> Figure:
    """Draw the traces of four chains."""
    figure, axes = panel()
    axes.plot(values.T, linewidth=0.7)
    axes.set(xlabel="draw", ylabel=name)
    return figure


def scales_off() -> tuple[Any, Figure]:
    """Draw points of a mean-field guide over those of the posterior."""
    fit = phx.fit(correlated, phx.guides.mean_field(), progress=False)
    return fit, over(fit, phx.mcmc(correlated, **SHORT))


def over(fit: Any, posterior: Any) -> Figure:
    """Draw points of a fit over those of a posterior."""
    figure, axes = panel()
    for values, name in ((posterior["x"].reshape(-1, 2)[:1000], "posterior"), (fit.sample(1, 1000)["x"], "guide")):
        axes.plot(*np.asarray(values).T, ".", markersize=3, label=name)
    axes.legend(frameon=False)
    axes.set(xlabel="x[0]", ylabel="x[1]")
    return figure


def missed_modes() -> tuple[Any, Figure]:
    """Draw a guide in one of two modes, and the density."""
    fit = phx.fit(two_modes, phx.guides.mean_field(), progress=False)
    figure, axes = panel()
    axes.hist(np.asarray(fit.sample(1, 4000)["x"]), bins=60, range=(-8, 8), density=True, alpha=0.6, label="guide")
    grid = np.linspace(-8, 8, 300)
    density = np.exp(np.logaddexp(-2.0 * (grid - 4.0) ** 2, -2.0 * (grid + 4.0) ** 2) - grid**2 / 200)
    axes.plot(grid, density / (density.sum() * (grid[1] - grid[0])), "C1", label="posterior")
    axes.legend(frameon=False)
    axes.set(xlabel="x", yticks=[])
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
    axes.axhline(found.num_simulations / 8, color="0.4", linestyle="--")
    axes.set(xlabel="rank of the true x[0] among 63 draws", ylabel="simulations")
    return found, figure


PICTURES: dict[str, Callable[[], tuple[Any, Figure]]] = {
    "divergences": divergences,
    "low E-BFMI": low_e_bfmi,
    "full trees": full_trees,
    "low acceptance": low_acceptance,
    "high R-hat": high_r_hat,
    "low ESS": low_ess,
    "scales off": scales_off,
    "missed modes": missed_modes,
    "ranks that are not uniform": ranks,
}
"""By the topic of the finding."""


def make(topic: str) -> None:
    """Run, check that the verdict has the finding, and store the picture."""
    result, figure = PICTURES[topic]()
    topics = [finding.topic for finding in result.verdict().findings]
    if topic not in topics:
        raise SystemExit(f"the verdict has no finding {topic!r}, but {topics}")
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder) / "picture.png"
        figure.savefig(drawn)
        save_small(drawn, FOLDER / f"{topic.lower().replace(' ', '-')}.png")
    print(topic, "|", topics, flush=True)


if __name__ == "__main__":
    phx.use_cpu_devices(2)
    for topic in sys.argv[1:] or PICTURES:
        make(topic)
