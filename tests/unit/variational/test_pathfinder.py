"""Pathfinder: the covariance it reads off a climb, and the mixture of its paths."""

from __future__ import annotations

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import multivariate_normal
from tests.slow import with_slow

import phalanx as phx
from phalanx.learning.ascent import MEMORY, Climb
from phalanx.variational.guides.pathfinder import follow, next_diagonal, normal_of


def dense(diagonal, steps, changes):
    """The BFGS update, written out."""
    covariance = np.diag(diagonal)
    for s, y in zip(steps, changes, strict=True):
        rho, eye = 1 / (s @ y), np.eye(len(s))
        covariance = (eye - rho * np.outer(s, y)) @ covariance @ (eye - rho * np.outer(y, s)) + rho * np.outer(s, s)
    return covariance


@pytest.mark.parametrize(
    "filled, size",
    with_slow([*product([0, 1, MEMORY], [1, 3, 40])], {(0, 1), (1, 40), (MEMORY, 3), (MEMORY, 40)}),
)
def test_the_covariance_is_that_of_bfgs(size, filled):
    rng = np.random.default_rng(size + 10 * filled)
    root = rng.normal(size=(size, size)) / np.sqrt(size) + np.eye(size)
    steps = rng.normal(size=(filled, size))
    changes = steps @ (root @ root.T)
    diagonal = np.exp(0.3 * rng.normal(size=size))
    s, y = (jnp.asarray(np.concatenate([np.zeros((MEMORY - filled, size)), x])) for x in (steps, changes))
    zero = jnp.zeros(size)
    climb = Climb(zero, jnp.float32(0), jnp.ones(size), s, y, np.arange(MEMORY) >= MEMORY - filled, jnp.bool_(True))
    expected, at = dense(diagonal, steps, changes), rng.normal(size=size)

    @jax.jit
    def found_of(climb, diagonal, at):
        normal = normal_of(climb, diagonal)
        columns = jax.vmap(lambda noise: normal.at(noise) - normal.loc)(jnp.eye(size))
        return normal.loc, columns.T @ columns, normal.log_prob(at)

    loc, covariance, log_prob = found_of(climb, diagonal.astype(np.float32), at.astype(np.float32))
    np.testing.assert_allclose(loc, expected @ np.ones(size), rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(covariance, expected, rtol=2e-3, atol=2e-3)
    truth = multivariate_normal(np.asarray(loc, float), expected).logpdf(at)  # pyright: ignore[reportArgumentType]
    np.testing.assert_allclose(log_prob, truth, rtol=1e-3, atol=1e-2)


def test_the_diagonal_keeps_the_secant_of_an_axis():
    """Along a single axis it is what the curvature says."""
    step = jnp.array([0.5, 0.0])
    found = next_diagonal(jnp.ones(2), step, step * jnp.array([4.0, 1.0]))
    np.testing.assert_allclose(found[0], 0.25, rtol=1e-5)


@pytest.mark.slow
def test_a_path_on_a_normal_ends_at_the_normal():
    precision = np.array([[2.0, 0.9, 0.0], [0.9, 1.0, 0.3], [0.0, 0.3, 4.0]], np.float32)
    mean = np.array([1.0, -2.0, 0.5], np.float32)
    path = follow(lambda u: -0.5 * (u - mean) @ precision @ (u - mean), jnp.zeros(3), jax.random.key(0))
    exact = 0.5 * 3 * np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(precision)[1]
    np.testing.assert_allclose(path.best.loc, mean, atol=0.05)
    assert exact - 0.1 < path.bound < exact + 0.1


def correlated(y):
    b = phx.sample("b", dist.MultivariateNormal(jnp.zeros(2), jnp.array([[1.0, 0.8], [0.8, 1.0]])))
    scale = phx.sample("scale", dist.LogNormal(0.0, 0.3))
    phx.sample("y", dist.Normal(b.sum(), scale), obs=y)


@pytest.mark.slow
def test_a_fit_is_solved_and_near():
    data = {"y": np.random.default_rng(0).normal(1.0, 1.0, size=40).astype(np.float32)}
    fit = phx.fit(correlated, phx.guides.pathfinder(num_paths=4), data, progress=False)
    exact = phx.mcmc(correlated, data, progress=False, num_chains=4, num_samples=1000)
    assert fit.steps == 0 and fit.evidence().reliable
    for name in ("b", "scale"):
        truth, found = exact.draws[name].reshape(4000, -1), fit.sample(seed=0, n=4000)[name].reshape(4000, -1)
        assert (np.abs(found.mean(0) - truth.mean(0)) < 0.25 * truth.std(0)).all()
    more = phx.mcmc(correlated, data, init=fit, progress=False, num_warmup=50, num_samples=5)
    assert more.num_draws == 5


@pytest.mark.slow
def test_paths_in_several_modes_make_one_guide():
    def two():
        x = phx.sample("x", dist.Normal(0.0, 10.0))
        ends = jnp.stack([-0.5 * ((x - 3) / 0.5) ** 2, -0.5 * ((x + 3) / 0.5) ** 2])
        phx.factor("ends", jax.nn.logsumexp(ends))

    fit = phx.fit(two, phx.guides.pathfinder(num_paths=16), progress=False)
    right = (fit.sample(seed=1, n=4000)["x"] > 0).mean()
    assert 0.15 < right < 0.85
    assert fit.evidence().reliable


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="num_paths must be a number above 0"):
        phx.guides.pathfinder(num_paths=0)
    with pytest.raises(ValueError, match="num_paths must be a whole number"):
        phx.guides.pathfinder(num_paths=1.5)  # pyright: ignore[reportArgumentType]

    def never():
        phx.sample("x", dist.Normal(0.0, 1.0))
        phx.factor("impossible", -jnp.inf)

    with pytest.raises(ValueError, match="found no normal along its paths"):
        phx.fit(never, phx.guides.pathfinder(), progress=False)
