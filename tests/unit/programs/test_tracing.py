"""Random variables and tracing."""

from __future__ import annotations

import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import phalanx as phx
from phalanx.programs import tracing

KEY = jax.random.key(0)


def pair():
    x = phx.sample("x", dist.Normal(0.0, 1.0))
    return phx.sample("y", dist.Normal(x, 2.0).expand([3]))


def test_a_random_variable_knows_its_shape_type_and_density():
    variable = phx.trace(phx.seed(pair, 0))()["y"]
    assert variable.shape == (3,) and variable.dtype == jnp.float32 and not variable.observed
    np.testing.assert_allclose(variable.log_prob(), variable.distribution.log_prob(variable.value))


def test_values_are_plain_arrays():
    assert isinstance(phx.seed(pair, 0)(), jax.Array)


def test_shape_is_sample_plus_batch_plus_event():
    def model(value):
        phx.sample("x", dist.MultivariateNormal(jnp.zeros((4, 2)), jnp.eye(2)), obs=value)

    for shape in ((4, 2), (5, 4, 2)):
        variable = phx.trace(model)(jnp.zeros(shape))["x"]
        assert variable.shape == shape and variable.log_prob().shape == shape[:-1]
    for shape in ((2,), (3, 2), (4, 3), ()):
        words = f"Variable 'x': the value has shape {shape}, but its distribution MultivariateNormal needs shape (4, 2)"
        with pytest.raises(ValueError, match=re.escape(words)):
            phx.trace(model)(jnp.zeros(shape))


def test_what_cannot_be_drawn_needs_a_value():
    def flat():
        phx.sample("x", dist.ImproperUniform(constraints.real, (), ()))

    with pytest.raises(ValueError, match="Variable 'x': ImproperUniform cannot be drawn from. Give it a value"):
        phx.seed(flat, 0)()
    assert phx.log_joint(flat)({"x": 3.0}) == 0


def test_without_a_key_a_draw_says_what_to_do():
    with pytest.raises(ValueError, match=re.escape("Variable 'x' has no value and no key to draw one with.")):
        pair()


def test_wrong_arguments_of_sample():
    with pytest.raises(TypeError, match="the first argument is the variable's name, a string; got 3"):
        phx.sample(3, dist.Normal(0.0, 1.0))  # pyright: ignore
    with pytest.raises(TypeError, match="Variable 'x': expected a numpyro.distributions.Distribution, got float."):
        phx.sample("x", 1.0)


def test_a_call_sees_the_top_tracer_which_may_forward_to_the_one_below():
    seen = []

    def tracer(label, forwards=True):
        def trace(variable, forward):
            seen.append(label)
            return forward(variable) if forwards else variable.__class__(variable.name, None, jnp.asarray(7.0))

        return trace

    def program():
        return phx.sample("x", dist.Normal(0.0, 1.0), obs=1.0)

    with tracing.tracing(tracer("below")), tracing.tracing(tracer("top")):
        assert program() == 1.0
    assert seen == ["top", "below"]
    seen.clear()
    with tracing.tracing(tracer("below")), tracing.tracing(tracer("top", forwards=False)):
        assert program() == 7.0
    assert seen == ["top"]


def test_a_tracer_that_samples_speaks_to_those_below_it():
    def noisy(variable, forward):
        phx.sample("noise of " + variable.name, dist.Normal(0.0, 1.0))
        return forward(variable)

    program = phx.seed(lambda: phx.sample("x", dist.Normal(0.0, 1.0)), 0)

    def noisy_program():
        with tracing.tracing(noisy):
            return phx.sample("x", dist.Normal(0.0, 1.0))

    assert list(phx.trace(phx.seed(noisy_program, 0))()) == ["noise of x", "x"]
    assert list(phx.trace(program)()) == ["x"]


def test_the_stack_is_restored_after_an_exception():
    def broken():
        phx.sample("x", dist.Normal(0.0, 1.0))
        raise KeyError("mine")

    with pytest.raises(KeyError):
        phx.trace(phx.seed(phx.condition(broken, {"x": 1.0}), 0))()
    assert tracing._stack.tracers == ()


