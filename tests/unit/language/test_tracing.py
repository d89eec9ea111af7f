"""The stack of tracers: forwarding, one stack per thread, restored after exceptions."""

from __future__ import annotations

import re
import threading
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.language.tracing import _stack, tracing


def test_a_call_sees_the_top_tracer_which_forwards_to_the_one_below():
    seen = []

    def named(name, value=None):
        def tracer(variable, forward):
            seen.append((name, variable.value))
            after = forward(variable if value is None else replace(variable, value=value))
            seen.append((name, float(after.value)))
            return after

        return tracer

    with tracing(named("bottom")), tracing(named("top", value=3.0)):
        assert phx.sample("x", dist.Normal(0.0, 1.0)) == 3.0
    assert seen == [("top", None), ("bottom", 3.0), ("bottom", 3.0), ("top", 3.0)]


def test_a_tracer_that_samples_speaks_to_those_below_it():
    seen = []

    def splits(variable, forward):
        if variable.name == "x":
            return replace(variable, value=phx.sample("x_base", dist.Normal(0.0, 1.0)) * 10)
        return forward(variable)

    def bottom(variable, forward):
        seen.append(variable.name)
        return forward(replace(variable, value=2.0))

    with tracing(bottom), tracing(splits):
        assert phx.sample("x", dist.Normal(0.0, 10.0)) == 20.0
        phx.sample("y", dist.Normal(0.0, 1.0))
    assert seen == ["x_base", "y"]


def test_a_tracer_may_answer_without_forwarding():
    def below(variable, forward):
        raise AssertionError("not reached")

    with tracing(below), tracing(lambda variable, forward: replace(variable, value=jnp.ones(()))):
        assert phx.sample("x", dist.Normal(0.0, 1.0)) == 1.0


@pytest.mark.parametrize("where", ["program", "tracer"])
def test_the_stack_is_restored_after_an_exception(where):
    def failing(variable, forward):
        if where == "tracer":
            raise RuntimeError("from within")
        return forward(variable)

    def program():
        phx.sample("x", dist.Normal(0.0, 1.0))
        raise RuntimeError("from within")

    with phx.tape() as outer:
        below = _stack.tracers
        with pytest.raises(RuntimeError, match="from within"), tracing(failing):
            phx.trace(phx.seed(program, 0))()
        assert _stack.tracers == below
        phx.deterministic("after", 1.0)
    assert "after" in outer
    assert _stack.tracers == ()


def test_every_thread_has_a_stack_of_its_own():
    reached, found, errors = threading.Barrier(2, timeout=60), {}, []

    def work(name):
        try:
            with phx.tape() as variables:
                reached.wait()  # both tapes are open now
                phx.deterministic(name, 1.0)
                reached.wait()
            found[name] = list(variables)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not errors
    assert found == {"a": ["a"], "b": ["b"]}


def test_a_tape_records_in_order_what_forwarding_returned():
    def program():
        b = phx.sample("b", dist.Normal(0.0, 1.0))
        a = phx.sample("a", dist.Normal(b, 1.0))
        phx.deterministic("sum", a + b)
        phx.factor("penalty", -(a**2))
        phx.sample("y", dist.Normal(a, 1.0), obs=2.0)

    with phx.tape() as variables:
        phx.substitute(phx.condition(program, {"a": 5.0}), {"b": 3.0})()
    assert list(variables) == ["b", "a", "sum", "penalty", "y"]
    # the tape lies below the handlers, so it sees what they gave
    assert {name: float(variables[name].value) for name in ("b", "a", "sum", "y")} == {"b": 3, "a": 5, "sum": 8, "y": 2}
    assert [v.observed for v in variables.values()] == [False, True, True, True, True]
    assert variables["penalty"].log_prob() == -25


def test_values_drawn_below_are_recorded():
    def give(variable, forward):
        return forward(replace(variable, key=jax.random.key(1)))

    with tracing(give), phx.tape() as variables:
        x = phx.sample("x", dist.Normal(0.0, 1.0))
    assert variables["x"].value is x


def test_a_sample_is_a_plain_array():
    with tracing(lambda variable, forward: forward(replace(variable, value=np.float32(2.0)))):
        assert isinstance(phx.sample("x", dist.Normal(0.0, 1.0)), jax.Array)


@pytest.mark.parametrize("args, words", [
    ((1, dist.Normal(0.0, 1.0)), "phx.sample: the first argument is the variable's name, a string; got 1."),
    (("x", 3.0), "Variable 'x': expected a numpyro.distributions.Distribution, got float."),
    (("x", dist.Normal), "Variable 'x': expected a distribution, got the class Normal itself; give it "
                           "parameters, as in Normal(...)."),
])  # fmt: skip
def test_wrong_names_and_distributions_are_refused(args, words):
    with pytest.raises(TypeError, match=re.escape(words)):
        phx.sample(*args)
