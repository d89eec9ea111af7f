"""Simulation-based calibration: parameters drawn from the prior have uniform ranks among their posteriors' draws.

Data are made from the program itself, so what is tested is the whole way from the program to the draws. A right sampler
fails once in a thousand times, over all parameters of a model together; the seeds are fixed.

Source: Talts, Betancourt, Simpson, Vehtari, Gelman (2018), Validating Bayesian inference algorithms with
simulation-based calibration.
"""

from __future__ import annotations

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import chisquare

import phalanx as phx

SIMULATIONS, DRAWS, BINS = 400, 99, 10
FAILURE_RATE = 1e-3

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)


def hierarchy(y=None):
    mu = phx.sample("mu", dist.Normal(0.0, 5.0))
    tau = phx.sample("tau", dist.HalfNormal(5.0))
    z = phx.sample("z", dist.Normal(0.0, 1.0).expand([8]))
    phx.sample("y", dist.Normal(mu + tau * z, 10.0), obs=y)


def classification(y=None):
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([3]))
    b = phx.sample("b", dist.StudentT(5.0, 0.0, 1.0))
    phx.sample("y", dist.Bernoulli(logits=X @ w + b), obs=y)


def elements(values, leading):
    """Every element of every variable as a column, after `leading` dimensions."""
    return np.concatenate([np.reshape(v, (*np.shape(v)[:leading], -1)) for v in values.values()], axis=-1)


def simulate(model, names):
    """Truths `(simulation, element)`, and draws of their posteriors `(simulation, draw, element)`."""
    joint = phx.Joint(model)
    pairs = [joint.sample(key) for key in jax.random.split(jax.random.key(1), SIMULATIONS)]
    made = [{"y": np.asarray(pair["y"])} for pair in pairs]
    # three chains of 33 draws, far enough apart to count as independent
    sampler = phx.compile(model, made[0], num_chains=3, keep=names, mesh=phx.make_mesh(devices=jax.devices()[:1]))
    draws = []
    for number, data in enumerate(made):
        posterior = sampler.run(number, data, num_warmup=400, num_samples=33 * 10, thin=10, progress=False)
        draws.append(elements({name: posterior.draws[name].reshape(DRAWS, -1) for name in names}, 1))
    truths = [elements({name: np.asarray(pair[name]) for name in names}, 0) for pair in pairs]
    return np.stack(truths), np.stack(draws)


def p_values(truths, draws):
    """Of the hypothesis that ranks are uniform, for each element."""
    ranks = (draws < truths[:, None]).sum(1)
    counts = [np.bincount(column * BINS // (DRAWS + 1), minlength=BINS) for column in ranks.T]
    return np.array([chisquare(count).pvalue for count in counts])


@pytest.mark.slow
@pytest.mark.parametrize("model, names", [(hierarchy, ["mu", "tau", "z"]), (classification, ["w", "b"])])
def test_ranks_are_uniform(model, names):
    truths, draws = simulate(model, names)
    found = p_values(truths, draws)
    assert found.min() > FAILURE_RATE / len(found)
    # and a posterior that is a third too narrow would have been found out
    centre = draws.mean(1, keepdims=True)
    assert p_values(truths, centre + (draws - centre) / 1.5).min() < FAILURE_RATE / len(found)
