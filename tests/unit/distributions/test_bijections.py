"""The simplex in logarithms: round trip, determinant, extreme positions, sparse draws. Cholesky factors. Circles."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from numpyro.distributions.transforms import AffineTransform

from phalanx.distributions.bijections import EXPONENTIALS, bijection_onto, radius_at
from phalanx.distributions.supports import entries_of_support, support_of

ONTO = bijection_onto(constraints.simplex)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_round_trip_and_determinant(scale):
    u = scale * jax.random.normal(jax.random.key(1), (5, 6))
    y = jnp.asarray(ONTO(u))
    np.testing.assert_allclose(y.sum(-1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(ONTO.inv(y), u, atol=1e-4)
    with jax.enable_x64(True):
        wide = u.astype(jnp.float64)
        matrices = jax.vmap(jax.jacobian(lambda u: jnp.asarray(ONTO(u))[:-1]))(wide)
        expected = np.linalg.slogdet(np.asarray(matrices))[1]
    np.testing.assert_allclose(ONTO.log_abs_det_jacobian(u, y), expected, rtol=1e-5, atol=1e-4)


def test_extreme_positions_have_the_density_of_float64():
    u = jnp.array([[16.0, 20.0, -30.0, 3.0], [-40.0, 25.0, 10.0, 0.0], [40.0, -30.0, 0.0, 1.0]])

    @jax.jit
    def density(u):
        y = ONTO(u)
        return dist.Dirichlet(jnp.full((3, 5), 0.1, u.dtype)).log_prob(y) + ONTO.log_abs_det_jacobian(u, y)

    with jax.enable_x64(True):
        expected = density(u.astype(jnp.float64))
    np.testing.assert_allclose(density(u), expected, rtol=1e-5)
    far = 1e4 * u
    assert np.isfinite(density(far)).all() and np.isfinite(jax.jit(jax.grad(lambda u: density(u).sum()))(far)).all()


@pytest.mark.parametrize(
    "size",
    [
        1,
        pytest.param(2, marks=pytest.mark.slow),
        pytest.param(5, marks=pytest.mark.slow),
        pytest.param(6, marks=pytest.mark.slow),
    ],
)
def test_a_cholesky_factor_has_each_number_once_and_comes_back(size):
    onto = bijection_onto(constraints.lower_cholesky)
    u = jnp.asarray(np.random.default_rng(size).normal(size=(3, size * (size + 1) // 2)), jnp.float32)
    tril = np.asarray(onto(u))
    assert onto.forward_shape(u.shape) == tril.shape == (3, size, size)
    assert onto.inverse_shape(tril.shape) == u.shape
    rows, columns = np.tril_indices(size)
    logs = np.where(np.eye(size, dtype=bool), np.log(np.where(np.eye(size, dtype=bool), tril, 1.0)), tril)
    np.testing.assert_allclose(np.sort(logs[:, rows, columns], 1), np.sort(u, 1), rtol=1e-5)
    assert not np.triu(tril, 1).any()
    np.testing.assert_allclose(onto.inv(tril), u, rtol=1e-5, atol=1e-6)

    def lower(u):
        return jnp.asarray(onto(u))[rows, columns]

    expected = np.linalg.slogdet(np.asarray(jax.vmap(jax.jacobian(lower))(u)))[1]
    np.testing.assert_allclose(onto.log_abs_det_jacobian(u, tril), expected, rtol=1e-4, atol=1e-4)
    inverse = np.asarray(jax.vmap(jax.jacobian(lambda tril: onto.inv(tril)))(jnp.asarray(tril)))
    assert np.isfinite(inverse).all()


@pytest.mark.slow
def test_the_last_component_of_a_sparse_dirichlet_is_as_large_as_the_others():
    """Exact draws of the pieces of the stick, through the transform: the mean of each is 1/K within 5 standard errors.

    A false failure has probability below 1e-4, for the hundred means together.
    """
    size, a, count = 100, 0.1, 4_000
    after = a * jnp.arange(size - 1, 0, -1)
    key, other = jax.random.split(jax.random.key(0))
    logs = jax.random.loggamma(key, a, (count, size - 1)) - jax.random.loggamma(other, after, (count, size - 1))
    y = np.asarray(ONTO(logs + jnp.log(jnp.arange(size - 1.0, 0, -1))[None]), np.float64)
    error = np.sqrt((a / (size * a)) * (1 - 1 / size) / (size * a + 1) / count)
    np.testing.assert_allclose(y.mean(0), 1 / size, atol=5 * error)


CIRCLE = bijection_onto(constraints.circular)


def test_angles_have_points_on_both_sides_of_pi():
    end = float(np.float32(np.pi))  # rounded up
    angles = jnp.array([-end, -3.0, -0.5, 0.0, 2.0, end])
    points = jnp.asarray(CIRCLE.inv(angles))
    assert points.shape == CIRCLE.inverse_shape(angles.shape) and CIRCLE.forward_shape(points.shape) == angles.shape
    np.testing.assert_allclose(CIRCLE(points), angles, atol=1e-6)
    outside = jnp.array([-4.0, 4.0])
    assert (jnp.abs(CIRCLE(CIRCLE.inv(outside)) - outside) > 1.0).all()


def test_the_density_of_a_radius_is_that_of_its_draws():
    radii = np.linspace(0.0, 3.0, 30_001)
    points = jnp.stack([jnp.asarray(radii), jnp.zeros(len(radii))], -1)
    mass = np.asarray(jnp.exp(CIRCLE.log_abs_det_jacobian(points, CIRCLE(points))), float) * radii * 1e-4
    assert mass.sum() == pytest.approx(1.0, abs=1e-4)
    assert radii[np.argmax(mass / np.maximum(radii, 1e-4))] == pytest.approx(1.0, abs=0.01)
    draws = np.asarray(radius_at(jax.random.gamma(jax.random.key(0), EXPONENTIALS, (10_000,))), float)
    levels = np.interp(np.quantile(draws, [0.02, 0.1, 0.5, 0.9, 0.98]), radii, np.cumsum(mass))
    np.testing.assert_allclose(levels, [0.02, 0.1, 0.5, 0.9, 0.98], atol=0.025)  # five standard errors of a level


def test_the_origin_has_an_angle_and_derivatives():
    def density(point):
        return jnp.cos(CIRCLE(point) - 1.0) + CIRCLE.log_abs_det_jacobian(point, CIRCLE(point))

    for point in (jnp.zeros(2), jnp.array([1e-15, -1e-15])):
        assert np.isfinite(density(point)) and np.isfinite(jax.grad(density)(point)).all()


def test_images_of_a_circle_are_reached_through_it():
    turned = dist.TransformedDistribution(dist.VonMises(0.0, 2.0), AffineTransform(1.0, 2.0))
    onto = bijection_onto(entries_of_support(support_of(turned)))
    points = jax.random.normal(jax.random.key(0), (5, 3, 2))
    values = jnp.asarray(onto(points))
    np.testing.assert_allclose(values, 1.0 + 2.0 * CIRCLE(points), rtol=1e-6)
    of_circle = CIRCLE.log_abs_det_jacobian(points, CIRCLE(points))
    np.testing.assert_allclose(onto.log_abs_det_jacobian(points, values), of_circle + np.log(2.0), rtol=1e-6)
