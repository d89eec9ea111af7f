"""Random programs with nested control flow: each interpreter of jaxprs against plain evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax import lax

from phalanx.jaxprs.dependence import varying_axes
from phalanx.jaxprs.lanes_last import lanes_last
from phalanx.jaxprs.lookups import KnownValue, follow
from phalanx.placements import PlacedProgram

F = np.float32
ROWS, DEVICES, LANES = 3, 2, 4
EVEN, RAGGED = ROWS * DEVICES, ROWS * DEVICES - 1


def total(x: Any) -> Any:
    return jnp.sum(x) if x.ndim else x


def custom(body: Callable[..., Any], x: Any, y: Any) -> Any:
    """A function with derivatives of its own, and a choice."""

    def plain(x: Any, y: Any) -> Any:
        found = body(x, y)
        return jnp.where(x > 0, found, 0.5 * found)

    f = jax.custom_jvp(plain)
    f.defjvp(lambda primals, tangents: jax.jvp(plain, primals, tangents))
    return f(x, y)


def scan(body: Callable[..., Any], x: Any, y: Any) -> Any:
    last, before = lax.scan(lambda c, row: (body(c + row, y), body(c, y)), x, np.array([0.1, 0.2], F))
    return last + before[0]


def handed_on(body: Callable[..., Any], x: Any, y: Any) -> Any:
    """The first carry sees what the third is in the third turn."""
    return lax.scan(lambda c, _: ((c[1], c[2], body(c[2], y)), None), (0 * x, x, x), None, length=3)[0][0]


def loop(test: Callable[..., Any], turn: Callable[..., Any], x: Any) -> Any:
    return lax.while_loop(lambda c: (c[0] < 4) & test(c[1]), lambda c: (c[0] + 1, turn(c[1])), (0, x))[1]


Operation = Callable[[Callable[..., Any], Any, Any], Any]
PLAIN: list[Operation] = [
    lambda body, x, y: x * y + 0.5,
    lambda body, x, y: x - 0.3 * y,
    lambda body, x, y: 0.2 * total(x) + 0 * y,
    lambda body, x, y: 0.2 * total(x * y),
    lambda body, x, y: jnp.where(x > y, x, 0.5 * y),
    lambda body, x, y: jnp.maximum(x, y),
    lambda body, x, y: jnp.abs(x),
    lambda body, x, y: jnp.cumsum(x) + y if x.ndim else y,
    lambda body, x, y: x[::-1] if x.ndim else x,
    lambda body, x, y: x * x.shape[0] if x.ndim else x,
]
NESTED: list[Operation] = [
    lambda body, x, y: jax.jit(body)(x, y),
    lambda body, x, y: jax.checkpoint(body)(x, y),
    lambda body, x, y: custom(body, x, y),
    lambda body, x, y: scan(body, x, y),
    lambda body, x, y: handed_on(body, x, y),
    lambda body, x, y: lax.cond(total(y) > 0.1, body, lambda x, y: x * 0.5, x, y),
    lambda body, x, y: loop(lambda x: total(x) < 0.7, lambda x: body(x, y), x),
    lambda body, x, y: lax.fori_loop(0, 2, lambda i, x: body(x, y), x),
]

Steps = Sequence[tuple[int, int, int, Any]]
numbers = st.integers(0, 99)
plain = st.tuples(st.integers(0, len(PLAIN) - 1), numbers, numbers, st.none())
steps = st.recursive(
    st.lists(plain, min_size=1, max_size=3),
    lambda inner: st.lists(
        st.tuples(st.integers(len(PLAIN), len(PLAIN) + len(NESTED) - 1), numbers, numbers, inner) | plain,
        min_size=1, max_size=3,
    ),
    max_leaves=6,
)  # fmt: skip


def run(steps: Steps, pool: Sequence[Any]) -> list[Any]:
    """Each step makes a value of two that are there."""
    pool = list(pool)
    for operation, first, second, inner in steps:
        x, y = pool[first % len(pool)], pool[second % len(pool)]

        def body(x: Any, y: Any, inner: Steps = inner) -> Any:
            last = run(inner, [x, y])[-1]
            return last if last.ndim == x.ndim else total(last) + 0 * x

        pool.append(jnp.sin([*PLAIN, *NESTED][operation](body, x, y)))
    return pool


def rows_of(rows: int, number: int = 0) -> list[np.ndarray]:
    """Two arrays of rows and two numbers."""
    random = np.random.default_rng(number)
    return [random.uniform(-1, 1, shape).astype(F) for shape in ((rows,), (rows,), (), ())]


def check(steps: Steps) -> None:
    arrays = rows_of(ROWS)
    f = partial(run, steps)
    on_pool = lambda *pool: f(pool)  # noqa: E731
    program = jax.make_jaxpr(on_pool)(*arrays)
    wholes = [rows_of(rows, rows) for rows in (EVEN, RAGGED)]
    placed = [placed_program(on_pool, whole) for whole in wholes]

    def everything(arrays: list[Any], wholes: list[list[Any]]) -> Any:
        lanes = [jnp.stack([x + 0.1 * i for i in range(LANES)], -1) for x in arrays]
        shared = lambda x, w: on_pool(x, arrays[1], w, arrays[3])  # noqa: E731
        pairs = [
            (lanes_last(on_pool)(*lanes), jax.vmap(on_pool, -1, -1)(*lanes)),
            tuple(every(shared)(lanes[0], lanes[2]) for every in (lanes_last, lambda g: jax.vmap(g, -1, -1))),
            *(
                ([x[0] for x in jax.vmap(each, axis_name="data")(*on_devices(whole))], f(whole))
                for each, whole in zip(placed, wholes, strict=True)
            ),
        ]
        changed = [jnp.stack([x + 0.3 * (i == j) for i in (*range(4), None)]) for j, x in enumerate(arrays)]
        return pairs, jax.vmap(on_pool)(*changed)

    pairs, changed = jax.jit(everything)(arrays, wholes)
    for number, (found, expected) in enumerate(pairs):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=str(number))
    for i in range(4):
        marks = varying_axes(program, [frozenset({"here"} if i == j else ()) for j in range(4)])
        for mark, values in zip(marks, changed, strict=True):
            assert mark or np.allclose(values[i], values[-1], rtol=1e-6)
        known = [
            None if i == j else KnownValue(lambda x=x: jnp.asarray(x), frozenset([j])) for j, x in enumerate(arrays)
        ]
        for value, values in zip(follow(program, known)[1], changed, strict=True):
            if value is not None:  # of branches only the one that is taken counts, so it may have a mark
                for expected in (values[i], values[-1]):
                    np.testing.assert_allclose(value.get(), expected, rtol=1e-4, atol=1e-5)


def placed_program(f: Callable[..., Any], arrays: Sequence[Any]) -> PlacedProgram:
    """The program of whole rows on devices; all results are replicated."""
    program = jax.make_jaxpr(f)(*arrays)
    divided: Any = [{"data": 0} if x.ndim else {} for x in arrays]
    return PlacedProgram(program, divided, [{}] * len(program.jaxpr.outvars), {"data": DEVICES})


def on_devices(arrays: Sequence[Any]) -> list[Any]:
    padded = [jnp.concatenate([x, x[-1:]])[:EVEN] if x.ndim else x for x in arrays]
    return [x.reshape(DEVICES, ROWS) if x.ndim else jnp.stack([x] * DEVICES) for x in padded]


EACH = [(len(PLAIN) + k, k, k + 1, [(3 + k % 3, 0, 1, None)]) for k in range(len(NESTED))]


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@example(EACH)
@given(steps)
def test_interpreters_agree_with_plain_evaluation(steps):
    check(steps)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(steps)
def test_interpreters_agree_on_many_programs(steps):
    check(steps)
