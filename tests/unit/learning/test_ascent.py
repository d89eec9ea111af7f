"""Climbs, and the places they find."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import random

import phalanx as phx
from phalanx.learning.ascent import EXACT, LANES, MANY, Climb, climb, curvature, find_starting_point, negative_hessian


@pytest.mark.slow
@given(seed=st.integers(0, 2**31), chance=st.floats(0.02, 0.98), columns=st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_a_logistic_regression_climbs_from_zero(seed: int, chance: float, columns: int) -> None:
    """NumPyro's density has a gradient at zero that is half wrong, and a climb that follows it gets nowhere."""
    chosen = np.random.default_rng(seed)
    x = chosen.normal(size=(400, columns)).astype(np.float32)
    y = (chosen.random(400) < chance).astype(np.float32)

    def log_density(w):
        return dist.Bernoulli(logits=x @ w).log_prob(y).sum() - 0.5 * jnp.sum(w**2)

    top = climb(log_density, Climb.begin(log_density, jnp.zeros(columns)), 50)
    left = jnp.linalg.norm(jax.grad(log_density)(top.position))
    assert left < 0.5, "a step of a hundredth of a standard deviation, at the most, is left"


@pytest.mark.slow
@pytest.mark.parametrize("init", [None, {"w": np.zeros(3), "b": 0.0}])
def test_the_maximum_of_a_regression_is_found_from_zero(init) -> None:
    chosen = np.random.default_rng(0)
    x, y = chosen.normal(size=(500, 3)).astype(np.float32), (chosen.random(500) < 0.05).astype(np.float32)

    def model(x, y):
        w, b = phx.sample("w", dist.Normal(0.0, 1.0).expand([3])), phx.sample("b", dist.Normal(0.0, 5.0))
        phx.sample("y", dist.Bernoulli(logits=x @ w + b), obs=y)

    found = phx.maximize(model, {"x": x, "y": y}, init=init)
    w, b = (jnp.asarray(found.values[name]) for name in ("w", "b"))
    errors = y - jax.nn.sigmoid(x @ w + b)
    np.testing.assert_allclose(x.T @ errors - w, 0.0, atol=0.05)
    np.testing.assert_allclose(errors.sum() - b / 25.0, 0.0, atol=0.05)


@pytest.mark.slow
def test_rows_in_blocks_curve_as_rows_in_one_piece_do() -> None:
    """The gradient of blocks is computed with their value; curvature is the derivative of that gradient."""
    chosen = np.random.default_rng(1)
    x, y = chosen.normal(size=(100, 3)).astype(np.float32), (chosen.random(100) < 0.3).astype(np.float32)

    def model(x, y, block):
        w, scale = phx.sample("w", dist.Normal(0.0, 1.0).expand([3])), phx.sample("scale", dist.HalfNormal(1.0))

        def of_rows(x):
            return dist.Bernoulli(logits=scale * (x @ w))

        phx.sample("y", phx.blocked(of_rows, x, block=block) if block else of_rows(x), obs=y)

    whole, blocks = (
        phx.fit(partial(model, block=block), phx.guides.laplace(), {"x": x, "y": y}, progress=False).params
        for block in (None, 32)
    )
    for name, values in whole.items():
        np.testing.assert_allclose(blocks[name], values, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    "size",
    [
        1,
        pytest.param(LANES - 1, marks=pytest.mark.slow),
        pytest.param(LANES, marks=pytest.mark.slow),
        pytest.param(LANES + 1, marks=pytest.mark.slow),
        pytest.param(3 * LANES - 1, marks=pytest.mark.slow),
    ],
)
def test_hessians_are_whole_whatever_is_left_of_the_last_lanes(size: int) -> None:
    mixing = np.random.default_rng(size).normal(size=(size, size)).astype(np.float32)

    def log_density(x):
        return -0.5 * jnp.sum((mixing @ x) ** 2) + jnp.sum(jnp.sin(x))

    position = jnp.linspace(0.3, 1.0, size)
    expected = -np.asarray(jax.hessian(log_density)(position))
    np.testing.assert_allclose(negative_hessian(log_density, position), expected, rtol=1e-4, atol=1e-4)
    diagonal = curvature(log_density, position, random.key(0))
    np.testing.assert_allclose(diagonal, np.diagonal(expected), rtol=1e-4, atol=1e-4)


