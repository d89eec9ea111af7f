"""Hierarchies whose groups or rows live on the devices, against the same models unsharded and against the truth.

A mean is off by more than 5 combined Monte-Carlo standard errors with probability 6e-7. Groups number thousands, so
that a share of them is compared instead: those outside of intervals, whose number is binomial.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.diagnostics import mcse

LIMIT = 5.0
SIZES = {"num_chains": 8, "num_warmup": 250, "num_samples": 150, "progress": False}


def radon(groups, homes, seed=0):
    """Measurements in homes of counties: an intercept for each county, which depends on its soil; and the truth."""
    random = np.random.default_rng(seed)
    soil, floor = random.normal(size=groups), random.integers(0, 2, (groups, homes))
    truth = {"mean": 1.3, "of_soil": 0.7, "of_floor": -0.6, "between": 0.4, "within": 0.8}
    intercepts = truth["mean"] + truth["of_soil"] * soil + truth["between"] * random.normal(size=groups)
    y = intercepts[:, None] + truth["of_floor"] * floor + truth["within"] * random.normal(size=(groups, homes))
    data = {"y": y.astype(np.float32), "floor": floor.astype(np.int8), "soil": soil.astype(np.float32)}
    return data, truth, intercepts


def varying_intercepts(y, floor, soil):
    mean = phx.sample("mean", dist.Normal(0.0, 2.0))
    of_soil = phx.sample("of_soil", dist.Normal(0.0, 1.0))
    of_floor = phx.sample("of_floor", dist.Normal(0.0, 1.0))
    between = phx.sample("between", dist.HalfNormal(1.0))
    within = phx.sample("within", dist.HalfNormal(1.0))
    intercepts = phx.sample("intercepts", dist.Normal(mean + of_soil * soil, between))
    phx.sample("y", dist.Normal(intercepts[:, None] + of_floor * floor, within).to_event(1), obs=y)


def robust(x, y):
    """Student's t with 4 degrees of freedom as a mixture of normals: a precision for each row."""
    w = phx.sample("w", dist.Normal(0.0, 2.0).expand([x.shape[1]]))
    scale = phx.sample("scale", dist.HalfNormal(1.0))
    precision = phx.sample("precision", dist.Gamma(2.0, 2.0).expand([x.shape[0]]))
    phx.sample("y", dist.Normal(x @ w, scale / jnp.sqrt(precision)), obs=y)


def robust_without_rows(x, y):
    w = phx.sample("w", dist.Normal(0.0, 2.0).expand([x.shape[1]]))
    scale = phx.sample("scale", dist.HalfNormal(1.0))
    phx.sample("y", dist.StudentT(4.0, x @ w, scale), obs=y)


MOMENTS: tuple[tuple[Literal["mean", "sd"], Callable[[np.ndarray], np.ndarray]], ...] = (
    ("mean", lambda v: v.mean((0, 1))),
    ("sd", lambda v: v.std((0, 1))),
)


def compare(a, b, names):
    for name in names:
        x, y = (run.draws[name].astype(np.float64) for run in (a, b))
        for kind, of in MOMENTS:
            error = np.hypot(mcse(x, kind), mcse(y, kind))
            assert np.abs((of(x) - of(y)) / error).max() < LIMIT, (name, kind)


def check_intercepts(run, exact):
    means, variances = run.reduced["learnt"]["intercepts"].mean, run.reduced["learnt"]["intercepts"].variance
    assert means.shape == exact.shape
    within = np.abs(means - exact) < 1.96 * np.sqrt(variances)
    share = 0.05 + 5 * np.sqrt(0.05 * 0.95 / len(exact))  # binomial, 5 standard errors; a little for the reducers'
    assert 1 - within.mean() < share + 0.01


@pytest.mark.slow
@pytest.mark.parametrize("groups, homes", [(203, 5), (10_000, 8)])
def test_varying_intercepts_with_the_groups_spread(groups, homes, mesh_of):
    data, truth, intercepts = radon(groups, homes)
    mesh = mesh_of(2, 4)
    names = list(truth)
    learnt = phx.reduce(lambda values: {"intercepts": values["intercepts"]}, phx.reducers.moments())
    options = {"keep": names, "reducers": {"learnt": learnt}, **SIZES}
    spread = phx.mcmc(varying_intercepts, phx.shard(data, mesh), mesh=mesh, **options)
    whole = phx.mcmc(varying_intercepts, data, mesh=mesh_of(8, 1), **options)
    compare(spread, whole, names)
    for name, value in truth.items():
        draws = spread.draws[name]
        assert abs(draws.mean() - value) < LIMIT * draws.std(), name
    check_intercepts(spread, intercepts)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [103, 20_000])
def test_a_latent_variable_for_each_row_against_none(rows, mesh_of):
    random = np.random.default_rng(1)
    x = random.normal(size=(rows, 3)).astype(np.float32)
    y = (x @ [1.0, -0.5, 0.3] + 0.5 * random.standard_t(4.0, size=rows)).astype(np.float32)
    mesh = mesh_of(2, 4)
    kept = {"keep": ["w", "scale"], **SIZES}
    spread = phx.mcmc(robust, phx.shard({"x": x, "y": y}, mesh), mesh=mesh, **kept)
    marginal = phx.mcmc(robust_without_rows, {"x": x, "y": y}, mesh=mesh_of(8, 1), **kept)
    compare(spread, marginal, ["w", "scale"])
