"""Radon in houses: a multilevel regression.

How much radon is in the houses of a county with two measurements? Levels of the counties are draws of one
distribution, whose mean depends on the uranium in the soil, so that counties learn from each other. Counties with few
houses are drawn towards the line of the uranium, those with many stay at their own mean.

The data have the shape of Gelman and Hill's (2007), 919 houses in 85 counties; they are simulated with seed 0.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import phalanx as phx

COUNTIES, HOUSES = 85, 919


def data():
    rng = np.random.default_rng(0)
    county = rng.choice(COUNTIES, HOUSES, p=rng.dirichlet(np.full(COUNTIES, 0.8)))
    uranium, floor = rng.normal(0, 0.4, COUNTIES), rng.random(HOUSES) < 0.17
    level = 1.5 + 0.7 * uranium + rng.normal(0, 0.2, COUNTIES)
    radon = level[county] - 0.7 * floor + rng.normal(0, 0.75, HOUSES)
    return {"county": county, "uranium": uranium, "floor": floor.astype(float), "radon": radon}


def model(county, uranium, floor, radon):
    base = phx.sample("base", dist.Normal(0.0, 2.0))
    slope = phx.sample("slope", dist.Normal(0.0, 1.0))
    spread = phx.sample("spread", dist.HalfNormal(0.5))
    z = phx.sample("z", dist.Normal(0.0, 1.0).expand([COUNTIES]))
    level = phx.deterministic("level", base + slope * jnp.asarray(uranium) + spread * z)
    first_floor = phx.sample("first_floor", dist.Normal(0.0, 1.0))
    noise = phx.sample("noise", dist.HalfNormal(1.0))
    phx.sample("radon", dist.Normal(level[county] + first_floor * floor, noise), obs=radon)


def run(num_warmup=400, num_samples=500):
    return phx.mcmc(model, data(), num_warmup=num_warmup, num_samples=num_samples)


def show(posterior):
    figure, axes = plt.subplots()
    seen, low_high = data(), np.quantile(posterior["level"], [0.05, 0.95], axis=(0, 1))
    houses = np.bincount(seen["county"], minlength=COUNTIES)
    axes.vlines(seen["uranium"], *low_high, color="C0", linewidth=0.3 + 0.3 * np.sqrt(houses))
    grid = np.linspace(-1, 1, 2)
    axes.plot(grid, posterior["base"].mean() + posterior["slope"].mean() * grid, "C1")
    axes.set(xlabel="uranium in the soil, log", ylabel="level of a county, log radon, 90%")
    return figure


if __name__ == "__main__":
    posterior = run()
    print(posterior.summary(names=["base", "slope", "spread", "first_floor", "noise"]), posterior.verdict(), sep="\n\n")
    show(posterior).savefig("radon.png")