def test_gradients_of_tries_are_counted() -> None:
    """The first step down a wall is tried again and again."""

    def log_density(x):
        return -jnp.cosh(20.0 * x[0])

    begun = Climb.begin(log_density, jnp.full(1, 0.3))
    assert int(begun.gradients) == 1
    found = climb(log_density, begun, 1)
    assert int(found.gradients) > 1 + 1
    assert abs(float(found.position[0])) < 0.3


def test_many_coordinates_are_not_taken_for_flat_by_chance() -> None:
    """Estimates of a diagonal that are noise would be as small as one likes, and the guide as wide."""
    size = EXACT + 44
    mixing = jnp.asarray(np.random.default_rng(0).normal(size=(size, size)), jnp.float32)
    hessian = (mixing + mixing.T) / np.sqrt(2.0)  # of what it has, the diagonal is a small part

    def log_density(x):
        return -0.5 * x @ hessian @ x

    found = curvature(log_density, jnp.ones(size), random.key(0))
    noise = np.sqrt((np.asarray(hessian) ** 2).sum(1) / 32)  # of a mean of 32
    assert (found > 0.5 * noise).all()


@pytest.mark.slow
def test_a_factorisation_of_many_coordinates_begins_near_its_bound() -> None:
    """The prior's middle is a saddle, where a product of two has no gradient, and half of the logits' is missing."""
    users, films, width = 900, 100, 20
    assert (users + films) * width > MANY
    y = (np.random.default_rng(0).random((users, films)) < 0.05).astype(np.float32)

    def log_density(vector):
        u, v = vector[: users * width].reshape(users, width), vector[users * width : -users].reshape(films, width)
        logits = u @ v.T + vector[-users:, None]
        return dist.Bernoulli(logits=logits).log_prob(y).sum() + dist.Normal(0.0, 1.0).log_prob(vector).sum()

    size = (users + films) * width + users
    place = jax.jit(lambda key: find_starting_point(log_density, jnp.zeros(size), key))(random.key(1))
    drawn = place.position + place.scale * random.normal(random.key(2), (size,))
    alone = users * films * (0.05 * np.log(0.05) + 0.95 * np.log(0.95))
    assert log_density(drawn) - dist.Normal(0.0, 1.0).log_prob(drawn).sum() > 2.0 * alone
    assert np.quantile(place.scale, 0.99) < 1.5 and place.scale.max() < 4.0


@jax.custom_vjp
def solved(x):
    """Return exp(x) like an ODE solver: its gradient calls it again, and has no forward mode."""
    return jnp.exp(x)


solved.defvjp(lambda x: (solved(x), x), lambda x, along: (along * solved(x),))


@jax.custom_vjp
def called(x):
    """Return exp(x) from the host, as black boxes with a gradient do."""
    return jax.pure_callback(np.exp, jax.typeof(x), x, vmap_method="expand_dims")


called.defvjp(lambda x: (called(x),) * 2, lambda value, along: (along * called(jnp.log(value)),))


@pytest.mark.parametrize("exp", [solved, called])
@pytest.mark.parametrize(("count", "unit"), [(4.0, 1.0), (4e8, 1.0), (4e4, 1e3)])
def test_a_gradient_without_forward_mode_has_a_hessian(exp, count: float, unit: float) -> None:
    """Differences of gradients take their step from the curvature, whatever the number of rows and the units."""

    def log_density(log_rate):
        rate = exp(log_rate[0] / unit)
        return count * (2.0 * log_rate[0] / unit - rate) - 0.5 * (log_rate[1] - 3.0) ** 2

    position = jnp.array([np.log(2.0) * unit, 1.0])
    hessian = jax.jit(lambda x: negative_hessian(log_density, x))(position)
    assert hessian[0, 0] == pytest.approx(2.0 * count / unit**2, rel=1e-2)
    assert hessian[1, 1] == pytest.approx(1.0, rel=1e-3)
    assert abs(hessian[0, 1]) < 1e-2 * float(jnp.sqrt(hessian[0, 0] * hessian[1, 1]))


def test_a_gradient_that_cannot_be_computed_raises_its_own_error() -> None:
    def wrong(x):
        return jnp.sum(x @ jnp.ones((3, 3)))

    with pytest.raises(TypeError, match="dot_general requires contracting dimensions to have the same shape"):
        negative_hessian(wrong, jnp.zeros(2))
