"""Beetles: how much poison kills half of them?

Beetles were exposed to eight doses of carbon disulphide. The number of dead is binomial, with a chance that is
logistic in the log dose raised to a power: a generalised logistic curve, whose halves need not mirror each other. The
dose that kills half of the beetles is known to one percent of a log unit, although every dose has 60 beetles only.

Data: Bliss (1935).
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import phalanx as phx

DOSE = np.array([1.6907, 1.7242, 1.7552, 1.7842, 1.8113, 1.8369, 1.8610, 1.8839])
BEETLES = np.array([59, 60, 62, 56, 63, 59, 62, 60])
DEAD = np.array([6, 13, 18, 28, 52, 53, 61, 60])


def model(dose, beetles, dead):
    middle = phx.sample("middle", dist.Normal(1.8, 0.05))
    slope = phx.sample("slope", dist.LogNormal(3.5, 0.5))
    power = phx.sample("power", dist.LogNormal(0.0, 0.5))
    log_chance = power * jax.nn.log_sigmoid(slope * (dose - middle))
    phx.deterministic("half", middle - jnp.log(2.0 ** (1 / power) - 1) / slope)
    phx.sample("dead", dist.Binomial(beetles, probs=jnp.exp(log_chance)), obs=dead)


def run(num_warmup=400, num_samples=500):
    data = {"dose": DOSE, "beetles": BEETLES, "dead": DEAD}
    kernel = phx.nuts(target_acceptance=0.95)
    return phx.mcmc(model, data, kernel=kernel, num_warmup=num_warmup, num_samples=num_samples)


def show(posterior):
    grid = np.linspace(1.67, 1.9, 80)
    middle, slope, power = (posterior[name][..., None] for name in ("middle", "slope", "power"))
    curves = (1 + np.exp(-slope * (grid - middle))) ** -power
    figure, axes = plt.subplots()
    axes.fill_between(grid, *np.quantile(curves, [0.05, 0.95], axis=(0, 1)), alpha=0.3)
    axes.plot(grid, curves.mean((0, 1)))
    axes.plot(DOSE, DEAD / BEETLES, "ko", markersize=4)
    axes.axvspan(*np.quantile(posterior["half"], [0.05, 0.95]), color="C1", alpha=0.5)
    axes.set(xlabel="log dose; orange: kills half, 90%", ylabel="share of dead beetles")
    return figure


if __name__ == "__main__":
    posterior = run()
    print(posterior.summary())
    show(posterior).savefig("dose_response.png")
