"""A map of a disease: a conditional autoregression.

Where is the risk high, when most districts have a handful of cases? Risks of neighbours differ little: an intrinsic
CAR prior penalises the squares of their differences, as a `phx.factor` on effects that add up to zero. The map of the
means is smooth, and follows the true hill although counts of single districts scatter widely.

The data are simulated with seed 0 on a grid of 8 x 8 districts.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import phalanx as phx

SIDE = 8


def data():
    rng = np.random.default_rng(0)
    row, column = np.indices((SIDE, SIDE)).reshape(2, -1)
    risk = np.exp(1.2 * np.exp(-((row - 2) ** 2 + (column - 5) ** 2) / 8) - 0.3)
    expected = rng.uniform(2, 8, SIDE**2)
    return {"expected": expected, "cases": rng.poisson(expected * risk)}


def model(expected, cases):
    level = phx.sample("level", dist.Normal(0.0, 1.0))
    smooth = phx.sample("smooth", dist.HalfNormal(1.0))
    z = phx.sample("z", dist.ZeroSumNormal(5.0, (SIDE**2,)))
    grid = z.reshape(SIDE, SIDE)
    phx.factor("neighbours", -0.5 * (jnp.sum(jnp.diff(grid, axis=0) ** 2) + jnp.sum(jnp.diff(grid, axis=1) ** 2)))
    risk = phx.deterministic("risk", jnp.exp(level + smooth * z))
    phx.sample("cases", dist.Poisson(expected * risk), obs=cases)


def run(num_warmup=400, num_samples=500):
    return phx.mcmc(model, data(), num_warmup=num_warmup, num_samples=num_samples)


def show(posterior):
    seen = data()
    figure, panels = plt.subplots(1, 2)
    raw, smooth = seen["cases"] / seen["expected"], posterior["risk"].mean((0, 1))
    for axes, risk, title in zip(panels, (raw, smooth), ("cases / expected", "posterior mean"), strict=True):
        axes.imshow(risk.reshape(SIDE, SIDE), vmin=0, vmax=3, cmap="Blues")
        axes.set(title=title, xticks=[], yticks=[])
    return figure


if __name__ == "__main__":
    posterior = run()
    print(posterior.summary(names=["level", "smooth"]), posterior.verdict(), sep="\n\n")
    show(posterior).savefig("spatial.png")
