"""Quantile regression: beyond the mean.

Does a higher body mass shift the progress of diabetes, or widen it? With an asymmetric Laplace likelihood the line is
a quantile instead of the mean; three lines, for 10, 50 and 90 percent, are inferred at once. The lines fan out: the
upper one is steeper than the lower one, so the patients differ more the heavier they are.

Data: scikit-learn's diabetes, 442 patients (Efron and others, 2004). The likelihood is that of Yu and Moyeed (2001):
its intervals are those of a working model.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
from sklearn.datasets import load_diabetes

import phalanx as phx

QUANTILES = np.array([0.1, 0.5, 0.9])


def data():
    x, y = load_diabetes(return_X_y=True)
    return {"mass": x[:, 2] / x[:, 2].std(), "progress": y / 100}


def model(mass, progress):
    base = phx.sample("base", dist.Normal(1.5, 1.0).expand([3]))
    slope = phx.sample("slope", dist.Normal(0.0, 1.0).expand([3]))
    scale = phx.sample("scale", dist.HalfNormal(0.5).expand([3]))
    lines = base[None, :] + mass[:, None] * slope[None, :]
    density = dist.AsymmetricLaplaceQuantile(lines, scale, jnp.asarray(QUANTILES)).log_prob(progress[:, None])
    phx.factor("progress", density)


def run(num_warmup=300, num_samples=500):
    return phx.mcmc(model, data(), num_warmup=num_warmup, num_samples=num_samples)


def show(posterior):
    seen, grid = data(), np.linspace(-2, 3.6, 40)
    figure, axes = plt.subplots()
    axes.plot(seen["mass"], 100 * seen["progress"], ".", color="0.7", markersize=3)
    for k, quantile in enumerate(QUANTILES):
        lines = 100 * (posterior["base"][..., k, None] + posterior["slope"][..., k, None] * grid)
        axes.fill_between(grid, *np.quantile(lines, [0.05, 0.95], axis=(0, 1)), alpha=0.4, label=f"{quantile:.0%}")
    axes.legend(frameon=False)
    axes.set(xlabel="body mass index, standardised", ylabel="progress of the disease")
    return figure


if __name__ == "__main__":
    posterior = run()
    print(posterior.summary())
    show(posterior).savefig("quantiles.png")
