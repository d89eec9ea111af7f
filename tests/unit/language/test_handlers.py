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
    words = "Two variables are named 'x'. Inference distinguishes variables by their names: rename one of them."

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
    of_each = jax.vmap(lambda a: phx.log_joint(program)({"a": a, "b": jnp.zeros(3)}))
    values = jax.jit(of_each)(jnp.array([0.0, 1.0]))
    assert values[1] == pytest.approx(float(phx.log_joint(program)({"a": 1.0, "b": jnp.zeros(3)})))


def test_a_key_follows_from_the_name_alone():
    joint = phx.Joint(program)
    free, given = joint.sample(0), joint.sample(0, values={"a": 5.0})
    np.testing.assert_allclose(given["b"] - 5.0, free["b"] - free["a"], atol=1e-5)
    alone = phx.seed(lambda: phx.sample("b", dist.Normal(jnp.zeros(3), 1.0)), 0)()
    np.testing.assert_allclose(2 * alone, free["b"] - free["a"], atol=1e-5)
    twice = phx.seed(lambda: [phx.sample("x", dist.Normal(0.0, 1.0)) for _ in range(2)], 0)()
    assert twice[0] != twice[1]


@pytest.mark.parametrize("key", [np.int64(3), np.array(3), jnp.array(3), jax.random.key(3)])
def test_any_whole_number_is_a_seed(key):
    np.testing.assert_array_equal(phx.seed(program, key)(), phx.seed(program, 3)())


@pytest.mark.parametrize("key", [True, 1.5, "0", None, np.zeros(3)])
def test_wrong_seeds_are_refused(key):
    with pytest.raises(TypeError, match="phx.seed: key must be a whole number or a JAX key"):
        phx.seed(program, key)


def chained():
    a = phx.sample("a", dist.Normal(0.0, 1.0))
    b = phx.sample("b", dist.Normal(a, 2.0))
    phx.sample("c", dist.Normal(b, 1.0), obs=0.5)


@pytest.mark.parametrize("order", ["condition outside", "condition inside"])
def test_no_condition_undoes_an_intervention_but_its_evidence_counts(order):
    set_to, seen = {"b": jnp.array(3.0)}, {"b": jnp.array(-1.0)}
    both = {
        "condition outside": phx.condition(phx.do(chained, set_to), seen),
        "condition inside": phx.do(phx.condition(chained, seen), set_to),
    }[order]
    expected = normal(0.2, 0, 1) + normal(-1.0, 0.2, 2) + normal(0.5, 3.0, 1)
    assert phx.log_joint(both)({"a": 0.2}) == pytest.approx(expected, rel=1e-5)
    alone = phx.substitute(phx.do(chained, set_to), {"b": 9.0})
    assert phx.log_joint(alone)({"a": 0.2}) == pytest.approx(expected - normal(-1.0, 0.2, 2), rel=1e-5)


def test_a_deterministic_value_cannot_be_observed():
    with pytest.raises(ValueError, match="phx.condition: 'd' is a deterministic value, computed from others"):
        phx.condition(lambda: phx.deterministic("d", 1.0), {"d": 2.0})()


def test_a_density_within_a_program_is_no_part_of_it():
    def outer():
        x = phx.sample("x", dist.Normal(0.0, 1.0))
        phx.factor("f", phx.log_joint(lambda: phx.sample("inner", dist.Normal(0.0, 2.0)))({"inner": x}))

    assert list(phx.trace(phx.seed(outer, 0))()) == ["x", "f"]
    assert phx.log_joint(outer)({"x": 1.0}) == pytest.approx(normal(1.0, 0, 1) + normal(1.0, 0, 2), rel=1e-5)
