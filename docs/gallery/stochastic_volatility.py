"""Stochastic volatility: how uncertain is tomorrow's return?

Returns are centred at zero, and their log scale walks at random from day to day (Hoffman and Gelman, 2014). Tails are
Student's. The 200 scales and the size of their steps are inferred. The band follows the calm and the wild weeks, with
a delay of a few days, which is what so few numbers allow.

The data are simulated with seed 0.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import phalanx as phx

DAYS = 200


def data():
    rng = np.random.default_rng(0)
    log_scale = np.cumsum(rng.normal(0, 0.15, DAYS))
    return {"returns": np.exp(log_scale) * rng.standard_t(10, DAYS)}, np.exp(log_scale)


def model(returns):
    step = phx.sample("step", dist.HalfNormal(0.3))
    tails = phx.sample("tails", dist.Gamma(4.0, 0.3))
    first = phx.sample("first", dist.Normal(0.0, 1.0))
    z = phx.sample("z", dist.Normal(0.0, 1.0).expand([DAYS - 1]))
    scale = phx.deterministic("scale", jnp.exp(first + step * jnp.concatenate([jnp.zeros(1), jnp.cumsum(z)])))
    phx.sample("returns", dist.StudentT(tails, 0.0, scale), obs=returns)


def run(num_warmup=500, num_samples=1000):
    kernel = phx.nuts(target_acceptance=0.98)
    return phx.mcmc(model, data()[0], kernel=kernel, num_warmup=num_warmup, num_samples=num_samples)


def show(posterior):
    given, scale = data()
    low, high = np.quantile(posterior["scale"], [0.05, 0.95], axis=(0, 1))
    figure, axes = plt.subplots()
    axes.plot(given["returns"], "0.7")
    axes.fill_between(range(DAYS), low, high, alpha=0.4)
    axes.plot(scale, "C1")
    axes.set(xlabel="day", ylabel="returns; scale, 90%, and the true one")
    return figure


if __name__ == "__main__":
    posterior = run()
    print(posterior.summary(names=["step", "tails", "first"]), posterior.verdict(), sep="\n\n")
    show(posterior).savefig("stochastic_volatility.png")