def test_every_thread_has_a_stack_of_its_own():
    outcome = {}

    def other():
        try:
            pair()
        except ValueError as error:
            outcome["error"] = str(error)

    with phx.tape() as variables:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        phx.seed(pair, 0)()
    assert "no key to draw" in outcome["error"] and list(variables) == ["x", "y"]


def test_a_tape_records_in_order_what_forwarding_returned():
    program = phx.condition(phx.seed(pair, 0), {"x": 4.0})
    with phx.tape() as variables:
        program()
    assert list(variables) == ["x", "y"]
    assert variables["x"].value == 4.0 and variables["x"].observed
    assert abs(float(variables["y"].value.mean()) - 4.0) < 6


def test_two_variables_of_one_name():
    def twice():
        phx.sample("x", dist.Normal(0.0, 1.0))
        phx.deterministic("x", 1.0)

    with pytest.raises(ValueError, match="Two variables are named 'x'."):
        phx.trace(phx.seed(twice, 0))()


def test_condition_observes_by_name_and_refuses_unknown_names():
    conditioned = phx.trace(phx.seed(phx.condition(pair, {"y": np.ones(3)}), 0))()
    assert conditioned["y"].observed and not conditioned["x"].observed
    with pytest.raises(
        ValueError, match=re.escape("phx.condition: the program has no variable 'z'; its variables are 'x', 'y'.")
    ):
        phx.seed(phx.condition(pair, {"z": 1.0}), 0)()
    with pytest.raises(ValueError, match=re.escape("Variable 'y': the value has shape (2,)")):
        phx.seed(phx.condition(pair, {"y": np.ones(2)}), 0)()


def test_do_replaces_a_variable_and_cuts_it_from_the_density():
    values = {"y": jnp.array([1.0, 2.0, 3.0])}
    cut = phx.log_joint(phx.do(pair, {"x": 0.5}))(values)
    np.testing.assert_allclose(cut, dist.Normal(0.5, 2.0).log_prob(values["y"]).sum(), rtol=1e-6)
    observed = phx.log_joint(phx.condition(pair, {"x": 0.5}))(values)
    np.testing.assert_allclose(observed - cut, dist.Normal(0.0, 1.0).log_prob(0.5), rtol=1e-5)


def test_substitute_leaves_a_variable_latent():
    variables = phx.trace(phx.seed(phx.substitute(pair, {"x": 0.5}), 0))()
    assert variables["x"].value == 0.5 and not variables["x"].observed


def test_block_hides_variables_from_outside():
    assert list(phx.trace(phx.block(phx.seed(pair, 0), ["x"]))()) == ["y"]


def test_scale_multiplies_every_term():
    values = {"x": 0.3, "y": jnp.ones(3)}
    plain, scaled = phx.log_joint(pair)(values), phx.log_joint(phx.scale(phx.scale(pair, 2.0), 5.0))(values)
    np.testing.assert_allclose(scaled, 10 * plain, rtol=1e-6)


def test_seed_gives_every_variable_a_key_of_its_own():
    def many():
        for i in range(20):
            phx.sample(f"x{i}", dist.Normal(0.0, 1.0))

    values = [float(v.value) for v in phx.trace(phx.seed(many, KEY))().values()]
    assert len(set(values)) == 20
    assert values == [float(v.value) for v in phx.trace(phx.seed(many, 0))().values()]


def test_log_joint_runs_the_program_and_its_control_flow():
    def branching():
        x = phx.sample("x", dist.Normal(0.0, 1.0))
        if x > 0:
            phx.sample("up", dist.Normal(x, 1.0))
        else:
            phx.sample("down", dist.Normal(x, 2.0))

    f = phx.log_joint(branching)
    up = f({"x": jnp.asarray(1.0), "up": 0.5})
    np.testing.assert_allclose(up, dist.Normal(0.0, 1.0).log_prob(1.0) + dist.Normal(1.0, 1.0).log_prob(0.5), rtol=1e-6)
    assert up.shape == ()
    with pytest.raises(
        ValueError, match="log_joint: no value was given for variable 'down'; values were given for 'x', 'up'."
    ):
        f({"x": jnp.asarray(-1.0), "up": 0.5})


