"""A Gaussian process over sharded rows: exact, and with sines for a covariance.

A Gaussian process joins each row with each other. Here two devices have its rows: each evaluation gathers what the
factorisation of the covariance needs. With 20 sines in its place (Solin and Särkkä, 2020) the model works row by row,
and sends one sum. The messages of an evaluation follow each verdict. The second is usable rather than good: the length
scale depends on the weights of all sines, so that its draws are correlated. The data are simulated.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import phalanx as phx

NAMES = ["scale", "amplitude", "noise"]
SINES, EDGE = 20, 8.0


def data():
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-5, 5, 41))
    return {"x": x, "y": np.sin(1.5 * x) + 0.2 * x + rng.normal(0, 0.3, 41)}


def hyperparameters():
    return [phx.sample(name, dist.LogNormal(0.0, 0.5)) for name in NAMES]


def covariance(a, b, scale, amplitude):
    return amplitude**2 * jnp.exp(-0.5 * ((a[:, None] - b[None, :]) / scale) ** 2)


def exact(x, y):
    scale, amplitude, noise = hyperparameters()
    k = covariance(x, x, scale, amplitude) + noise**2 * jnp.eye(len(x))
    phx.sample("y", dist.MultivariateNormal(jnp.zeros(len(x)), k), obs=y)


def sines(x, scale, amplitude, normals):
    frequency = jnp.arange(1, SINES + 1) * jnp.pi / (2 * EDGE)
    density = amplitude**2 * scale * jnp.sqrt(2 * jnp.pi) * jnp.exp(-0.5 * (scale * frequency) ** 2)
    return jnp.sin(frequency * (x[:, None] + EDGE)) @ (jnp.sqrt(density / EDGE) * normals)


def by_sines(x, y):
    scale, amplitude, noise = hyperparameters()
    normals = phx.sample("normals", dist.Normal(0.0, 1.0).expand([SINES]))
    phx.sample("y", dist.Normal(sines(x, scale, amplitude, normals), noise), obs=y)


def run(num_warmup=300, num_samples=300):
    rows = phx.shard(data(), phx.make_mesh(chain=1, data=2))
    return [phx.mcmc(model, rows, num_warmup=num_warmup, num_samples=num_samples) for model in (exact, by_sines)]


def show(posteriors):
    x, y, grid = *map(jnp.asarray, data().values()), jnp.linspace(-5, 5, 80)

    def of_exact(draw, key):
        scale, amplitude, noise = (draw[name] for name in NAMES)
        k = covariance(x, x, scale, amplitude) + noise**2 * jnp.eye(len(x))
        return covariance(grid, x, scale, amplitude) @ jnp.linalg.solve(k, y)

    def of_sines(draw, key):
        return sines(grid, draw["scale"], draw["amplitude"], draw["normals"])

    figure, axes = plt.subplots()
    axes.plot(x, y, "k.")
    axes.plot(grid, posteriors[0].predict(of_exact).mean((0, 1)), label="exact")
    axes.plot(grid, posteriors[1].predict(of_sines).mean((0, 1)), "--", label="sines")
    axes.legend(frameon=False)
    return figure


if __name__ == "__main__":
    phx.use_cpu_devices(2)
    for posterior in (posteriors := run()):
        print(posterior.summary(names=NAMES), posterior.verdict(), *posterior.record.communication, sep="\n")
    show(posteriors).savefig("sharded_process.png")
