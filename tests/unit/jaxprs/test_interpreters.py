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

from phalanx.exactness.proof.proof import read_kinds
from phalanx.jaxprs.branches import MOST_SITES, TRIPS, Branches
from phalanx.jaxprs.dependence import varying_axes
from phalanx.jaxprs.lanes_last import lanes_last
from phalanx.jaxprs.lookups import KnownValue, follow
from phalanx.jaxprs.row_masks import MaskPlan, Masks
from phalanx.jaxprs.sharding_state import Groups, Kind, Partial, Replicated, ShardedRows
from phalanx.jaxprs.walking import all_equations
from phalanx.mesh.space import GLOBAL, RowSharding

F = np.float32
ROWS, DEVICES, LANES = 3, 2, 4
EVEN, PADDED = (RowSharding(("data",), rows, ROWS) for rows in (ROWS * DEVICES, ROWS * DEVICES - 1))


class Way:
    """How a program adds up rows and makes its choices: as it says."""

    def total(self, x: Any) -> Any:
        return jnp.sum(x) if x.ndim else x

    def where(self, test: Any, x: Any, y: Any) -> Any:
        return jnp.where(test, x, y)

    def maximum(self, x: Any, y: Any) -> Any:
        return jnp.maximum(x, y)

    def absolute(self, x: Any) -> Any:
        return jnp.abs(x)

    def cond(self, test: Any, f: Callable[..., Any], g: Callable[..., Any], *args: Any) -> Any:
        return lax.cond(test, f, g, *args)

    def loop(self, test: Callable[..., Any], turn: Callable[..., Any], x: Any) -> Any:
        return lax.while_loop(lambda c: (c[0] < 4) & test(c[1]), lambda c: (c[0] + 1, turn(c[1])), (0, x))[1]


class Forced(Way):
    """All choices are made by number."""

    def __init__(self, code: int):
        self.code = code

    def where(self, test: Any, x: Any, y: Any) -> Any:
        return x + 0 * y if self.code else y + 0 * x

    def maximum(self, x: Any, y: Any) -> Any:
        return self.where(None, y, x)

    def absolute(self, x: Any) -> Any:
        return -x if self.code else x

    def cond(self, test: Any, f: Callable[..., Any], g: Callable[..., Any], *args: Any) -> Any:
        return (f if self.code else g)(*args)

    def loop(self, test: Callable[..., Any], turn: Callable[..., Any], x: Any) -> Any:
        for _ in range(TRIPS[self.code]):
            x = turn(x)
        return x


class Masked(Way):
    """Some rows are left out of sums."""

    def __init__(self, real: Any):
        self.real = real

    def total(self, x: Any) -> Any:
        return jnp.sum(jnp.where(self.real, x, 0)) if x.ndim else x


def custom(way: Way, body: Callable[..., Any], x: Any, y: Any) -> Any:
    """A function with derivatives of its own; with a choice, without which an `abs` in it is left as it is."""

    def plain(x: Any, y: Any) -> Any:
        found = body(x, y)
        return way.where(x > 0, found, 0.5 * found)

    f = jax.custom_jvp(plain)
    f.defjvp(lambda primals, tangents: jax.jvp(plain, primals, tangents))
    return f(x, y)


def scan(body: Callable[..., Any], x: Any, y: Any) -> Any:
    last, before = lax.scan(lambda c, row: (body(c + row, y), body(c, y)), x, np.array([0.1, 0.2], F))
    return last + before[0]


def handed_on(body: Callable[..., Any], x: Any, y: Any) -> Any:
    """The first carry sees what the third is in the third turn."""
    return lax.scan(lambda c, _: ((c[1], c[2], body(c[2], y)), None), (0 * x, x, x), None, length=3)[0][0]


