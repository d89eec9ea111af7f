"""Hares and lynxes in the books of the Hudson's Bay Company, after the equations of Lotka and Volterra."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from tests.statistical.posteriordb.reference import Entry

import phalanx as phx

STEPS_PER_YEAR = 10
"""Runge-Kutta steps. At the posterior mean their error is below 1e-5 of the population, far within the noise of 25%."""


def populations(start, theta, years, steps=STEPS_PER_YEAR):
    """Hares and lynxes at the end of each year, of shape (years, 2), by Runge and Kutta's method of order four."""
    h = 1.0 / steps

    def slope(state):
        hares, lynxes = state
        return jnp.stack([(theta[0] - theta[1] * lynxes) * hares, (theta[3] * hares - theta[2]) * lynxes])

    def step(state, _):
        k1 = slope(state)
        k2 = slope(state + h / 2 * k1)
        k3 = slope(state + h / 2 * k2)
        k4 = slope(state + h * k3)
        state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return state, state

    _, path = lax.scan(step, start, length=years * steps)
    return path[steps - 1 :: steps]


def pelts(y_init, y):
    ones = jnp.ones(2)
    theta = phx.sample("theta", dist.TruncatedNormal(jnp.array([1, 0.05, 1, 0.05]), jnp.array([0.5, 0.05] * 2), low=0))
    sigma = phx.sample("sigma", dist.LogNormal(-ones, 1.0))
    z_init = phx.sample("z_init", dist.LogNormal(np.log(10.0) * ones, 1.0))
    z = populations(z_init, theta, years=len(y))
    phx.sample("y_init", dist.LogNormal(jnp.log(z_init), sigma), obs=y_init)
    phx.sample("y", dist.LogNormal(jnp.log(z), jnp.broadcast_to(sigma, z.shape)), obs=y)


def prepare(data):
    assert data["ts"] == list(range(1, data["N"] + 1))  # one count at the end of each year
    return {name: np.asarray(data[name], np.float64) for name in ("y_init", "y")}


entry = Entry("hudson_lynx_hare-lotka_volterra", pelts, prepare, ("theta", "z_init", "sigma"))
