"""Lynx and hare: a differential equation.

How fast do hares breed, and lynxes starve? The populations follow the equations of Lotka and Volterra, solved by
Runge and Kutta's method within the model, and the furs are counted with a log-normal error. The bands follow both
cycles of ten years, with the lynxes a year or two behind the hares.

Data: furs of the Hudson's Bay Company, 1900 to 1920, in thousands. The priors are those of Carpenter (2018).
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import phalanx as phx

HARE = "30 47.2 70.2 77.4 36.3 20.6 18.1 21.4 22 25.4 27.1 40.3 57 76.6 52.3 19.5 11.2 7.6 14.6 16.2 24.7".split()
LYNX = "4 6.1 9.8 35.2 59.4 41.7 19 13 8.3 9.1 7.4 8 12.3 19.5 45.7 51.1 29.7 15.8 9.7 10.1 8.6".split()
FURS = np.array([HARE, LYNX], float).T
STEPS = 5  # in a year


def solve(rates, start, years):
    def slope(z):
        return jnp.stack([(rates[0] - rates[1] * z[1]) * z[0], (rates[3] * z[0] - rates[2]) * z[1]])

    def step(z, _):
        h = 1 / STEPS
        k1 = slope(z)
        k2 = slope(z + h / 2 * k1)
        k3 = slope(z + h / 2 * k2)
        k4 = slope(z + h * k3)
        z = z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return z, z

    path = jax.lax.scan(step, start, length=STEPS * (years - 1))[1]
    return jnp.concatenate([start[None], path[STEPS - 1 :: STEPS]])


def model(furs):
    scales = jnp.array([0.5, 0.05, 0.5, 0.05])
    rates = phx.sample("rates", dist.TruncatedNormal(jnp.array([1.0, 0.05, 1.0, 0.05]), scales, low=0.0))
    start = phx.sample("start", dist.LogNormal(jnp.log(10.0), 1.0).expand([2]))
    error = phx.sample("error", dist.LogNormal(-1.0, 1.0).expand([2]))
    path = phx.deterministic("path", solve(rates, start, len(furs)))
    phx.sample("furs", dist.LogNormal(jnp.log(path), error), obs=furs)


def run(num_warmup=400, num_samples=400):
    init = {"rates": [0.5, 0.03, 0.8, 0.03], "start": [30.0, 4.0], "error": [0.3, 0.3]}
    return phx.mcmc(model, {"furs": FURS}, init=init, num_warmup=num_warmup, num_samples=num_samples)


def show(posterior):
    figure, axes = plt.subplots()
    year, (low, high) = 1900 + np.arange(len(FURS)), np.quantile(posterior["path"], [0.05, 0.95], axis=(0, 1))
    for column, name in enumerate(("hares", "lynxes")):
        axes.fill_between(year, low[:, column], high[:, column], alpha=0.4)
        axes.plot(year, FURS[:, column], f"C{column}o", markersize=3, label=name)
    axes.legend(frameon=False)
    axes.set(xlabel="year", ylabel="furs, thousands; 90%")
    return figure


if __name__ == "__main__":
    posterior = run()
    print(posterior.summary(names=["rates", "start", "error"]), posterior.verdict(), sep="\n\n")
    show(posterior).savefig("predator_prey.png")