def test_a_guide_and_a_model_are_aligned_by_name():
    def guide():
        phx.sample("x", dist.Normal(0.4, 0.7))
        phx.sample("y", dist.Normal(1.0, 0.5).expand([3]))

    draws = {name: v.value for name, v in phx.trace(phx.seed(guide, 0))().items()}
    elbo = phx.log_joint(phx.substitute(pair, draws))({}) - phx.log_joint(guide)(draws)
    exact = sum(
        float(jnp.sum(p.log_prob(draws[name]) - q.log_prob(draws[name])))
        for name, p, q in (
            ("x", dist.Normal(0.0, 1.0), dist.Normal(0.4, 0.7)),
            ("y", dist.Normal(draws["x"], 2.0), dist.Normal(1.0, 0.5)),
        )
    )
    np.testing.assert_allclose(elbo, exact, rtol=1e-5)


def test_any_distribution_counts_like_a_built_in():
    class Triangle(dist.Distribution):
        support = constraints.unit_interval

        def __init__(self):
            super().__init__((), ())

        def log_prob(self, value):
            return jnp.log(2 * value)

    f = phx.log_joint(lambda: phx.sample("x", Triangle()))
    np.testing.assert_allclose(f({"x": 0.25}), np.log(0.5), rtol=1e-6)
    target = phx.Target(lambda: phx.sample("x", Triangle()))
    np.testing.assert_allclose(target.constrain({"x": jnp.zeros(())})["x"], 0.5)


def test_factor_and_deterministic():
    def model():
        x = phx.sample("x", dist.Normal(0.0, 1.0))
        phx.deterministic("twice", 2 * x)
        phx.factor("penalty", -(x**2))

    np.testing.assert_allclose(phx.log_joint(model)({"x": 2.0}), dist.Normal(0.0, 1.0).log_prob(2.0) - 4.0, rtol=1e-6)
    assert phx.trace(phx.substitute(model, {"x": 2.0}))()["twice"].value == 4.0


def _most_recent_first(location, scale):
    return dist.Normal(location, scale)


def test_joints_from_dicts_and_lists():
    named = phx.Joint({"scale": dist.HalfNormal(1.0), "x": lambda scale: dist.Normal(0.0, scale)})
    values = named.sample(KEY)
    np.testing.assert_allclose(
        named.log_prob(values),
        dist.HalfNormal(1.0).log_prob(values["scale"]) + dist.Normal(0.0, values["scale"]).log_prob(values["x"]),
        rtol=1e-6,
    )
    assert named.sample(KEY, values={"scale": 0.5})["scale"] == 0.5

    listed = phx.Joint([dist.HalfNormal(1.0), dist.Normal(3.0, 1.0), _most_recent_first])
    drawn = listed.sample(KEY)
    assert isinstance(drawn, list) and len(drawn) == 3
    exact = dist.HalfNormal(1.0).log_prob(drawn[0]) + dist.Normal(3.0, 1.0).log_prob(drawn[1])
    np.testing.assert_allclose(
        listed.log_prob(drawn), exact + dist.Normal(drawn[1], drawn[0]).log_prob(drawn[2]), rtol=1e-6
    )
    with pytest.raises(
        ValueError, match="Joint: 'x' depends on 'scale', which must come before it; before it come none."
    ):
        phx.Joint({"x": lambda scale: dist.Normal(0.0, scale)}).sample(KEY)
    with pytest.raises(
        TypeError, match="Joint: entry 'x' must be a distribution or a function that returns one; got float."
    ):
        phx.Joint({"x": 1.0})  # pyright: ignore
