"""The twelve models written for NumPyro, with the names of the Phalanx programs and the same prepared data."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import lax
from numpyro.distributions import constraints


def flat(name, support=constraints.real, shape=()):
    return numpyro.sample(name, dist.ImproperUniform(support, (), shape))


def normal_regression(x, y, beta, sigma):
    numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def flat_regression(x, y):
    normal_regression(x, y, flat("beta", shape=x.shape[1:]), flat("sigma", constraints.positive))


def kidiq(x, y):
    normal_regression(x, y, flat("beta", shape=x.shape[1:]), numpyro.sample("sigma", dist.HalfCauchy(2.5)))


def sblrc(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand(x.shape[1:]))
    normal_regression(x, y, beta, numpyro.sample("sigma", dist.HalfNormal(10.0)))


def ark(before, y):
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand(before.shape[1:]))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    numpyro.sample("y", dist.Normal(alpha + before @ beta, sigma), obs=y)


def eight_schools_noncentered(y, sigma):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand(y.shape))
    theta = numpyro.deterministic("theta", mu + tau * z)
    numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def eight_schools_centered(y, sigma):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    theta = numpyro.sample("theta", dist.Normal(mu, tau).expand(y.shape))
    numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def garch11(y, sigma1):
    mu, alpha0, alpha1 = flat("mu"), flat("alpha0", constraints.positive), flat("alpha1", constraints.unit_interval)
    beta1 = flat("beta1", constraints.interval(0.0, 1.0 - alpha1))

    def next_variance(variance, before):
        variance = alpha0 + alpha1 * (before - mu) ** 2 + beta1 * variance
        return variance, variance

    first = sigma1**2
    _, rest = lax.scan(next_variance, first, y[:-1])
    numpyro.sample("y", dist.Normal(mu, jnp.sqrt(jnp.append(first, rest))), obs=y)


def gauss_mix(y):
    mu = flat("mu", constraints.ordered_vector, (2,))
    numpyro.factor("mu_prior", dist.Normal(0.0, 2.0).log_prob(mu).sum())
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0).expand([2]))
    theta = numpyro.sample("theta", dist.Beta(5.0, 5.0))
    weights = dist.Categorical(probs=jnp.stack([theta, 1 - theta]))
    numpyro.sample("y", dist.MixtureSameFamily(weights, dist.Normal(mu, sigma)), obs=y)


def gp_regr(x, y):
    rho = numpyro.sample("rho", dist.Gamma(25.0, 4.0))
    alpha = numpyro.sample("alpha", dist.HalfNormal(2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    between = (x[:, None] - x[None, :]) / rho
    covariance = alpha**2 * jnp.exp(-0.5 * between**2) + sigma * jnp.eye(len(x))
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(len(x)), covariance), obs=y)


def lotka_volterra(y_init, y):
    ones, h = jnp.ones(2), 0.1
    theta = numpyro.sample(
        "theta", dist.TruncatedNormal(jnp.array([1, 0.05, 1, 0.05]), jnp.array([0.5, 0.05] * 2), low=0)
    )
    sigma = numpyro.sample("sigma", dist.LogNormal(-ones, 1.0))
    z_init = numpyro.sample("z_init", dist.LogNormal(np.log(10.0) * ones, 1.0))

    def slope(z):
        return jnp.stack([(theta[0] - theta[1] * z[1]) * z[0], (theta[3] * z[0] - theta[2]) * z[1]])

    def step(z, _):
        k1 = slope(z)
        k2 = slope(z + h / 2 * k1)
        k3 = slope(z + h / 2 * k2)
        k4 = slope(z + h * k3)
        z = z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return z, z

    _, path = lax.scan(step, z_init, length=len(y) * 10)
    z = path[9::10]
    numpyro.sample("y_init", dist.LogNormal(jnp.log(z_init), sigma), obs=y_init)
    numpyro.sample("y", dist.LogNormal(jnp.log(z), sigma), obs=y)


earnings = mesquite = nes = flat_regression
