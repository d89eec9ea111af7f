"""The twelve models written for PyMC, for nutpie, with the same prepared data as the others."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt


def flat_regression(x, y):
    beta, sigma = pm.Flat("beta", shape=x.shape[1]), pm.HalfFlat("sigma")
    pm.Normal("y", pt.dot(x, beta), sigma, observed=y)


def kidiq(x, y):
    beta, sigma = pm.Flat("beta", shape=x.shape[1]), pm.HalfCauchy("sigma", 2.5)
    pm.Normal("y", pt.dot(x, beta), sigma, observed=y)


def sblrc(x, y):
    beta, sigma = pm.Normal("beta", 0.0, 10.0, shape=x.shape[1]), pm.HalfNormal("sigma", 10.0)
    pm.Normal("y", pt.dot(x, beta), sigma, observed=y)


def ark(before, y):
    alpha, beta = pm.Normal("alpha", 0.0, 10.0), pm.Normal("beta", 0.0, 10.0, shape=before.shape[1])
    pm.Normal("y", alpha + pt.dot(before, beta), pm.HalfCauchy("sigma", 2.5), observed=y)


def eight_schools_noncentered(y, sigma):
    mu, tau, z = pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0), pm.Normal("z", shape=len(y))
    pm.Normal("y", pm.Deterministic("theta", mu + tau * z), sigma, observed=y)


def eight_schools_centered(y, sigma):
    mu, tau = pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0)
    pm.Normal("y", pm.Normal("theta", mu, tau, shape=len(y)), sigma, observed=y)


def garch11(y, sigma1):
    mu, alpha0, alpha1 = pm.Flat("mu"), pm.HalfFlat("alpha0"), pm.Uniform("alpha1", 0.0, 1.0)
    share = pm.Uniform("share", 0.0, 1.0)
    beta1 = pm.Deterministic("beta1", share * (1.0 - alpha1))
    pm.Potential("beta1_is_flat", pt.log1p(-alpha1))
    first = pt.as_tensor_variable(np.float64(sigma1**2))
    rest = pytensor.scan(
        lambda before, variance, mu, alpha0, alpha1, beta1: alpha0 + alpha1 * (before - mu) ** 2 + beta1 * variance,
        sequences=[pt.as_tensor_variable(y[:-1])], outputs_info=[first], non_sequences=[mu, alpha0, alpha1, beta1],
        return_updates=False,
    )  # fmt: skip
    pm.Normal("y", mu, pt.sqrt(pt.concatenate([first[None], rest])), observed=y)


def gauss_mix(y):
    ordered = pm.distributions.transforms.ordered
    mu = pm.Normal("mu", 0.0, 2.0, shape=2, transform=ordered, initval=np.array([-1.0, 1.0]))
    sigma, theta = pm.HalfNormal("sigma", 2.0, shape=2), pm.Beta("theta", 5.0, 5.0)
    pm.NormalMixture("y", pt.stack([theta, 1 - theta]), mu, sigma=sigma, observed=y)


def gp_regr(x, y):
    rho, alpha, sigma = pm.Gamma("rho", 25.0, 4.0), pm.HalfNormal("alpha", 2.0), pm.HalfNormal("sigma", 1.0)
    between = (x[:, None] - x[None, :]) / rho
    covariance = alpha**2 * pt.exp(-0.5 * between**2) + sigma * pt.eye(len(x))
    pm.MvNormal("y", np.zeros(len(x)), cov=covariance, observed=y)


def lotka_volterra(y_init, y):
    theta = pm.TruncatedNormal("theta", np.array([1, 0.05, 1, 0.05]), np.array([0.5, 0.05] * 2), lower=0, shape=4)
    sigma, z_init = pm.LogNormal("sigma", -1.0, 1.0, shape=2), pm.LogNormal("z_init", np.log(10.0), 1.0, shape=2)
    h = 0.1

    def step(z, theta):
        def slope(z):
            return pt.stack([(theta[0] - theta[1] * z[1]) * z[0], (theta[3] * z[0] - theta[2]) * z[1]])

        k1 = slope(z)
        k2 = slope(z + h / 2 * k1)
        k3 = slope(z + h / 2 * k2)
        k4 = slope(z + h * k3)
        return z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    path = pytensor.scan(step, outputs_info=[z_init], non_sequences=[theta], n_steps=len(y) * 10, return_updates=False)
    pm.LogNormal("y_init", pt.log(z_init), sigma, observed=y_init)
    pm.LogNormal("y", pt.log(path[9::10]), sigma, observed=y)


earnings = mesquite = nes = flat_regression
