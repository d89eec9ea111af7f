"""A warm-up leaves the law of the draws as it is: from exact starts, the first draws after it are exact, too.

A warm-up that ended after a number of leapfrogs, rather than of draws, would catch chains where trajectories are long.
Every chain begins at a draw from the prior of a model without data, which is its posterior. After a warm-up with a
fixed tuning the chains' first draws are compared with the exact quantiles, as independent draws are.
"""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from tests.conformance.exact_starts import LEVELS, limit
from tests.conformance.kernels import KERNELS

import phalanx as phx

SCALES = np.array([0.3, 10.0])


def funnel():
    y = phx.sample("y", dist.Normal(0.0, 3.0))
    phx.sample("weights", dist.Normal(jnp.zeros(3), jnp.exp(y / 2)))


def cauchy():
    phx.sample("weights", dist.Cauchy(0.0, 1.0).expand([3]))


def mixture_of_scales():
    parts = dist.Normal(jnp.zeros((3, 2)), jnp.asarray(SCALES, jnp.float32)[None])
    phx.sample("weights", dist.MixtureSameFamily(dist.Categorical(jnp.full((3, 2), 0.5)), parts))


def ranks_in_funnel(draws):
    return [stats.norm.cdf(draws["y"] / 3), *stats.norm.cdf(draws["weights"] / np.exp(draws["y"] / 2)[:, None]).T]


def ranks_in_mixture(draws):
    return list(stats.norm.cdf(draws["weights"][..., None] / SCALES).mean(-1).T)


TARGETS = {
    "funnel": (funnel, ranks_in_funnel),
    "cauchy": (cauchy, lambda draws: list(stats.cauchy.cdf(draws["weights"]).T)),
    "mixture of scales": (mixture_of_scales, ranks_in_mixture),
}
"""A model, and for each coordinate of a draw its probability under the exact distribution function."""

FIXED = {"step_size": np.float32(0.25), "trajectory_length": np.float32(2.0)}


def fixed(name):
    """The kernel of that name with a tuning that warm-up leaves alone."""
    kernel = KERNELS[name]
    given = {key: value for key, value in FIXED.items() if hasattr(kernel.tuning, key) and "blackjax" not in name}
    tuning = kernel.tuning._replace(**given)
    return replace(kernel, tuning=tuning, tuners=())


CASES = [("nuts", "funnel", 512)] + [
    pytest.param(name, target, 2000, marks=pytest.mark.slow)
    for name in KERNELS
    for target in TARGETS
    if not (target == "funnel" and name in ("hmc, diagonal", "hmc, dense"))  # their metric is of `weights` alone
]


@pytest.mark.parametrize("name, target, chains", CASES)
def test_first_draws_after_any_warm_up_are_exact(name, target, chains):
    model, ranks = TARGETS[target]
    for num_warmup in (7, 60):
        found = phx.mcmc(
            model, kernel=fixed(name), num_chains=chains, num_samples=2, num_warmup=num_warmup, init="prior", seed=3,
            progress=False,
        )  # fmt: skip
        for draw in range(2):
            for rank in ranks({key: np.asarray(values[:, draw], np.float64) for key, values in found.draws.items()}):
                below = (rank[:, None] <= LEVELS).mean(0)
                errors = (below - LEVELS) / np.sqrt(LEVELS * (1 - LEVELS) / chains)
                # a normal limit of binomial counts is only good enough where several draws are expected
                enough = chains * np.minimum(LEVELS, 1 - LEVELS) > 20
                assert np.abs(errors[enough]).max() < limit(len(CASES) * 16), (num_warmup, draw, errors)
