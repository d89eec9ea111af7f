"""A Bayesian neural network: how sure is it between the data, and beyond?

A network with one hidden layer of eight units draws a curve through 60 points. All 25 weights have priors, and NUTS
draws networks rather than finding one. Hidden units can swap places, so chains need not agree on weights: `keep=`
stores the curve and the noise alone, which are what the verdict is on. It is usable rather than good: weights differ
in scale, so that some trajectories reach the largest tree. The band is narrow where points are and opens where none
is.

The data are simulated with seed 0.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import phalanx as phx

GRID, UNITS = np.linspace(-2.2, 2.2, 60), 8


def data():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-1.6, -0.4, 30), rng.uniform(0.4, 1.6, 30)])
    return {"x": x, "y": np.sin(3 * x) + rng.normal(0, 0.15, 60)}


def model(x, y):
    into = phx.sample("into", dist.Normal(0.0, 2.0).expand([UNITS]))
    bias = phx.sample("bias", dist.Normal(0.0, 2.0).expand([UNITS]))
    out = phx.sample("out", dist.Normal(0.0, 1.0).expand([UNITS]))
    level = phx.sample("level", dist.Normal(0.0, 1.0))
    noise = phx.sample("noise", dist.HalfNormal(0.5))

    def network(x):
        return level + jnp.tanh(jnp.outer(x, into) + bias[None, :]) @ out

    phx.deterministic("curve", network(GRID))
    phx.sample("y", dist.Normal(network(x), noise), obs=y)


def run(num_warmup=600, num_samples=1000):
    kernel = phx.nuts(target_acceptance=0.9)
    return phx.mcmc(
        model, data(), kernel=kernel, keep=["curve", "noise"], num_warmup=num_warmup, num_samples=num_samples
    )


def show(posterior):
    seen, (low, middle, high) = data(), np.quantile(posterior["curve"], [0.05, 0.5, 0.95], axis=(0, 1))
    figure, axes = plt.subplots()
    axes.fill_between(GRID, low, high, alpha=0.3)
    axes.plot(GRID, middle)
    axes.plot(seen["x"], seen["y"], "k.")
    axes.set(xlabel="x", ylabel="the network's curve, 90%")
    return figure


if __name__ == "__main__":
    posterior = run()
    print(posterior.summary(names=["noise"]), posterior.verdict(), sep="\n\n")
    show(posterior).savefig("bayesian_network.png")
