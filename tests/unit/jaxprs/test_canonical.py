"""Programs drawn at random: whatever is changed in one of them changes its form, and nothing else does."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import numpyro.distributions as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.jaxprs.canonical import form_of, is_of_a_library

BINARY = {"add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "max": jnp.maximum, "atan2": jnp.arctan2}
WRAPPED = {
    "plain": lambda f: f,
    "jit": jax.jit,
    "scan": lambda f: lambda a, b: jax.lax.scan(lambda c, _: (f(c, b), None), a, None, length=2)[0],
    "cond": lambda f: lambda a, b: jax.lax.cond(a.sum() > 0, f, lambda a, b: a, a, b),
}


@dataclass(frozen=True)
class Line:
    """`wrap(op(values[left], values[right] * literal + constant))`, whose value joins the others."""

    op: str
    left: int
    right: int
    literal: float
    constant: tuple[float, ...]
    wrap: str


numbers = st.sampled_from([0.0, -0.0, 1.0, 2.5, float("inf"), float("nan")])
lines = st.builds(
    Line, st.sampled_from(sorted(BINARY)), st.integers(0, 2), st.integers(0, 2), numbers,
    st.tuples(*[numbers] * 3), st.sampled_from(sorted(WRAPPED)),
)  # fmt: skip
programs = st.lists(lines, min_size=1, max_size=4)


def form(program):
    def f(x, y, z):
        values = [x, y, z]
        for line in program:
            constant = np.array(line.constant, np.float32)

            def operate(a, b, line=line, constant=constant):
                return BINARY[line.op](a, b * line.literal + constant)

            values.append(WRAPPED[line.wrap](operate)(values[-1 - line.left], values[-1 - line.right]))
        return values[-1]

    return form_of(jax.make_jaxpr(f)(*np.zeros((3, 3), np.float32)))


def same(a, b):
    """Whether two lines are alike, bit by bit."""
    bits = [np.array([line.literal, *line.constant]).tobytes() for line in (a, b)]
    return bits[0] == bits[1] and (a.op, a.left, a.right, a.wrap) == (b.op, b.left, b.right, b.wrap)


@given(programs, st.data())
@settings(max_examples=60, deadline=None)
def test_one_change_changes_the_form(program, data):
    where = data.draw(st.integers(0, len(program) - 1))
    field = data.draw(st.sampled_from(["op", "left", "right", "literal", "constant", "wrap"]))
    changed = replace(program[where], **{field: getattr(data.draw(lines), field)})
    other = [*program[:where], changed, *program[where + 1 :]]
    assert (form(program) == form(other)) == same(program[where], changed)
    assert form(program) == form(list(program)) is not None


@given(programs.filter(lambda program: len(program) > 1))
@settings(max_examples=20, deadline=None)
def test_another_order_is_another_form(program):
    other = program[::-1]
    assert (form(program) == form(other)) == all(map(same, program, other))


@given(st.lists(st.integers(0, 255), min_size=1, max_size=200), st.data())
@settings(max_examples=60, deadline=None)
def test_arrays_are_told_by_their_bits(values, data):
    a = np.array(values, np.uint8)
    b = a.copy()
    where = data.draw(st.integers(0, len(a) - 1))
    b[where] ^= 1
    assert form_of(a) == form_of(a.copy()) != form_of(b)
    assert form_of(a) != form_of(a.astype(np.int8)) and form_of(a) != form_of(a[None])
    assert form_of([a, 1]) != form_of([a, True]) and form_of([a, 1]) != form_of([a, 1.0])


def test_texts_do_not_run_into_each_other():
    assert len({form_of(*parts) for parts in [("a", "b"), ("ab",), ("a, b",), (("a", "b"),), (["a", "b"],)]}) == 5


def test_functions_of_users_have_no_form():
    assert form_of(lambda: 0) is None
    assert form_of(object()) is None
    assert form_of(np.array([object()])) is None


def test_a_function_is_of_the_module_it_was_written_in_whatever_it_is_called():
    assert is_of_a_library(jax.tree.map)
    assert not is_of_a_library(functools.wraps(jax.tree.map)(lambda x: x))

    class Mine(dist.Normal):
        pass

    of_theirs, of_mine = dist.Normal.infer_shapes, Mine.infer_shapes
    assert is_of_a_library(of_theirs) and not is_of_a_library(of_mine)


def test_two_functions_of_one_name_are_told_apart():
    namespace = {"__name__": "phalanx.somewhere"}
    exec("def made():\n    return (lambda x: x), (\n        lambda x: -x)", namespace)
    one, other = cast(Any, namespace["made"])()
    assert is_of_a_library(one) and is_of_a_library(other)
    assert form_of(one) == form_of(one) != form_of(other)


def test_a_function_of_ours_that_jaxtyping_wraps_is_told_by_its_name():
    namespace = {"__name__": "phalanx.somewhere"}
    exec("def plain(x):\n    return x\n\n\ndef made(y):\n    return lambda x: x + y", namespace)
    wrap = jaxtyping.jaxtyped(typechecker=None)
    plain, captures = cast(Any, namespace["plain"]), cast(Any, namespace["made"])(1.0)
    assert is_of_a_library(wrap(plain)) and form_of(wrap(plain)) is not None
    assert not is_of_a_library(captures) and not is_of_a_library(wrap(captures))
