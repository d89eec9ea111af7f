"""Bernoulli variables of logits: NumPyro's log density, with the gradient that it has."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phalanx as phx
from phalanx.distributions.precise import precise

LOGITS = st.one_of(st.sampled_from([0.0, -0.0, np.inf, -np.inf, 100.0, -100.0, 1e-30]), st.floats(-50, 50, width=32))
WRAPPED = {
    "as it is": lambda made: made,
    "to_event": lambda made: made.to_event(1),
    "expand": lambda made: made.expand([2, *made.batch_shape]),
    "mask": lambda made: made.mask(np.arange(made.batch_shape[0]) % 2 == 0),
    "all of them": lambda made: made.expand([2, *made.batch_shape]).to_event(1).mask(np.array([True, False])),
}


@pytest.mark.slow
@pytest.mark.parametrize("wrapped", WRAPPED)
@given(
    rows=st.lists(st.tuples(LOGITS, st.booleans()), min_size=1, max_size=5), kind=st.sampled_from([bool, int, float])
)
@settings(max_examples=8, deadline=None)
def test_the_log_density_is_numpyros(wrapped: str, rows: list[tuple[float, bool]], kind: type) -> None:
    logits = np.array([logit for logit, _ in rows], np.float32)
    values = np.array([value for _, value in rows], kind)
    made = WRAPPED[wrapped](dist.Bernoulli(logits=logits, validate_args=False))
    values = np.broadcast_to(values, made.shape())
    with jax.numpy_rank_promotion("allow"):  # of an expanded one NumPyro's own promotes its logits
        found, expected = precise(made).log_prob(values), made.log_prob(values)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    mended = precise(made)
    assert mended.batch_shape == made.batch_shape and mended.event_shape == made.event_shape


@given(logit=LOGITS, value=st.booleans())
@settings(max_examples=25, deadline=None)
def test_the_gradient_is_the_value_less_its_chance(logit: float, value: bool) -> None:
    log_density = lambda at: precise(dist.Bernoulli(logits=at, validate_args=False)).log_prob(value)  # noqa: E731
    at = jnp.float32(logit)
    np.testing.assert_allclose(jax.grad(log_density)(at), value - jax.nn.sigmoid(at), rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@given(logit=st.one_of(st.just(0.0), st.floats(-20, 20, width=32)), value=st.booleans())
@settings(max_examples=25, deadline=None)
def test_so_are_further_derivatives(logit: float, value: bool) -> None:
    log_density = lambda at: precise(dist.Bernoulli(logits=at)).log_prob(value)  # noqa: E731
    at, chance = jnp.float32(logit), jax.nn.sigmoid(jnp.float32(logit))
    second, third = jax.grad(jax.grad(log_density)), jax.grad(jax.grad(jax.grad(log_density)))
    np.testing.assert_allclose(second(at), -chance * (1 - chance), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(third(at), -chance * (1 - chance) * (1 - 2 * chance), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("value", [-1, 2, 0.5, np.nan])
def test_density_of_a_value_between_zero_and_one_is_nan(value) -> None:
    assert np.isnan(precise(dist.Bernoulli(logits=0.3, validate_args=False)).log_prob(value))


def test_the_gradient_of_numpyros_is_wrong_at_zero() -> None:
    gradient = jax.grad(lambda at: dist.Bernoulli(logits=at).log_prob(1.0))(0.0)
    assert gradient != 0.5, "where it is right, bernoulli-at-zero can go"


@pytest.mark.parametrize("in_blocks", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_logistic_regression_has_the_right_gradient_at_nothing(in_blocks: bool) -> None:
    chosen = np.random.default_rng(0)
    x, y = jnp.float32(chosen.normal(size=(100, 3))), jnp.float32(chosen.random(100) < 0.3)

    def model(x, y):
        w = phx.sample("w", dist.Normal(0.0, 1.0).expand([3]))
        rows = lambda x: dist.Bernoulli(logits=x @ w)  # noqa: E731
        phx.sample("y", phx.blocked(rows, x, block=7) if in_blocks else rows(x), obs=y)

    log_density = lambda w: phx.log_joint(model)({"w": w}, x=x, y=y)  # noqa: E731
    np.testing.assert_allclose(jax.grad(log_density)(jnp.zeros(3)), x.T @ (y - 0.5), rtol=1e-4, atol=1e-4)
