"""Random variables: shapes, values, and distributions that cannot be drawn from."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from hypothesis import given as given_cases
from hypothesis import settings
from hypothesis import strategies as st
from numpyro import handlers
from numpyro.distributions import constraints

import phalanx as phx


class Triangle(dist.Distribution):
    """Density 2 x on (0, 1): no part of NumPyro, and nothing but a log density."""

    support = constraints.unit_interval  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]  # as NumPyro's own do

    def log_prob(self, value):  # pyright: ignore[reportIncompatibleMethodOverride]
        return jnp.log(2 * value)


def drawn(distribution, **kwargs):
    return phx.trace(phx.seed(lambda: phx.sample("x", distribution, **kwargs), 0))()["x"]


@pytest.mark.parametrize("distribution, shape", [
    (dist.Normal(0.0, 1.0), ()),
    (dist.Normal(jnp.zeros(3), 1.0), (3,)),
    pytest.param(dist.Normal(0.0, 1.0).expand([2, 3]).to_event(1), (2, 3), marks=pytest.mark.slow),
    pytest.param(dist.Dirichlet(jnp.ones((4, 3))), (4, 3), marks=pytest.mark.slow),
    pytest.param(dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)).expand([5]), (5, 2), marks=pytest.mark.slow),
])  # fmt: skip
def test_a_drawn_value_has_batch_and_event_shape(distribution, shape):
    with jax.numpy_rank_promotion("allow"):  # NumPyro's multivariate normal promotes
        variable = drawn(distribution)
        log_prob = variable.log_prob()
    assert variable.shape == variable.value.shape == shape
    assert log_prob.shape == distribution.batch_shape
    assert variable.dtype == jnp.float32
    assert variable.is_latent and not variable.observed


def test_a_given_value_may_have_sample_dimensions_in_front():
    variable = drawn(dist.Normal(jnp.zeros(()), 1.0).expand([3]).to_event(1), obs=np.zeros((7, 3)))
    assert variable.shape == (7, 3)
    assert variable.log_prob().shape == (7,)
    assert variable.observed and not variable.is_latent


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given_cases(
    sizes=st.lists(st.integers(1, 3), max_size=3), ones=st.lists(st.booleans(), min_size=3, max_size=3),
    front=st.lists(st.integers(1, 2), max_size=1), event=st.booleans(),
)  # fmt: skip
def test_data_stretch_batch_dimensions_of_size_one(sizes, ones, front, event):
    """The density is that of the distribution with its parameters repeated, as NumPyro has it."""
    batch = tuple(1 if one else size for size, one in zip(sizes, ones, strict=False))
    if event:
        base, repeated = (dist.Dirichlet(jnp.full((*shape, 3), 2.0)) for shape in (batch, tuple(sizes)))
    else:
        loc = np.arange(np.prod(batch), dtype=np.float32).reshape(batch)
        base, repeated = dist.Normal(loc, 2.0), dist.Normal(np.broadcast_to(loc, sizes), 2.0)
    value = np.full((*front, *sizes, *base.event_shape), 1 / 3, np.float32)
    with jax.numpy_rank_promotion("allow"):
        variable = drawn(base, obs=value)
        found, expected = variable.log_prob(), repeated.log_prob(value)
    assert variable.distribution is not None and variable.distribution.batch_shape == tuple(sizes)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_only_data_do():
    """A latent variable has the shape that its distribution says, whatever it begins at."""
    with pytest.raises(ValueError, match=re.escape("needs shape (1,)")):
        phx.substitute(lambda: phx.sample("x", dist.Normal(jnp.zeros(1), 1.0)), {"x": np.zeros(3)})()


@pytest.mark.parametrize("distribution, given, words", [
    (dist.Normal(jnp.zeros((1, 3)), 1.0), np.zeros((3, 1)), "needs shape (1, 3) (batch (1, 3) + event ())"),
    (dist.Normal(jnp.zeros((1, 3)), 1.0), np.zeros(3), "needs shape (1, 3)"),
    (dist.Normal(jnp.zeros(3), 1.0), np.zeros(2),
     "Variable 'x': the value has shape (2,), but its distribution Normal needs shape (3,) (batch (3,) + event ()), or "
     "that with sample dimensions in front. Reshape the value or the distribution's parameters."),
    (dist.Normal(jnp.zeros(3), 1.0), 0.0, "Variable 'x': the value has shape (), but"),
    (dist.Normal(jnp.zeros((3, 1)), 1.0), np.zeros(3), "the value has shape (3,), but its distribution Normal needs "
                                                      "shape (3, 1)"),
    (dist.Dirichlet(jnp.ones((2, 3))), np.zeros((3, 2)), "needs shape (2, 3) (batch (2,) + event (3,))"),
])  # fmt: skip
def test_a_value_of_the_wrong_shape_is_refused(distribution, given, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        drawn(distribution, obs=given)
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.condition(lambda: phx.sample("x", distribution), {"x": given})()


def test_a_variable_with_neither_value_nor_key_says_where_to_get_one():
    words = (
        "Variable 'x' has no value and no key to draw one with. Run the program under a seed, phx.seed(program, "
        "0)(...), "
        "or give the value with phx.condition or phx.substitute."
    )
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.sample("x", dist.Normal(0.0, 1.0))


def test_a_distribution_that_cannot_be_drawn_from_needs_a_value():
    words = "Variable 'x': Triangle cannot be drawn from. Give it a value with obs=, phx.condition or phx.substitute."
    with pytest.raises(ValueError, match=re.escape(words)):
        drawn(Triangle())
    assert drawn(Triangle(), obs=0.5).value == 0.5
    with pytest.raises(ValueError, match="Variable 'x': ImproperUniform cannot be drawn from."):
        drawn(dist.ImproperUniform(constraints.real, (), ()))


def test_any_distribution_counts_like_a_built_in():
    def program():
        x = phx.sample("x", Triangle())
        phx.sample("y", dist.Normal(x, 1.0), obs=0.25)

    expected = np.log(2 * 0.75) + dist.Normal(0.75, 1.0).log_prob(0.25)
    assert phx.log_joint(program)({"x": 0.75}) == pytest.approx(float(expected))
    # and as a target, through the bijection onto its support: log 2x + log x(1 - x)
    target = phx.Target(program)
    u = jnp.log(3.0)
    total = expected + np.log(0.75 * 0.25)
    assert target.log_density({"x": u}) == pytest.approx(float(total), rel=1e-5)


def test_variable_without_a_distribution_has_log_density_zero():
    with phx.tape() as variables:
        phx.deterministic("d", jnp.ones(3))
    assert variables["d"].log_prob() == 0
    assert variables["d"].shape == (3,)


# -- values, plates, masks and scales that do not fit each other -------------------------------------------------------

X, Y, B = np.linspace(-1, 1, 20)[:, None], np.linspace(-2, 2, 20), 0.5
NORMAL = dist.Normal


def repeated_by_plate():
    with numpyro.plate("n", 20):
        numpyro.sample("y", NORMAL(B * X, 1.0), obs=Y)


def repeated_column():
    with numpyro.plate("n", 20):
        phx.sample("y", NORMAL(B * X, 1.0), obs=Y[:, None])


def repeated_by_mask():
    with handlers.mask(mask=X > -2), numpyro.plate("n", 20):
        numpyro.sample("y", NORMAL(B * X[:, 0], 1.0), obs=Y)


def repeated_without_plate():
    numpyro.sample("y", NORMAL(B * X + 0 * Y, 1.0), obs=Y)


def repeated_vectors():
    with numpyro.plate("n", 20):
        numpyro.sample("y", NORMAL(B * X[..., None], jnp.ones(2)).to_event(1), obs=np.stack([Y, Y], -1))


def repeated_by_scale():
    phx.scale(lambda: phx.sample("y", NORMAL(B * X[:, 0], 1.0), obs=Y), np.ones((20, 1)))()


def repeated_event():
    phx.scale(lambda: phx.sample("y", NORMAL(B * X[:, 0], 1.0).to_event(1), obs=Y), np.ones(20))()


PLATE = "the plate 'n' of size 20 at dim -1"
REPEATED = {
    repeated_by_plate: f"the value has shape (20,), but its distribution Normal needs shape (20, 20) (batch (20, 20) + "
    f"event (); it has (20, 1) by itself, and is widened by {PLATE}), or",
    repeated_column: f"the value has shape (20, 1), but its distribution Normal needs shape (20, 20) (batch (20, 20) + "
    f"event (); it has (20, 1) by itself, and is widened by {PLATE}), or",
    repeated_by_mask: "the value has shape (20,), but its distribution Normal needs shape (20, 20) (batch (20, 20) + "
    f"event (); it has (20,) by itself, and is widened by a mask of shape (20, 20) and {PLATE}), or",
    repeated_without_plate: "the value has shape (20,), but its distribution Normal needs shape (20, 20) (batch",
    repeated_vectors: "the value has shape (20, 2), but its distribution Normal needs shape (20, 20, 2) (batch (20,",
    repeated_by_scale: "its log density, of shape (20,), is scaled by factors of shape (20, 1), which would repeat its "
    "terms. Give one number, or one for each term.",
    repeated_event: "its log density, of shape (), is scaled by factors of shape (20,), which would repeat its terms.",
}  # fmt: skip


@pytest.mark.parametrize("program", REPEATED)
def test_terms_are_not_repeated(program):
    with jax.numpy_rank_promotion("allow"), pytest.raises(ValueError) as caught:
        phx.log_joint(program)({})
    assert str(caught.value).startswith(f"Variable 'y': {REPEATED[program]}")


def groups():
    with numpyro.plate("g", 4, dim=-2):
        b = numpyro.sample("b", NORMAL(0.0, 5.0))
        with numpyro.plate("n", 20, dim=-1):
            numpyro.sample("y", NORMAL(b * X[:, 0], 1.0), obs=Y)


def number():
    with numpyro.plate("n", 20):
        numpyro.sample("y", NORMAL(B, 1.0), obs=0.0)


def columns():
    with numpyro.plate("r", 20, dim=-2):
        numpyro.sample("y", NORMAL(B * X, 1.0), obs=Y[:, None])
        with numpyro.plate("c", 3, dim=-1), handlers.scale(scale=np.ones((20, 1))):
            numpyro.sample("z", NORMAL(B * X, 1.0), obs=np.ones((20, 3)))


def more_rows():
    with numpyro.plate("n", 20):
        numpyro.sample("y", NORMAL(B * X[:, 0] + np.arange(5.0)[:, None], 1.0), obs=np.ones((5, 20)))


@pytest.mark.parametrize("program, terms", [(groups, 80), (number, 20), (columns, 80), (more_rows, 100)])
def test_plates_widen_what_has_no_size_of_its_own(program, terms):
    with jax.numpy_rank_promotion("allow"):
        variables = phx.trace(phx.seed(program, 0))()
    observed = [variable for variable in variables.values() if variable.observed]
    assert sum(variable.log_prob().size for variable in observed) == terms


def test_a_tracer_sees_the_shape_before_the_value():
    seen = {}

    def look(variable, forward):
        seen[variable.name] = variable.shape, variable.dtype
        return forward(variable)

    def program():
        with numpyro.plate("g", 8):
            numpyro.sample("z", NORMAL(0.0, 1.0))
        phx.sample("n", dist.Poisson(2.0).expand([3]))
        phx.sample("v", dist.Dirichlet(jnp.ones(4)))
        phx.sample("y", NORMAL(jnp.zeros(2), 1.0), obs=np.zeros(2))
        phx.param("p", lambda key: jax.random.normal(key, (5,)))

    with phx.tracing(look):
        phx.trace(phx.seed(program, 0))()
    real, whole = jnp.dtype(jnp.result_type(float)), jnp.dtype(jnp.result_type(int))
    assert seen["z"] == ((8,), real) and seen["v"] == ((4,), real) and seen["p"] == ((5,), real)
    assert seen["n"] == ((3,), whole) and seen["y"][0] == (2,)
