"""From exact draws of heavy tails, of tails that end abruptly and of a funnel, every kernel makes exact draws."""

from __future__ import annotations

from functools import cache

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import norm
from tests.conformance.exact_starts import Drawer, limit, worst_quantile
from tests.conformance.kernels import KERNELS, KNOWING_MESHES

import phalanx as phx
from phalanx.kernels.metric.low_rank import LowRankMetric

FEW, MANY, DRAWS = 10_000, 200_000, 2

ADAPTIVE = [name for name in KNOWING_MESHES if KERNELS[name].learns_moments]
"""Kernels that learn a metric, and whose trajectories end early or are long."""


def weighing(log_density):
    """A model of three coordinates with this log density on all of the real line."""

    def model():
        x = phx.sample("weights", dist.Normal(0.0, 1.0).expand([3]))
        phx.factor("density", log_density(x) - dist.Normal(0.0, 1.0).log_prob(x).sum())

    return model


def log_gamma(y):
    return 0.7 * y - jnp.exp(y)  # the logarithm of a Gamma(0.7)


def gammas(random, size):
    return np.log(random.gamma(1.7, size=size)) + np.log(random.uniform(size=size)) / 0.7  # none underflows


def funnel(random, size):
    width = random.normal(size=size) * 3
    return np.concatenate([width[:, None], random.normal(size=(size, 2)) * np.exp(width / 2)[:, None]], 1)


TARGETS = {
    "all kinds of tails": (
        weighing(lambda x: -jnp.log1p(x[0] ** 2) + log_gamma(x[1]) - 1.5 * jnp.log1p(x[2] ** 2 / 2)),
        lambda random, n: np.stack([random.standard_cauchy(n), gammas(random, n), random.standard_t(2, n)], 1),
    ),
    "lognormal": (
        lambda: phx.sample("weights", dist.LogNormal(0.0, 1.0).expand([3])),
        lambda random, n: random.normal(size=(n, 3)),
    ),
    "funnel": (
        weighing(lambda x: -(x[0] ** 2) / 18 - x[0] - 0.5 * (x[1:] ** 2).sum() * jnp.exp(-x[0])),
        funnel,
    ),
}
"""A model, and exact draws of its unconstrained position."""


def metric(kind):
    """A metric that does not fit: it must do no harm."""
    one, scale = np.float32(1.0), np.array([0.4, 1.0, 2.5], np.float32)
    turned = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0].astype(np.float32)
    return {
        "unit": None,
        "diagonal": LowRankMetric((scale,), turned[:, :0], scale[:0], one, np.bool_(False)),
        "dense": LowRankMetric((scale,), turned, scale[::-1].copy(), 0 * one, np.bool_(True)),
        "low-rank": LowRankMetric((scale,), turned[:, :1], scale[2:], one, np.bool_(True)),
    }[kind]


@cache
def drawer(name, target, count):
    """The kernel of that name on a target."""
    return Drawer(TARGETS[target][0], KERNELS[name], count, DRAWS)


def changed(name, target, count, **tuning):
    """Standard errors by which the worst quantile of any coordinate is off after some draws."""
    begin = TARGETS[target][1](np.random.default_rng(3), count).astype(np.float32)
    known = {key: value for key, value in tuning.items() if hasattr(KERNELS[name].tuning, key)}
    found, _ = drawer(name, target, count).after({"weights": begin}, **known)
    assert np.isfinite(found["weights"]).all()
    if tuning["trajectory_length"] < 10 and tuning.get("step_size", 0.0) < 1:  # far too long steps are rejected
        assert (found["weights"] != begin).any()
    return max(worst_quantile(found["weights"][:, i], begin[:, i]) for i in range(3))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n in ("hmc", "laps", "mams", "nuts") else []) for n in ADAPTIVE],
)  # these reach exact posteriors in other tests that are not slow
def test_exact_draws_stay_exact(name):
    tuning = {"step_size": np.float32(0.7), "trajectory_length": np.float32(10.0), "max_depth": np.int32(4)}
    worst = changed(name, "all kinds of tails", FEW, metric=metric("dense"), **tuning)
    assert worst < limit(3 * len(ADAPTIVE))


LENGTHS = [(0.05, 2.0), (0.5, 35.0), (1.0, 5.0), (2.5, 35.0)]
"""Step sizes from small to much too large, and lengths of trajectories."""


KINDS = {
    "all kinds of tails": ("unit", "diagonal", "dense", "low-rank"),
    "lognormal": ("dense",),
    "funnel": ("low-rank",),
}
"""Metrics with which kernels that learn one move on each target."""

CASES = [
    (name, target, kind)
    for name, kernel in KERNELS.items()
    for target in TARGETS
    for kind in (KINDS[target] if kernel.learns_moments else ("unit",))
]


@pytest.mark.slow
@pytest.mark.parametrize("name, target, kind", CASES)
def test_exact_draws_stay_exact_whatever_the_tuning(name, target, kind):
    for step_size, length in LENGTHS:
        tuning = {"trajectory_length": np.float32(length), "max_depth": np.int32(5)}
        tuning |= {"metric": metric(kind)} if KERNELS[name].learns_moments else {}
        tuning |= {} if "blackjax" in name else {"step_size": np.float32(step_size)}
        worst = changed(name, target, MANY, **tuning)
        assert worst < limit(3 * len(CASES) * len(LENGTHS)), (step_size, length, worst)


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_the_neck_of_a_funnel_keeps_its_share(name):
    """P(width < -5) is 0.0478, and R-hat does not see where it is lost. Within 5 standard errors, for every kernel."""
    begin = funnel(np.random.default_rng(5), MANY).astype(np.float32)
    tuning = {"step_size": np.float32(0.2), "trajectory_length": np.float32(5.0), "max_depth": np.int32(6)}
    known = {key: value for key, value in tuning.items() if hasattr(KERNELS[name].tuning, key)}
    if "blackjax" in name:
        known = {}
    found, _ = drawer(name, "funnel", MANY).after({"weights": begin}, **known)
    share = norm.cdf(-5 / 3)
    assert abs((found["weights"][:, 0] < -5).mean() - share) < 5 * np.sqrt(share * (1 - share) / MANY)