Operation = Callable[[Way, Callable[..., Any], Any, Any], Any]
PLAIN: list[Operation] = [
    lambda way, body, x, y: x * y + 0.5,
    lambda way, body, x, y: x - 0.3 * y,
    lambda way, body, x, y: 0.2 * way.total(x) + 0 * y,
    lambda way, body, x, y: 0.2 * way.total(x * y),
    lambda way, body, x, y: way.where(x > y, x, 0.5 * y),
    lambda way, body, x, y: way.maximum(x, y),
    lambda way, body, x, y: way.absolute(x),
    lambda way, body, x, y: jnp.cumsum(x) + y if x.ndim else y,
    lambda way, body, x, y: x[::-1] if x.ndim else x,
    lambda way, body, x, y: x * x.shape[0] if x.ndim else x,
]
NESTED: list[Operation] = [
    lambda way, body, x, y: jax.jit(body)(x, y),
    lambda way, body, x, y: jax.checkpoint(body)(x, y),
    lambda way, body, x, y: custom(way, body, x, y),
    lambda way, body, x, y: scan(body, x, y),
    lambda way, body, x, y: handed_on(body, x, y),
    lambda way, body, x, y: way.cond(way.total(y) > 0.1, body, lambda x, y: x * 0.5, x, y),
    lambda way, body, x, y: way.loop(lambda x: way.total(x) < 0.7, lambda x: body(x, y), x),
    lambda way, body, x, y: lax.fori_loop(0, 2, lambda i, x: body(x, y), x),
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


def run(way: Way, steps: Steps, pool: Sequence[Any]) -> list[Any]:
    """Each step makes a value of two that are there."""
    pool = list(pool)
    for operation, first, second, inner in steps:
        x, y = pool[first % len(pool)], pool[second % len(pool)]

        def body(x: Any, y: Any, inner: Steps = inner) -> Any:
            last = run(way, inner, [x, y])[-1]
            return last if last.ndim == x.ndim else way.total(last) + 0 * x

        pool.append(jnp.sin([*PLAIN, *NESTED][operation](way, body, x, y)))
    return pool


def rows_of(rows: int, number: int = 0) -> list[np.ndarray]:
    """Two arrays of rows and two numbers."""
    random = np.random.default_rng(number)
    return [random.uniform(-1, 1, shape).astype(F) for shape in ((rows,), (rows,), (), ())]


def check(steps: Steps) -> None:
    arrays, whole_arrays = rows_of(ROWS), rows_of(ROWS * DEVICES, 1)
    f = lambda *pool: run(Way(), steps, pool)  # noqa: E731
    program, whole = jax.make_jaxpr(f)(*arrays), jax.make_jaxpr(f)(*whole_arrays)
    outputs = range(len(program.jaxpr.outvars))
    branches = Branches(program, [True] * 4, outputs)
    group = Groups([PADDED], {"data": DEVICES}).of(PADDED)
    plan = MaskPlan()
    sums = [e for e in all_equations(program) if e.primitive.name == "reduce_sum"]
    plan.changes.update({id(e): (ShardedRows(group, 0),) for e in sums})
    masks = Masks(program, plan, {(str(i), ""): i for i in outputs}, shardings={group: PADDED})
    in_loops = [e for loop in all_equations(program) if loop.primitive.name == "while" for e in loops_sums(loop)]
    assert masks.is_supported == (not in_loops)

    def everything(arrays: list[Any], whole_arrays: list[Any]) -> Any:
        lanes = [jnp.stack([x + 0.1 * i for i in range(LANES)], -1) for x in arrays]
        shared = lambda x, w: f(x, arrays[1], w, arrays[3])  # noqa: E731
        here = [x.reshape(DEVICES, ROWS) if x.ndim else jnp.stack([x, x]) for x in whole_arrays]

        def masked(*mine: Any) -> Any:
            by_hand = run(Masked(PADDED.real_rows()), steps, mine)
            return list(masks.terms(mine, []).values()) if masks.is_supported else by_hand, by_hand

        pairs = [
            (lanes_last(f)(*lanes), jax.vmap(f, -1, -1)(*lanes)),
            tuple(every(shared)(lanes[0], lanes[2]) for every in (lanes_last, lambda g: jax.vmap(g, -1, -1))),
            jax.vmap(masked, axis_name="data")(*here),
            *((branches(arrays, jnp.full(MOST_SITES, c)), run(Forced(c), steps, arrays)) for c in (0, 1)),
        ]
        changed = [jnp.stack([x + 0.3 * (i == j) for i in (*range(4), None)]) for j, x in enumerate(arrays)]
        return pairs, jax.vmap(f)(*changed), f(*whole_arrays), jax.vmap(f)(*here)

    pairs, changed, in_whole, on_devices = jax.jit(everything)(arrays, whole_arrays)
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
    kinds = read_kinds(whole, program, [EVEN, EVEN, GLOBAL, GLOBAL], Groups([EVEN], {"data": DEVICES}))
    for kind, a, each in zip(kinds, in_whole, on_devices, strict=True):
        np.testing.assert_allclose(a if kind is None else joined(kind, each), a, rtol=1e-4, atol=1e-5)


def loops_sums(loop: Any) -> list[Any]:
    bodies = (loop.params["body_jaxpr"], loop.params["cond_jaxpr"])
    return [e for body in bodies for e in all_equations(body) if e.primitive.name == "reduce_sum"]


def joined(kind: Kind, each: np.ndarray) -> Any:
    """What a kind says that the whole has, of what the devices have."""
    assert isinstance(kind, Replicated | ShardedRows | Partial)
    if isinstance(kind, Replicated):
        np.testing.assert_allclose(each[0], each[1], rtol=1e-5)
        return float(kind.factor) * each[0]
    if isinstance(kind, ShardedRows):
        return float(kind.factor) * np.concatenate(each)
    return float(kind.factor) * {"sum": np.sum, "max": np.max, "min": np.min}[kind.over](each, axis=0)


EACH = [(len(PLAIN) + k, k, k + 1, [(3 + k % 3, 0, 1, None)]) for k in range(len(NESTED))]


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


def test_what_is_proved_of_sums_of_rows_within_calls():
    """The property above holds of an empty proof, too; of this program all is known."""
    total, product = (2, 0, 0, None), (0, 0, 2, None)
    for nested in (0, 1, 2, 4, 5, 7):
        steps = [product, (len(PLAIN) + nested, 2, 3, [(1, 0, 1, None)]), total]
        whole, local = (jax.make_jaxpr(partial(run, Way(), steps))(rows_of(n)) for n in (ROWS * DEVICES, ROWS))
        kinds = read_kinds(whole, local, [EVEN, EVEN, GLOBAL, GLOBAL], Groups([EVEN], {"data": DEVICES}))
        assert all(kinds[:-1])
