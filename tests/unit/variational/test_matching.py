"""Batch and match: the update solves its equation, normals are found exactly, and what has no scores is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phalanx as phx
from phalanx.variational.methods.matching import match

compiled = jax.jit(match)
MATCHED = {"optimizer": "batch-and-match", "progress": False}


SIZES = [(1, 1), (3, 2), (6, 12)]
"""Coordinates, and draws: fewer of them, and more. Few sizes, since each is compiled."""


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(SIZES), st.floats(-3.0, 5.0), st.floats(-2.0, 2.0), st.integers(0, 2**32 - 1))
def test_the_update_solves_its_equation(sizes, log_far, log_scale, seed):
    """In float64, as it is written in the paper."""
    size, count = sizes
    generator = np.random.default_rng(seed)
    z, g = generator.normal(size=(count, size)), 10.0**log_scale * generator.normal(size=(count, size))
    far = 10.0**log_far
    with jax.enable_x64(True):
        shift, factor = map(np.asarray, compiled(*map(jax.numpy.asarray, (z, g, far))))
    covariance, part = factor @ factor.T, far / (1.0 + far)
    u = far * np.cov(g.T, ddof=0).reshape(size, size) + part * np.outer(g.mean(0), g.mean(0))
    v = np.eye(size) + far * np.cov(z.T, ddof=0).reshape(size, size) + part * np.outer(z.mean(0), z.mean(0))
    np.testing.assert_allclose(covariance @ u @ covariance + covariance, v, rtol=1e-6, atol=1e-6 * np.abs(v).max())
    np.testing.assert_allclose(shift, part * (covariance @ g.mean(0) + z.mean(0)), rtol=1e-6, atol=1e-8)


def test_draws_of_a_normal_tell_all_of_it():
    generator = np.random.default_rng(0)
    root = generator.normal(size=(4, 4))
    covariance, mean = root @ root.T + np.eye(4), generator.normal(size=4)
    z = generator.normal(size=(12, 4))
    z = np.concatenate([z, -z])
    with jax.enable_x64(True):
        scores = -np.linalg.solve(covariance, (z - mean).T).T
        shift, factor = map(np.asarray, compiled(*map(jax.numpy.asarray, (z, scores, 1e12))))
    np.testing.assert_allclose(factor @ factor.T, covariance, rtol=1e-6)
    np.testing.assert_allclose(shift, mean, rtol=1e-6)


def normal():
    x = phx.sample("x", dist.Normal(np.array([100.0, -3.0, 0.0], np.float32), np.array([1.0, 10.0, 0.01], np.float32)))
    phx.sample("y", dist.Normal(0.5 * x[0], 0.5))


@pytest.mark.slow
def test_a_normal_posterior_is_found_in_a_few_steps():
    fit = phx.fit(normal, phx.guides.full_rank(), **MATCHED)
    assert fit.settled and fit.timing.gradient_evaluations <= 8 * 300 and fit.failed == 0
    draws = {name: np.asarray(values) for name, values in fit.posterior(40_000).draws.items()}
    vector = np.concatenate([draws["x"][0], draws["y"][0, :, None]], 1)
    expected = np.diag([1.0, 100.0, 1e-4, 0.5])
    expected[0, 3] = expected[3, 0] = 0.5
    mean, sd = np.array([100.0, -3.0, 0.0, 50.0]), np.sqrt(np.diag(expected))
    # 4 means and 10 covariances within 5 standard errors: 1e-5
    assert (np.abs(vector.mean(0) - mean) < 5 * sd / 200).all()
    assert (np.abs(np.cov(vector.T) - expected) < 5 * np.sqrt(2.0) * np.outer(sd, sd) / 200).all()
    assert fit.evidence().log_evidence == pytest.approx(0.0, abs=1e-2)


def row_model(y):
    mean = phx.sample("mean", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(mean, phx.param("sd", 1.0, dist.constraints.positive)), obs=y)


def coin(y):
    phx.sample("y", dist.Normal(phx.sample("mean", dist.Normal(0.0, 1.0)), 1.0), obs=y)


Y = {"y": np.ones(4, np.float32)}


@pytest.mark.parametrize(
    "model, guide, options, words",
    [
        (coin, phx.guides.mean_field(), {}, r"guide: .* phx.guides.full_rank\(\); got mean_field\(\)"),
        (coin, phx.guides.full_rank(), {"batch_size": 2}, "batch_size: optimizer='batch-and-match' matches scores"),
        (row_model, phx.guides.full_rank(), {}, "Parameter 'sd' of the model"),
        (coin, phx.guides.full_rank(), {"objective": phx.guides.forward_kl()}, "objective: .* follows no objective"),
    ],
    ids=["guide", "rows", "parameter", "objective"],
)
def test_guides_without_scores_are_refused(model, guide, options, words):
    with pytest.raises(ValueError, match=words):
        phx.fit(model, guide, Y, **options, **MATCHED)


@pytest.mark.slow
def test_the_same_with_particles_over_devices(mesh_of):
    one, four = (
        phx.fit(coin, phx.guides.full_rank(), Y, mesh=mesh, num_steps=20, until=False, **MATCHED)
        for mesh in (None, mesh_of(4, 1))
    )
    np.testing.assert_allclose(four.losses.elbo, one.losses.elbo, rtol=1e-5)


def heavy_tails():
    phx.sample("x", dist.StudentT(6.0, jnp.array([1.0, -2.0]), 3.0).to_event(1))


@pytest.mark.slow
def test_the_error_of_the_bound_is_that_of_pairs():
    """Both of a pair say nearly the same of the bound, so that they are one draw; and one alone tells no error."""
    fit = phx.fit(heavy_tails, phx.guides.full_rank(), num_steps=3000, until=False, **MATCHED)
    bounds, errors = fit.losses.elbo[1000:], fit.losses.error[1000:]
    np.testing.assert_allclose(np.sqrt(np.mean(errors**2)), np.std(bounds), rtol=0.2)
    two = phx.fit(heavy_tails, phx.guides.full_rank(), num_particles=2, num_steps=20, until=False, **MATCHED)
    assert np.isnan(two.losses.error).all() and np.isfinite(two.losses.elbo).all()
