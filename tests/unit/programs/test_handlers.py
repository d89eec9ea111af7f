"""Handlers: seed, condition, substitute, do, block, scale."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx


def program(shift=0.0):
    """A docstring that handlers keep."""
    a = phx.sample("a", dist.Normal(shift, 1.0))
    b = phx.sample("b", dist.Normal(a, 2.0).expand([3]))
    return phx.sample("y", dist.Normal(b, 0.5), obs=jnp.ones(3))


def normal(x, loc, scale):
    return float(np.sum(-0.5 * ((np.asarray(x) - loc) / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)))


def test_a_seed_gives_every_variable_a_key_of_its_own():
    def alike():
        return [phx.sample(f"x{i}", dist.Normal(0.0, 1.0)) for i in range(20)]

    draws = phx.seed(alike, 0)()
    assert len({float(x) for x in draws}) == 20
    assert draws == phx.seed(alike, jax.random.key(0))()
    assert draws != phx.seed(alike, 1)()


def test_the_innermost_seed_counts():
    inner = phx.seed(lambda: phx.sample("x", dist.Normal(0.0, 1.0)), 3)
    assert phx.seed(inner, 4)() == inner()


def test_a_given_value_takes_no_key():
    def two(first):
        phx.sample("a", dist.Normal(0.0, 1.0), obs=first)
        return phx.sample("b", dist.Normal(0.0, 1.0))

    alone = phx.seed(lambda: phx.sample("b", dist.Normal(0.0, 1.0)), 0)()
    assert phx.seed(two, 0)(1.0) == alone


def test_condition_observes_by_name():
    variables = phx.trace(phx.condition(program, {"a": 0.5, "b": jnp.zeros(3)}))()
    assert variables["a"].value == 0.5 and variables["a"].observed and variables["b"].observed
    expected = normal(0.5, 0, 1) + normal(np.zeros(3), 0.5, 2) + normal(np.ones(3), 0, 0.5)
    assert phx.log_joint(phx.condition(program, {"a": 0.5}))({"b": jnp.zeros(3)}) == pytest.approx(expected, rel=1e-5)


def test_condition_replaces_observed_data():
    assert (phx.condition(program, {"y": jnp.full(3, 7.0), "a": 0.0, "b": jnp.zeros(3)})() == 7.0).all()


def test_substitute_keeps_a_variable_latent_and_data_as_they_are():
    variables = phx.trace(phx.substitute(program, {"a": 0.5, "b": jnp.zeros(3), "y": jnp.zeros(3)}))()
    assert variables["a"].value == 0.5 and variables["a"].is_latent
    assert (variables["y"].value == 1).all()


def test_do_replaces_and_cuts_from_the_density():
    done = phx.do(program, {"b": jnp.zeros(3)})
    variables = phx.trace(phx.seed(done, 0))()
    assert (variables["b"].value == 0).all() and variables["b"].distribution is None
    expected = normal(0.3, 0, 1) + normal(np.ones(3), 0, 0.5)
    assert phx.log_joint(done)({"a": 0.3}) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("handler", ["condition", "substitute", "do"])
def test_an_unknown_name_is_refused(handler):
    words = f"phx.{handler}: the program has no variable 'c', 'd'; its variables are 'a', 'b', 'y'."
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.seed(getattr(phx, handler)(program, {"a": 0.0, "c": 1.0, "d": 1.0}), 0)()
    empty = f"phx.{handler}: the program has no variable 'x'; its variables are none at all."
    with pytest.raises(ValueError, match=re.escape(empty)):
        getattr(phx, handler)(lambda: None, {"x": 0.0})()


def test_block_hides_by_name():
    hidden = phx.block(phx.seed(program, 0), ["b"])
    with pytest.raises(ValueError, match="Variable 'b' has no value and no key to draw one with"):
        phx.seed(phx.block(program, ["b"]), 0)()
    assert list(phx.trace(phx.seed(hidden, 1))()) == ["a", "y"]
    assert list(phx.trace(phx.block(phx.condition(phx.seed(program, 0), {"b": jnp.zeros(3)}), ["b"]))()) == ["a", "y"]


def test_scale_multiplies_every_term_and_nests():
    values = {"a": 0.3, "b": jnp.zeros(3)}
    whole = phx.log_joint(program)(values)
    assert phx.log_joint(phx.scale(program, 2.5))(values) == pytest.approx(2.5 * float(whole), rel=1e-5)
    assert phx.log_joint(phx.scale(phx.scale(program, 2.0), 3.0))(values) == pytest.approx(6 * float(whole), rel=1e-5)

    def partly():
        a = phx.sample("a", dist.Normal(0.0, 1.0))
        phx.scale(lambda: phx.factor("f", -a), 10.0)()

    assert phx.log_joint(partly)({"a": 2.0}) == pytest.approx(normal(2.0, 0, 1) - 20, rel=1e-5)


def test_handlers_keep_name_documentation_and_arguments():
    wrapped = phx.scale(phx.condition(phx.seed(program, 0), {"a": 0.0}), 2.0)
    assert wrapped.__name__ == "program" and wrapped.__doc__ == program.__doc__
    traced = phx.trace(phx.seed(program, 0))(shift=1e6)
    assert traced["a"].value > 1e5


def test_two_variables_of_one_name_are_refused():
    words = "Two variables are named 'x'. Names are how inference tells variables apart: rename one of them."

    def twice():
        phx.sample("x", dist.Normal(0.0, 1.0))
        phx.deterministic("x", 0.0)

    with pytest.raises(ValueError, match=re.escape(words)):
        phx.trace(phx.seed(twice, 0))()
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.log_joint(twice)({"x": 0.0})


def test_programs_run_inside_compiled_and_batched_code():
    draws = jax.jit(jax.vmap(lambda key: phx.seed(program, key)()))(jax.random.split(jax.random.key(0), 4))
    assert draws.shape == (4, 3)
    values = jax.vmap(lambda a: phx.log_joint(program)({"a": a, "b": jnp.zeros(3)}))(jnp.array([0.0, 1.0]))
    assert values[1] == pytest.approx(float(phx.log_joint(program)({"a": 1.0, "b": jnp.zeros(3)})))
