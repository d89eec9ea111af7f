"""Coal mines: a change point, summed out.

In which year did disasters in British coal mines become rarer? Counts are Poisson with one rate before an unknown
year and another one after it. `phx.marginalize` sums the year out, `phx.recover` draws it. The year is around 1890,
known to within some three years, and the rate fell from three a year to one.

Data: disasters with ten or more deaths, 1851 to 1962 (Jarrett, 1979, as in Carlin, Gelfand and Smith, 1992).
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import phalanx as phx

COUNT = np.array(
    "4 5 4 1 0 4 3 4 0 6 3 3 4 0 2 6 3 3 5 4 5 3 1 4 4 1 5 5 3 4 2 5 2 2 3 4 2 1 3 2 2 1 1 1 1 3 0 0 1 0 1 1 "
    "0 0 3 1 0 3 2 2 0 1 1 1 0 1 0 1 0 0 0 2 1 0 0 0 1 1 0 2 3 3 1 1 2 1 1 1 1 2 4 2 0 0 1 4 0 0 0 1 0 0 0 0 "
    "0 1 0 0 1 0 1 0".split(),
    int,
)
YEAR = 1851 + np.arange(len(COUNT))


def model(count):
    rate = phx.sample("rate", dist.Gamma(2.0, 1.0).expand([2]))
    change = phx.sample("change", dist.DiscreteUniform(1, len(count) - 1))
    before = jnp.arange(len(count)) < change
    phx.sample("count", dist.Poisson(jnp.where(before, rate[0], rate[1])), obs=count)


def run(num_warmup=300, num_samples=500):
    return phx.mcmc(phx.marginalize(model), {"count": COUNT}, num_warmup=num_warmup, num_samples=num_samples)


def show(posterior):
    change = phx.recover(posterior)["change"].ravel()
    figure, axes = plt.subplots()
    axes.bar(YEAR, COUNT, color="0.8", width=1.0)
    axes.bar(YEAR, 20 * np.bincount(change, minlength=len(YEAR)) / len(change), color="C1", width=1.0)
    axes.set(xlabel="year", ylabel="disasters; probability of the change x 20")
    return figure


if __name__ == "__main__":
    posterior = run()
    print(posterior.summary())
    show(posterior).savefig("change_point.png")
