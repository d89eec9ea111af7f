"""Remission of leukaemia: survival with censored times.

How much longer do remissions last with 6-mercaptopurine? Times are Weibull; a patient still in remission at the end
of the study contributes the probability of a longer time, by `phx.factor`. With the drug, remissions last several
times as long, and the intervals of the two curves part within weeks.

Data: 42 patients, in weeks (Freireich and others, 1963).
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import phalanx as phx

PLACEBO = "1 1 2 2 3 4 4 5 5 8 8 8 8 11 11 12 12 15 17 22 23".split()
DRUG = "6 6 6 6+ 7 9+ 10 10+ 11+ 13 16 17+ 19+ 20+ 22 23 25+ 32+ 32+ 34+ 35+".split()


def data():
    both = PLACEBO + DRUG
    return {
        "weeks": np.array([time.strip("+") for time in both], float),
        "ended": np.array([not time.endswith("+") for time in both]),
        "drug": np.array([0.0] * 21 + [1.0] * 21),
    }


def model(weeks, ended, drug):
    base = phx.sample("base", dist.Normal(2.0, 1.0))
    effect = phx.sample("effect", dist.Normal(0.0, 1.0))
    shape = phx.sample("shape", dist.LogNormal(0.0, 0.5))
    scale = jnp.exp(base + effect * drug)
    survived = -((weeks / scale) ** shape)  # the log of the probability of a longer time
    hazard = jnp.log(shape / scale) + (shape - 1.0) * jnp.log(weeks / scale)
    phx.factor("weeks", survived + jnp.where(ended, hazard, 0.0))


def run(num_warmup=300, num_samples=500):
    return phx.mcmc(model, data(), num_warmup=num_warmup, num_samples=num_samples)


def show(posterior):
    grid = np.linspace(0.1, 40, 80)
    figure, axes = plt.subplots()
    for drug, name in enumerate(("placebo", "6-MP")):
        scale = np.exp(posterior["base"] + drug * posterior["effect"])[..., None]
        curves = np.exp(-((grid / scale) ** posterior["shape"][..., None]))
        axes.fill_between(grid, *np.quantile(curves, [0.05, 0.95], axis=(0, 1)), alpha=0.3)
        axes.plot(grid, curves.mean((0, 1)), label=name)
    axes.legend(frameon=False)
    axes.set(xlabel="weeks", ylabel="share in remission, 90%", ylim=(0, 1))
    return figure


if __name__ == "__main__":
    posterior = run()
    print(posterior.summary())
    show(posterior).savefig("survival.png")
