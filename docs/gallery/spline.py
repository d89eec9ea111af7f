"""Coal mines again: a rate that changes smoothly.

`change_point.py` supposes that the rate of disasters jumps. Here its logarithm is a spline of 20 pieces, whose
coefficients take a random step from one to the next; the size of the steps, and so the smoothness, is inferred. The
rate falls within some twenty years around 1890, which leaves room for a jump, and rises and falls once more.

Data: disasters with ten or more deaths, 1851 to 1962 (Jarrett, 1979). Penalised splines: Lang and Brezger (2004).
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
from scipy.interpolate import BSpline

import phalanx as phx

COUNT = np.array(
    "4 5 4 1 0 4 3 4 0 6 3 3 4 0 2 6 3 3 5 4 5 3 1 4 4 1 5 5 3 4 2 5 2 2 3 4 2 1 3 2 2 1 1 1 1 3 0 0 1 0 1 1 "
    "0 0 3 1 0 3 2 2 0 1 1 1 0 1 0 1 0 0 0 2 1 0 0 0 1 1 0 2 3 3 1 1 2 1 1 1 1 2 4 2 0 0 1 4 0 0 0 1 0 0 0 0 "
    "0 1 0 0 1 0 1 0".split(),
    int,
)
YEAR = 1851 + np.arange(len(COUNT))
KNOTS = np.linspace(1851, 1962, 18)
KNOTS = np.concatenate([np.full(3, KNOTS[0]), KNOTS, np.full(3, KNOTS[-1])])
BASIS = BSpline.design_matrix(YEAR, KNOTS, 3).toarray()


def model(basis, count):
    first = phx.sample("first", dist.Normal(0.0, 1.0))
    step = phx.sample("step", dist.HalfNormal(0.5))
    z = phx.sample("z", dist.Normal(0.0, 1.0).expand([basis.shape[1] - 1]))
    logs = first + step * jnp.concatenate([jnp.zeros(1), jnp.cumsum(z)])
    rate = phx.deterministic("rate", jnp.exp(basis @ logs))
    phx.sample("count", dist.Poisson(rate), obs=count)


def run(num_warmup=400, num_samples=1000):
    kernel, data = phx.nuts(target_acceptance=0.95), {"basis": BASIS, "count": COUNT}
    return phx.mcmc(model, data, kernel=kernel, num_warmup=num_warmup, num_samples=num_samples)


def show(posterior):
    figure, axes = plt.subplots()
    axes.bar(YEAR, COUNT, color="0.85", width=1.0)
    axes.fill_between(YEAR, *np.quantile(posterior["rate"], [0.05, 0.95], axis=(0, 1)), alpha=0.4)
    axes.plot(YEAR, posterior["rate"].mean((0, 1)))
    axes.set(xlabel="year", ylabel="disasters, and their rate, 90%")
    return figure


if __name__ == "__main__":
    posterior = run()
    print(posterior.summary(names=["first", "step"]), posterior.verdict(), sep="\n\n")
    show(posterior).savefig("spline.png")
