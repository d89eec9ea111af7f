"""Simulation-based calibration: does inference recover what was put in?

`phx.calibrate` draws parameters from the prior and data from the model, infers, and ranks the true value among the
draws: if all is right, ranks are uniform. The model is a hierarchy of five groups, in its non-centred form. The bars
stay within the band of chance.

All data are simulated. Source: Talts and others (2018).
"""

import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
from scipy.stats import binom

import phalanx as phx


def model(y):
    mean = phx.sample("mean", dist.Normal(0.0, 1.0))
    spread = phx.sample("spread", dist.HalfNormal(1.0))
    z = phx.sample("z", dist.Normal(0.0, 1.0).expand([5]))
    phx.sample("y", dist.Normal(mean + spread * z, 0.5), obs=y)


def by_chains(data, seed):
    return phx.mcmc(model, data, seed=seed, num_warmup=200, num_samples=200, progress=False)


def run(num_simulations=80):
    return phx.calibrate(model, by_chains, {"y": np.zeros(5)}, num_simulations=num_simulations, num_draws=63)


def show(ranks):
    figure, axes = plt.subplots()
    axes.hist(ranks.ranks["mean"], bins=np.arange(0, 65, 8), alpha=0.6, label="mean")
    axes.hist(ranks.ranks["spread"], bins=np.arange(0, 65, 8), alpha=0.6, label="spread")
    axes.axhspan(*binom.ppf([0.005, 0.995], ranks.num_simulations, 1 / 8), color="0.8", zorder=0)
    axes.legend(frameon=False)
    axes.set(xlabel="rank of the true value among 63 draws", ylabel="simulations; grey: 99% of chance")
    return figure


if __name__ == "__main__":
    ranks = run()
    print(ranks.summary(), ranks.verdict(), sep="\n\n")
    show(ranks).savefig("calibration.png")
