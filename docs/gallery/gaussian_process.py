"""Gaussian process regression: a smooth function and its uncertainty.

Which smooth function lies behind 40 noisy points? The function has a Gaussian process as its prior; at the points it
is integrated out, so that three numbers are inferred: length scale, amplitude and noise. The band is narrow among the
points, and in the gap, where none is, it widens to what the prior allows.

The data are simulated with seed 0.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import phalanx as phx

GRID = np.linspace(0, 10, 80)


def data():
    rng = np.random.default_rng(0)
    x = np.sort(np.concatenate([rng.uniform(0, 4, 22), rng.uniform(6.5, 10, 18)]))
    return {"x": x, "y": np.sin(x) + 0.3 * x + rng.normal(0, 0.3, 40)}


def covariance(a, b, scale, amplitude):
    return amplitude**2 * jnp.exp(-0.5 * ((a[:, None] - b[None, :]) / scale) ** 2)


def model(x, y):
    scale = phx.sample("scale", dist.InverseGamma(5.0, 8.0))
    amplitude = phx.sample("amplitude", dist.HalfNormal(2.0))
    noise = phx.sample("noise", dist.HalfNormal(1.0))
    k = covariance(x, x, scale, amplitude) + noise**2 * jnp.eye(len(x))
    phx.sample("y", dist.MultivariateNormal(jnp.zeros(len(x)), k), obs=y)


def run(num_warmup=300, num_samples=400):
    return phx.mcmc(model, data(), num_warmup=num_warmup, num_samples=num_samples)


def show(posterior):
    seen = {name: jnp.asarray(values) for name, values in data().items()}

    def at_grid(draw, key):
        x, scale, amplitude = seen["x"], draw["scale"], draw["amplitude"]
        k = covariance(x, x, scale, amplitude) + draw["noise"] ** 2 * jnp.eye(len(x))
        weights = jnp.linalg.solve(k, covariance(x, jnp.asarray(GRID), scale, amplitude))
        left = amplitude**2 - (covariance(x, jnp.asarray(GRID), scale, amplitude) * weights).sum(0)
        return weights.T @ seen["y"] + jnp.sqrt(jnp.maximum(left, 0.0)) * dist.Normal().expand([80]).sample(key)

    low, middle, high = np.quantile(posterior.predict(at_grid), [0.05, 0.5, 0.95], axis=(0, 1))
    figure, axes = plt.subplots()
    axes.fill_between(GRID, low, high, alpha=0.3)
    axes.plot(GRID, middle)
    axes.plot(seen["x"], seen["y"], "k.")
    axes.set(xlabel="x", ylabel="the function, 90%")
    return figure


if __name__ == "__main__":
    posterior = run()
    print(posterior.summary())
    show(posterior).savefig("gaussian_process.png")
