"""Every rule of placement against one device: value and gradient, any placement of operands, any number of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax import lax
from tests.unit.placements.comparison import compare

from phalanx.placements.rules import RULES

N = -1
"""The number of rows, in shapes."""


class Case(NamedTuple):
    """A function, the shapes of its operands, and the number of codes of those that are integers."""

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    codes: tuple[int, ...] = ()


def rows(function, *shapes, codes=()):
    return Case(function, shapes or ((N, 3),), codes)


def positive_definite(x):
    return jnp.eye(x.shape[-1])[None] + x[..., :, None] * x[..., None, :]


def of_bools(function):
    return lambda x: function(x > 0).astype(x.dtype)


TRIANGLE = 2 * np.eye(3) + np.tri(3)
CUMULATIVE = (lax.cumsum, lax.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp)

CASES: dict[str, Case] = {
    # elementwise
    "two tables": rows(lambda x, y: jnp.sin(x) * y + x / (2 + y**2), (N, 3), (N, 3)),
    "a table and columns": rows(lambda x, w: x * w + w, (N, 3), (1, 3)),
    "a table and one row": rows(lambda x, y: x - y, (N, 3), (N, 1)),
    "select": rows(lambda x, y: jnp.where(x > 0, x, y), (N,), (N,)),
    "clamp": rows(lambda x: lax.clamp(-0.5, x, 0.5)),
    "sums of partial sums": rows(lambda x, y: (x.sum(0) - 2 * y.sum(0)) / 3 + x.sum(0) * y.sum(0), (N, 3), (N, 3)),
    "partial sums chosen": rows(lambda x, y: lax.select(x[0, 0] > 0, x.sum(0), y.sum(0)), (N, 3), (N, 3)),
    "keys": rows(
        lambda c: jax.vmap(lambda k: jax.random.uniform(jax.random.fold_in(jax.random.key(1), k)))(c), (N,), codes=(9,)
    ),
    # shapes
    "broadcast": rows(lambda x: jnp.broadcast_to(x[:, None], (x.shape[0], 4, 3))),
    "broadcast of partial sums": rows(lambda x: x.sum(0)[None] * jnp.ones((4, 1)) + x[:1]),
    "reshape": rows(lambda x: x.reshape(x.shape[0], 1, 3)),
    "reshape to numbers": rows(lambda x: x.reshape(-1)),
    "reshape from numbers": rows(lambda x: x.reshape(-1, 2), (N * 4,)),
    "transpose": rows(lambda x: x.T),
    "squeeze": rows(lambda x: x[:, 0], (N, 1, 3)),
    "reverse columns": rows(lambda x: x[:, ::-1]),
    "reverse rows": rows(lambda x: x[::-1]),
    "concatenate columns": rows(lambda x, y: jnp.concatenate([x, y], 1), (N, 3), (N, 2)),
    "concatenate rows": rows(lambda x, y: jnp.concatenate([x, y]), (N, 3), (N, 3)),
    "stack and unstack": rows(
        lambda x, y: jnp.stack(jnp.unstack(jnp.stack([x, y], 1), axis=2)[::-1], 1), (N, 3), (N, 3)
    ),
    "tile": rows(lambda x: jnp.tile(x, (1, 2)) + jnp.tile(x, (2, 2))[: x.shape[0]]),
    "split": rows(lambda x: jnp.split(x, 3, 1)[1]),
    "slice of columns": rows(lambda x: x[:, 1:]),
    "without the first row": rows(lambda x: x[1:]),
    "without the last rows": rows(lambda x: x[: max(x.shape[0] - 2, 1)]),
    "inner rows": rows(lambda x: x[1:-1] if x.shape[0] > 2 else x, (N,)),
    "few rows": rows(lambda x: x[: x.shape[0] // 3]),
    "every other row": rows(lambda x: x[::2]),
    "a row": rows(lambda x: x[x.shape[0] // 2]),
    "pad columns": rows(lambda x: jnp.pad(x, ((0, 0), (1, 2)), constant_values=3)),
    "pad rows": rows(lambda x: jnp.pad(x, ((1, 0), (0, 0)), constant_values=3)),
    "pad at the end": rows(lambda x: jnp.pad(x, ((0, 2), (0, 0)))),
    "pad much": rows(lambda x: jnp.pad(x, ((40, 3), (0, 0)))),
    "dynamic slice of columns": rows(
        lambda x, c: lax.dynamic_slice(x, (jnp.zeros_like(c[0]), c[0]), (x.shape[0], 2)), (N, 3), (1,), codes=(2,)
    ),
    "dynamic slice of rows": rows(
        lambda x, c: lax.dynamic_slice(x, (c[0], jnp.zeros_like(c[0])), (1, 2)), (N, 3), (1,), codes=(30,)
    ),
    "dynamic update": rows(
        lambda x, y, c: lax.dynamic_update_slice(x, y, (c[0], c[0])), (N, 3), (1, 2), (1,), codes=(30,)
    ),
    "dynamic update of columns": rows(
        lambda x, y, c: lax.dynamic_update_slice(x, y, (c[0], jnp.ones_like(c[0]))), (N, 3), (N, 1), (1,), codes=(3,)
    ),
    # reductions
    "sum": rows(lambda x: x.sum(0)),
    "sum of columns": rows(lambda x: x.sum(1)),
    "sum of all": rows(lambda x: x.sum()),
    "maximum": rows(lambda x: x.max(0)),
    "minimum of all": rows(lambda x: x.min()),
    "maximum with ties": rows(lambda x: jnp.round(x).max(0)),
    "product": rows(lambda x: jnp.prod(1 + 0.1 * x, 0)),
    "all": rows(of_bools(lambda x: x.all(0))),
    "any": rows(of_bools(lambda x: x.any())),
    "argmax": rows(lambda x: jnp.argmax(x, 0)),
    "argmin with ties": rows(lambda x: jnp.argmin(jnp.round(x), 0)),
    "integer extremes": rows(lambda c: c.max() - c.min(), (N,), codes=(9,)),
    "mean of integers, floored": rows(lambda c: c.sum() // 2, (N,), codes=(9,)),
    "logsumexp": rows(lambda x: jax.nn.logsumexp(x, 0)),
    "maximum with NaN": rows(lambda x: jnp.where(x > 0.5, jnp.nan, x).max(0)),
    "pooling": rows(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 1), ((0, 0), (0, 0)))),
    # cumulative
    "cumsum": rows(lambda x: jnp.cumsum(x, 0)),
    "reversed cumsum": rows(lambda x: lax.cumsum(x, 0, reverse=True)),
    "cumsum of columns": rows(lambda x: jnp.cumsum(x, 1)),
    "cumprod": rows(lambda x: lax.cumprod(1 + 0.1 * x, 0)),
    "cummax": rows(lambda x: lax.cummax(x, 0)),
    "reversed cummin": rows(lambda x: lax.cummin(x, 0, reverse=True)),
    "cumlogsumexp": rows(lambda x: lax.cumlogsumexp(x, 0)),
    "cumulative results without a gradient": rows(lambda x: [f(lax.stop_gradient(x), 0) for f in CUMULATIVE]),
    # products
    "rows by columns": rows(lambda x, w: x @ w, (N, 3), (3, 2)),
    "contracted rows": rows(lambda x, y: x.T @ y, (N, 3), (N, 2)),
    "contracted rows of a vector": rows(lambda y, x: y @ x, (N,), (N, 2)),
    "outer product": rows(lambda x, y: x @ y.T, (N, 3), (N, 3)),
    "batches of products": rows(lambda x, y: jnp.einsum("nij,njk->nik", x, y), (N, 2, 3), (N, 3, 2)),
    "convolution": rows(lambda x, k: jax.lax.conv(x, k, (1, 1), "SAME"), (N, 2, 4, 4), (3, 2, 3, 3)),
    # lookups
    "lookup by code": rows(lambda w, c: w[c], (5,), (N,), codes=(7,)),
    "lookup of tables by code": rows(lambda w, c: w[c], (5, 2), (N,), codes=(5,)),
    "lookup of rows": rows(lambda x, c: x[c], (N, 2), (3,), codes=(30,)),
    "lookup of rows that fills": rows(lambda x, c: x.at[c].get(mode="fill", fill_value=7.0), (N, 2), (1,), codes=(30,)),
    "lookup of rows by rows": rows(lambda x, c: x[c % x.shape[0]], (N, 2), (N,), codes=(30,)),
    "take along columns": rows(lambda x, c: jnp.take_along_axis(x, c, 1), (N, 3), (N, 1), codes=(3,)),
    "columns by number": rows(lambda x, c: x[:, c], (N, 3), (2,), codes=(3,)),
    "sums by code": rows(lambda x, c: jax.ops.segment_sum(x, c, 5), (N, 2), (N,), codes=(7,)),
    "maxima by code": rows(lambda x, c: jnp.maximum(jax.ops.segment_max(x, c, 5), -9.0), (N,), (N,), codes=(5,)),
    "rows added in place": rows(lambda x, y: x.at[0].add(y), (N, 2), (2,)),
    "columns set in place": rows(lambda x, y: x.at[:, 1].set(y), (N, 2), (N,)),
    "entries added by row": rows(lambda x, c: x.at[jnp.arange(x.shape[0]), c].add(1.0), (N, 3), (N,), codes=(3,)),
    # linear algebra and others
    "cholesky": rows(lambda x: jnp.linalg.cholesky(positive_definite(x))),
    "solve by row": rows(lambda x: jnp.linalg.solve(positive_definite(x), x[..., None])),
    "determinant by row": rows(lambda x: jnp.linalg.slogdet(positive_definite(x))[1]),
    "eigenvalues by row": rows(lambda x: jnp.linalg.eigvalsh(positive_definite(x)).sum(-1)),
    "right-hand sides": rows(lambda x: lax.linalg.triangular_solve(TRIANGLE.astype(x.dtype), x, lower=True)),
    "left-hand sides": rows(
        lambda x: lax.linalg.triangular_solve(TRIANGLE.astype(x.dtype), x.T, left_side=True, lower=True)
    ),
    "sort columns": rows(lambda x: jnp.sort(x, 1)),
    "sort rows": rows(lambda x: jnp.sort(x, 0)),
    "fft of columns": rows(lambda x: jnp.abs(jnp.fft.fft(x + 2, axis=1))),
    "fft of rows": rows(lambda x: jnp.abs(jnp.fft.fft(x + 2, axis=0))),
    "top": rows(lambda x: lax.top_k(x, 2)[0]),
    # calls and control flow
    "scan over columns": rows(lambda x: lax.scan(lambda c, t: (jnp.tanh(c) + t, c.max()), x[:, 0], x.T)),
    "scan over rows": rows(lambda x: lax.scan(lambda c, t: (0.5 * c + t, c), x[0], x)),
    "scan that sums": rows(lambda x: lax.scan(lambda c, t: (c + (t * x).sum(), None), 0.0, jnp.arange(3.0))[0]),
    "branches": rows(
        lambda x, c: lax.switch(c[0], [lambda x: x, jnp.cos, lambda x: x - x.mean(0)[None]], x),
        (N, 3),
        (1,),
        codes=(3,),
    ),
    "while": rows(lambda x: lax.stop_gradient(lax.while_loop(lambda x: jnp.abs(x).max() > 0.3, lambda x: x / 2, x))),
    "while of each row": rows(
        lambda x: lax.stop_gradient(
            jax.vmap(lambda r: lax.while_loop(lambda r: jnp.abs(r).max() > 0.3, lambda r: r / 2, r))(x)
        )
    ),
    "checkpoint": rows(lambda x: jax.checkpoint(lambda x: jnp.sin(x) * x.mean(0)[None])(x)),
    "custom root": rows(
        lambda x: lax.custom_root(
            lambda m: jnp.tanh(x - m).mean(),
            0.0,
            lambda f, m: lax.fori_loop(0, 30, lambda i, m: m + f(m), m),
            lambda g, y: y / g(1.0),
        )
    ),
}


def value_and_gradient(function, operands):
    """Return a function of the operands with its results and the gradient of a number made of them."""
    floats = tuple(i for i, x in enumerate(operands) if np.issubdtype(x.dtype, np.floating))

    def number(*arguments):
        results = function(*arguments)
        leaves = [x for x in jax.tree.leaves(results) if jnp.issubdtype(x.dtype, jnp.floating)]
        weights = [jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape) for x in leaves]
        return sum((jnp.sin(x) * w).sum() for x, w in zip(leaves, weights, strict=True)) + 0.0, results

    if not floats:
        return function
    return jax.value_and_grad(number, floats, has_aux=True)


def operands_of(case: Case, count: int, seed: int, dtype: Any) -> list[np.ndarray]:
    random, codes = np.random.default_rng(seed), list(case.codes)
    shapes = [tuple(-size * count if size < 0 else size for size in shape) for shape in case.shapes]
    floats = len(shapes) - len(codes)
    operands = [random.normal(size=shape).astype(dtype) for shape in shapes[:floats]]
    return operands + [random.integers(0, most, s, np.int32) for s, most in zip(shapes[floats:], codes, strict=True)]


def check_case(name: str, count: int, devices: int, are_sharded: list[bool], seed: int, dtype: Any = np.float32):
    case = CASES[name]
    operands = operands_of(case, count, seed, dtype)
    divided = [
        {"data": next(dim for dim, size in enumerate(shape) if size < 0)} if sharded and min(shape) < 0 else {}
        for shape, sharded in zip(case.shapes, are_sharded, strict=False)
    ]
    comparison = compare(value_and_gradient(case.function, operands), operands, divided, {"data": devices})
    assert comparison.error() < (5e-4 if dtype == np.float32 else 1e-10), name


COUNTS = st.one_of(st.integers(1, 17), st.sampled_from([48, 203]))
INPUTS = (
    st.sampled_from(sorted(CASES)),
    COUNTS,
    st.sampled_from([2, 4, 8]),
    st.lists(st.booleans(), min_size=3, max_size=3),
)


@settings(max_examples=24, deadline=None, derandomize=True)
@given(*INPUTS, st.integers(0, 99))
@example("while of each row", 5, 4, [True], 0)
@example("while of each row", 8, 2, [False], 0)
@example("fft of rows", 5, 4, [True], 0)
def test_a_rule_is_that_of_one_device(name, count, devices, are_sharded, seed):
    check_case(name, count, devices, [True, *are_sharded[1:]], seed)


@pytest.mark.slow
@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_rules_are_those_of_one_device_at_length(name, x64):
    @settings(max_examples=8, deadline=None, derandomize=True)
    @given(*INPUTS[1:], st.integers(0, 99))
    def check(count, devices, are_sharded, seed):
        check_case(name, count, devices, [True, *are_sharded[1:]], seed, np.float64 if x64 else np.float32)

    with jax.enable_x64(x64):
        check()


def test_the_cases_meet_the_rules():
    met: set[str] = set()
    for case in CASES.values():
        operands = operands_of(case, 4, 0, np.float32)
        met |= primitives_of(jax.make_jaxpr(value_and_gradient(case.function, operands))(*operands).jaxpr)
    assert {"dot_general", "gather", "cumsum", "pad", "reduce_sum", "dynamic_slice", "triangular_solve"} <= met
    assert {name for name in RULES if name.startswith(("reduce_m", "arg", "cum", "dynamic"))} <= met


def primitives_of(jaxpr: Any) -> set[str]:
    names = set()
    for equation in jaxpr.eqns:
        names.add(equation.primitive.name)
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(value, "jaxpr", value)
            names |= primitives_of(inner) if hasattr(inner, "eqns") else set()
    return names
