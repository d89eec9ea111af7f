"""Lanes last is what `vmap` gives: rule by rule, for random programs, for the distributions models are made of."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import P, lax
from jax.extend.core import ClosedJaxpr, jaxprs_in_params
from jax.scipy import special

import phalanx as phx
from phalanx.density.target import Target
from phalanx.jaxprs.lanes_last import RULES, TERM_BY_TERM, lanes_last
from phalanx.kernels.protocol import lane_target
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.position import Vector

LANES = 5


def check(f: Callable[..., Any], *ways: tuple[list[Any], list[bool]], rtol: float = 2e-5) -> None:
    """`f` of one lane in some ways, of which each has the arguments, and which of them are not shared by all lanes.

    Those have the lanes last. All ways are one program, which takes less time to compile than a program for each.
    """

    def of_one(args: list[Any], laned: list[bool]) -> Callable[..., Any]:
        def one(*own: Any) -> Any:
            own_ones = iter(own)
            return f(*(next(own_ones) if has else jnp.asarray(arg) for has, arg in zip(laned, args, strict=True)))

        return one

    ones = [of_one(*way) for way in ways]
    owns = [[jnp.asarray(arg) for has, arg in zip(laned, args, strict=True) if has] for args, laned in ways]

    def by(over_lanes: Callable[..., Any]) -> Callable[..., Any]:
        return lambda owns: [over_lanes(one)(*own) for one, own in zip(ones, owns, strict=True)]

    every = by(lanes_last), by(lambda one: jax.vmap(one, in_axes=-1, out_axes=-1))
    found, expected = jax.jit(lambda owns: [f(owns) for f in every])(owns)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, a), b in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), path
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=rtol, err_msg=str(path))


def numbers(*shape: int, dtype: Any = np.float32, low: float = 0.1, high: float = 0.9) -> np.ndarray:
    random = np.random.default_rng([len(shape), *shape])
    if dtype is bool:
        return random.random(shape) < 0.5
    if np.issubdtype(dtype, np.integer):
        return random.integers(0, 3, shape).astype(dtype)
    return random.uniform(low, high, shape).astype(dtype)


# -- rule by rule -----------------------------------------------------------------------------------------------------

F, H, N, B = np.float32, np.float16, np.int32, bool
UNARY = """abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil cos cosh digamma erf erf_inv erfc exp
exp2 expm1 floor is_finite lgamma log log1p logistic neg round rsqrt sign sin sinh sqrt square tan tanh""".split()  # noqa: SIM905
BINARY = "add atan2 div eq ge gt le lt max min mul ne nextafter pow rem sub".split()  # noqa: SIM905
BITS = "bitwise_and bitwise_or bitwise_xor shift_left shift_right_arithmetic shift_right_logical".split()  # noqa: SIM905
CUMULATIVE = "cumlogsumexp cummax cummin cumprod cumsum".split()  # noqa: SIM905

Case = tuple[Callable[..., Any], tuple[tuple[tuple[int, ...], Any], ...]]


@jax.custom_vjp
def with_a_rule(x, y):
    return x * y, y.sum()


with_a_rule.defvjp(lambda x, y: (with_a_rule(x, y), y), lambda y, gradient: (y * gradient[0], y))

CASES: dict[str, Case] = {
    "functions of one": (lambda x: {name: getattr(lax, name)(x) for name in UNARY}, (((2, 3), F),)),
    "functions of two": (lambda x, y: {name: getattr(lax, name)(x, y) for name in BINARY}, (((2, 3), F), ((2, 3), F))),
    "functions with a scalar": (
        lambda x, y: {name: getattr(lax, name)(x, y) for name in BINARY}, (((2, 3), F), ((), F))),
    "functions of scalars": (lambda x, y: {name: getattr(lax, name)(x, y) for name in BINARY}, (((), F), ((), F))),
    "functions of bits": (lambda x, y: {name: getattr(lax, name)(x, y) for name in BITS}, (((2, 3), N), ((2, 3), N))),
    "cumulative": (
        lambda x: {f"{name} {axis}": getattr(lax, name)(x, axis) for name in CUMULATIVE for axis in range(3)},
        (((3, 4, 2), F),)),
    "reductions": (
        lambda x: {f"{f.__name__} {axes}": f(x, axis=axes) for f in (jnp.sum, jnp.max, jnp.min, jnp.prod)
                   for axes in (0, -1, (0, 2), (0, 1, 2))}, (((3, 4, 2), F),)),
    "reductions of flags": (
        lambda x: {f"{f.__name__} {axis}": f(x, axis) for f in (jnp.all, jnp.any) for axis in (0, -1)}, (((3, 4), B),)),
    "places of extremes": (
        lambda x: {f"{f.__name__} {axis}": f(x, axis) for f in (jnp.argmax, jnp.argmin) for axis in (0, -1)},
        (((3, 4), F),)),
    "reduce_xor": (lambda x: lax.reduce(x, np.int32(0), lax.bitwise_xor, (1,)), (((3, 4), N),)),
    **{f"{f.__name__} over {axis}": (lambda x, f=f, axis=axis: f(x, axis), (((3, 4), F),))
       for f in (jnp.argmax, jnp.argmin) for axis in (0, -1)},
    "a sum and a maximum at once": (
        lambda x, y: lax.reduce((x, y), (F(0), F(0)), lambda a, b: (a[0] + b[0], lax.max(a[1], b[1])), (0,)),
        (((3, 4), F), ((3, 4), F))),
    "incomplete gamma": (
        lambda x, y: [f(x, y) for f in (lax.igamma, lax.igammac, lax.igamma_grad_a)], (((3,), F), ((3,), F))),
    "incomplete gamma with a scalar": (
        lambda x, y: [f(x, y) for f in (lax.igamma, lax.igammac, lax.igamma_grad_a)], (((3,), F), ((), F))),
    "polygamma": (lambda x: lax.polygamma(lax.full_like(x, 1.0), x), (((3,), F),)),
    "zeta": (lambda x, y: lax.zeta(x + 1.5, y), (((3,), F), ((3,), F))),
    "betainc": (lax.betainc, (((3,), F), ((3,), F), ((3,), F))),
    "random_gamma_grad": (lax.random_gamma_grad, (((3,), F), ((3,), F))),
    "gradient of add": (jax.grad(lambda x: jnp.sum(x * x + jnp.sin(x))), (((3,), F),)),
    "integer_pow": (lambda x: x**3, (((2, 3), F),)),
    "convert": (lambda x: (3 * x).astype(np.int32), (((2, 3), F),)),
    "copy": (lambda x: jnp.array(x, copy=True), (((2, 3), F),)),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 5, 10), (((2, 3), F),)),
    "not": (lambda x: (~x, ~(x > 1)), (((3,), N),)),
    "bits": (lambda x: (lax.population_count(x), lax.clz(x)), (((3,), N),)),
    "complex": (lambda x, y: lax.real(z := lax.conj(lax.complex(x, y))) * lax.imag(z), (((3,), F), ((3,), F))),
    "total order": (lambda x, y: (lax.eq_to_p.bind(x, y), lax.le_to_p.bind(x, y), lax.lt_to_p.bind(x, y)),
                    (((3,), F), ((3,), F))),
    "clamp by scalars": (lax.clamp, (((), F), ((2, 3), F), ((), F))),
    "clamp by arrays": (lax.clamp, (((2, 3), F), ((2, 3), F), ((2, 3), F))),
    "select": (lax.select_n, (((2, 3), B), ((2, 3), F), ((2, 3), F))),
    "select by a scalar": (lax.select_n, (((), B), ((2, 3), F), ((2, 3), F))),
    "select of scalars": (lax.select_n, (((), B), ((), F), ((), F))),
    "select one of three": (lax.select_n, (((2, 3), N), ((2, 3), F), ((2, 3), F), ((2, 3), F))),
    "broadcast": (lambda x: lax.broadcast_in_dim(x, (3, 2, 4, 3), (1, 3)), (((2, 3), F),)),
    "broadcast of ones": (lambda x: lax.broadcast_in_dim(x, (2, 3), (0, 1)), (((2, 1), F),)),
    "reshape": (lambda x: (x.reshape(3, 4), x.reshape(-1), x.reshape(2, 1, 6)), (((2, 6), F),)),
    "reshape in another order": (lambda x: lax.reshape(x, (3, 4), (1, 0)), (((2, 6), F),)),
    "transpose": (lambda x: x.transpose(2, 0, 1), (((2, 3, 4), F),)),
    "squeeze": (lambda x: lax.squeeze(x, (0, 2)), (((1, 3, 1), F),)),
    "rev": (lambda x: lax.rev(x, (0, 1)), (((2, 3), F),)),
    "tile": (lambda x: lax.tile(x, (2, 3)), (((2, 3), F),)),
    "concatenate": (lambda x, y: (lax.concatenate([x, y, x], 1),), (((2, 3), F), ((2, 1), F))),
    "stack": (lambda x, y: [jnp.stack([x, y], axis) for axis in (0, 1, -1)], (((2, 3), F), ((2, 3), F))),
    "unstack": (lambda x: [jnp.unstack(x, axis=axis) for axis in (0, 1)], (((2, 3), F),)),
    "split": (lambda x: (jnp.split(x, 2, 0), lax.split(x, (1, 2), 1)), (((2, 3), F),)),
    "sort": (lambda x: [jnp.sort(x, axis) for axis in (0, 1)], (((4, 3), F),)),
    "sort of two": (lambda x, y: lax.sort((x, y), dimension=0, num_keys=1), (((4, 3), F), ((4, 3), N))),
    "pad": (lambda x, y: lax.pad(x, y, ((1, 2, 1), (0, -1, 0))), (((3, 4), F), ((), F))),
    "slice": (lambda x: (x[1:, ::2], x[:2], x[..., -1]), (((3, 4), F),)),
    "dynamic slice": (lambda x, i: lax.dynamic_slice(x, (i, 1), (2, 2)), (((4, 3), F), ((), N))),
    "dynamic update": (lambda x, y, i: lax.dynamic_update_slice(x, y, (i, 1)), (((4, 3), F), ((2, 2), F), ((), N))),
    "gather of rows": (lambda x, i: (x[i], x[:, i], x.at[i].get(mode="fill", fill_value=7)), (((3, 4), F), ((5,), N))),
    "gather in rows": (lambda x, i: jnp.take_along_axis(x, i[:, None], 1), (((4, 3), F), ((4,), N))),
    "scatter": (
        lambda x, i, y: [*(getattr(x.at[i], name)(y) for name in ("set", "add", "multiply", "min", "max")),
                         *(getattr(x.at[:, i], name)(y.T) for name in ("set", "add"))],
        (((3, 3), F), ((2,), N), ((2, 3), F))),
    "gradient of a gather": (jax.grad(lambda x, i: jnp.sum(x[i] ** 2)), (((3, 4), F), ((5,), N))),
    "barrier": (lambda x, y: lax.optimization_barrier((x, y)), (((3,), F), ((2, 2), F))),
    "jit": (jax.jit(lambda x, y: (x * y, y + 1)), (((3,), F), ((3,), F))),
    "custom_jvp": (jax.nn.relu, (((3,), F),)),
    "custom_vjp": (with_a_rule, (((3,), F), ((3,), F))),
    "checkpoint": (jax.value_and_grad(jax.checkpoint(lambda x, y: jnp.sum(jnp.sin(x * y)))), (((3,), F), ((3,), F))),
    "cond": (lambda x, y, i: lax.cond(i > 0, lambda: (x, y), lambda: (y * 2, x)), (((3,), F), ((3,), F), ((), N))),
    "switch": (lambda x, i: lax.switch(i, [jnp.sin, lambda x: x, lambda x: x * 0 + 1], x), (((3,), F), ((), N))),
    "scan": (lambda c, x, y: lax.scan(lambda c, v: (c * y + v, (c, v)), c, x), (((2,), F), ((4, 2), F), ((2,), F))),
    "scan backwards": (lambda x: lax.scan(lambda c, v: (c + v, c), F(0), x, reverse=True, unroll=2), (((4,), F),)),
    "scan where lanes enter late": (
        lambda x: lax.scan(lambda c, _: ((c[1], c[2], x), c[0]), (F(0), F(1), F(2)), None, length=4), (((), F),)),
    "for": (lambda x, y: lax.fori_loop(0, 3, lambda i, c: c + x[i] * y, F(0)), (((3,), F), ((), F))),
    "while": (lambda x, y: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + x, c[1] * y), (x, y)),
              (((), F), ((3,), F))),
    "random": (lambda x: x + jax.random.normal(jax.random.fold_in(jax.random.key(0), (9 * x).astype(int)[0]), (3,)),
               (((3,), F),)),
    "cholesky": (lambda x: jnp.linalg.cholesky(x @ x.T + jnp.eye(3)), (((3, 3), F),)),
    "triangular solve": (lambda a, b: jax.scipy.linalg.solve_triangular(a + jnp.eye(3), b, lower=True),
                         (((3, 3), F), ((3,), F))),
    "convolution": (lambda x, k: jnp.convolve(x, k), (((6,), F), ((3,), F))),
    "top_k": (lambda x: lax.top_k(x, 2), (((2, 4), F),)),
}  # fmt: skip

PRODUCTS = {  # shapes, dimension numbers
    "of vectors": ((3,), (3,), (((0,), (0,)), ((), ()))),
    "of a matrix and a vector": ((2, 3), (3,), (((1,), (0,)), ((), ()))),
    "of a vector and a matrix": ((3,), (3, 2), (((0,), (0,)), ((), ()))),
    "of matrices": ((2, 3), (3, 4), (((1,), (0,)), ((), ()))),
    "of matrices, transposed": ((3, 2), (4, 3), (((0,), (1,)), ((), ()))),
    "of batches": ((5, 2, 3), (3, 5, 4), (((2,), (0,)), ((0,), (1,)))),
    "of two batches": ((5, 2, 3, 6), (6, 5, 2), (((3,), (0,)), ((0, 1), (1, 2)))),
    "over two axes": ((2, 3, 4), (4, 5, 3), (((1, 2), (2, 0)), ((), ()))),
    "over none": ((2,), (3,), (((), ()), ((), ()))),
    "of large matrices": ((20, 30), (30, 20), (((1,), (0,)), ((), ()))),
}
CASES |= {
    f"product {name}": (lambda x, y, d=d: lax.dot_general(x, y, d), ((a, F), (b, F)))
    for name, (a, b, d) in PRODUCTS.items()
}
CASES |= {
    "product of whole numbers": (lambda x, y: x @ y, (((2, 3), N), ((3, 4), N))),
    "product of other type": (lambda x, y: lax.dot(x, y, preferred_element_type=F), (((2, 3), H), ((3, 2), H))),
    "product with precisions": (
        lambda x, y: lax.dot(x, y, precision=("highest", "default")), (((2, 3), F), ((3, 2), F))),
}  # fmt: skip


SLOW = "betainc", "incomplete gamma", "incomplete gamma with a scalar", "random_gamma_grad"


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CASES])
def test_a_rule_gives_what_vmap_gives(name):
    f, operands = CASES[name]
    ways = []
    for laned in itertools.product([True, False], repeat=len(operands)):
        if any(laned):
            args = [
                numbers(*shape, *([LANES] if has else []), dtype=t)
                for (shape, t), has in zip(operands, laned, strict=True)
            ]
            ways.append((args, list(laned)))
    check(f, *ways)


def test_every_rule_has_a_case():
    seen = {eqn.primitive.name for f, operands in CASES.values() for eqn in equations(traced(f, operands))}
    of_other_releases = {"copy_p", "log2", "one_minus_square", "random_gamma_grad", "stop_gradient", "pvary"}
    over_devices = {"psum", "pmax", "pmin"}  # below
    assert set(RULES) - seen <= of_other_releases | over_devices | {"mulhi"}
    assert math_is_large("product of large matrices")


def math_is_large(name: str) -> bool:
    (a, _), (b, _) = CASES[name][1]
    return a[0] * a[1] * b[1] > TERM_BY_TERM


def traced(f: Callable[..., Any], operands: Any) -> ClosedJaxpr:
    return jax.make_jaxpr(f)(*(numbers(*shape, dtype=t) for shape, t in operands))


def equations(program: Any) -> Iterator[Any]:
    for equation in program.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


# -- random programs --------------------------------------------------------------------------------------------------

Steps = list[tuple[int, int, int, int]]
LENGTHS = (1, 2, 3)


def fit(x: Any, like: Any) -> Any:
    """`x` as an array of the shape of `like`."""
    return jnp.resize(x, like.shape).astype(like.dtype) if x.shape != like.shape else x.astype(like.dtype)


def real(x: Any) -> Any:
    return x if x.dtype == F else x.astype(F)


OPERATIONS: list[Callable[[Any, Any, int], Any]] = [
    lambda x, y, k: real(x) * fit(y, real(x)),
    lambda x, y, k: real(x) + real(y).sum(),
    lambda x, y, k: jnp.maximum(jnp.sin(real(x)), (0.1, -0.2, 0.5)[k % 3]),
    lambda x, y, k: real(x) > fit(y, real(x)),
    lambda x, y, k: x.astype((F, N, B)[k % 3]),
    lambda x, y, k: jnp.where(fit(y, x) > 0, x, jnp.zeros_like(x)),
    lambda x, y, k: jnp.where(y.sum() > 0, x, fit(y, x)),
    lambda x, y, k: jnp.sum(x, axis=k % x.ndim, dtype=x.dtype) if x.ndim else x,
    lambda x, y, k: jnp.max(x, axis=-1) if x.ndim else x,
    lambda x, y, k: jnp.argmin(x, axis=k % x.ndim).astype(N) if x.ndim else x,
    lambda x, y, k: jnp.cumsum(real(x), axis=k % x.ndim) if x.ndim else x,
    lambda x, y, k: x.T,
    lambda x, y, k: x.reshape(-1),
    lambda x, y, k: x[None] if x.ndim < 3 else x[0],
    lambda x, y, k: jnp.expand_dims(x, -1) if x.ndim < 3 else x[..., 0],
    lambda x, y, k: jnp.concatenate([x, fit(y, x)], axis=k % x.ndim) if x.ndim and x.size < 30 else x,
    lambda x, y, k: jnp.flip(x, k % x.ndim) if x.ndim else x,
    lambda x, y, k: jnp.pad(x, 1, constant_values=1) if x.size < 10 else x,
    lambda x, y, k: jnp.sort(x, axis=k % x.ndim) if x.ndim else x,
    lambda x, y, k: jnp.tensordot(real(x), fit(y, real(x)), axes=(k % x.ndim, k % x.ndim)) if 0 < x.ndim < 3 else x,
    lambda x, y, k: jnp.dot(real(x), jnp.ones((x.shape[-1], 2))) if x.ndim else x,
    lambda x, y, k: x[jnp.array([0, x.shape[0] - 1])] if x.ndim else x,
    lambda x, y, k: jnp.take(x, y.astype(N).reshape(-1)[:2], axis=k % x.ndim, mode="clip") if x.ndim else x,
    lambda x, y, k: x.at[k % x.shape[0]].set(fit(y, x)[0]) if x.ndim else x,
    lambda x, y, k: lax.dynamic_slice_in_dim(x, y.astype(N).sum(), 1, k % x.ndim) if x.ndim else x,
    lambda x, y, k: special.logsumexp(real(x), axis=k % x.ndim) if x.ndim else x,
    lambda x, y, k: jax.nn.softmax(real(x)) if x.ndim else x,
    lambda x, y, k: jax.grad(lambda v: jnp.sum(jnp.tanh(v) * fit(y, v)))(real(x)),
    lambda x, y, k: jnp.clip(real(x), -1.0, real(y).max()),
]


def follow(steps: Steps, pool: list[Any]) -> list[Any]:
    """The program of `steps`: each makes a value of two that are there, some inside of a call, loop or branch."""
    pool = list(pool)
    for operation, first, second, number in steps:
        x, y = pool[first % len(pool)], pool[second % len(pool)]
        made = inside(OPERATIONS[operation % len(OPERATIONS)], x, y, number)
        pool.append(jnp.tanh(made) if made.dtype == F else made)  # what is large is known to fewer digits
    return pool


def inside(f: Callable[..., Any], x: Any, y: Any, number: int) -> Any:
    wraps = [
        lambda: f(x, y, number),
        lambda: jax.jit(f, static_argnums=2)(x, y, number),
        lambda: jax.checkpoint(f, static_argnums=2)(x, y, number),
        lambda: lax.cond(y.sum() > 1, lambda: f(x, y, number), lambda: jnp.zeros_like(f(x, y, number))),
        lambda: lax.scan(lambda c, v: (c + real(v).sum(), f(x, v, number)), F(0), jnp.stack([y, y]))[1],
        lambda: lax.scan(lambda c, _: (fit(f(c, y, number), c), c), x, None, length=2)[0],
        lambda: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, fit(f(c[1], y, number), x)), (0, x))[1],
    ]
    return wraps[number // 3 % len(wraps)]()


shapes = st.lists(st.sampled_from(LENGTHS), max_size=3).map(tuple)
inputs = st.tuples(shapes, st.sampled_from([F, N, B]), st.booleans())
steps = st.lists(st.tuples(*[st.integers(0, 1000)] * 4), min_size=1, max_size=8)


programs = given(st.lists(inputs, min_size=1, max_size=3), shapes, steps)


@settings(max_examples=5, deadline=None)
@programs
def test_a_random_program_gives_what_vmap_gives(others, shape, steps):
    check_program(others, shape, steps)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@programs
def test_many_random_programs_give_what_vmap_gives(others, shape, steps):
    check_program(others, shape, steps)


def check_program(others, shape, steps):
    operands = [(shape, F, True), *others]
    args = [numbers(*s, *([LANES] if has else []), dtype=t, low=-1.0) for s, t, has in operands]
    check(lambda *pool: follow(steps, list(pool)), (args, [has for *_, has in operands]), rtol=1e-4)


# -- what models are made of ------------------------------------------------------------------------------------------

MATRIX = np.eye(3, dtype=F) + 0.3
DISTRIBUTIONS = {
    "Normal": lambda a, b: dist.Normal(a, b),
    "StudentT": lambda a, b: dist.StudentT(b + 2, a, b),
    "Cauchy": lambda a, b: dist.Cauchy(a, b),
    "Laplace": lambda a, b: dist.Laplace(a, b),
    "Logistic": lambda a, b: dist.Logistic(a, b),
    "Gumbel": lambda a, b: dist.Gumbel(a, b),
    "LogNormal": lambda a, b: dist.LogNormal(a, b),
    "HalfCauchy": lambda a, b: dist.HalfCauchy(b),
    "HalfNormal": lambda a, b: dist.HalfNormal(b),
    "Gamma": lambda a, b: dist.Gamma(b, b),
    "InverseGamma": lambda a, b: dist.InverseGamma(b, b),
    "Weibull": lambda a, b: dist.Weibull(b, b),
    "Pareto": lambda a, b: dist.Pareto(b * 0.01, b),
    "Exponential": lambda a, b: dist.Exponential(b),
    "Beta": lambda a, b: dist.Beta(b, b),
    "Uniform": lambda a, b: dist.Uniform(-b, b + 5),
    "VonMises": lambda a, b: dist.VonMises(a, b),
    "TruncatedNormal": lambda a, b: dist.TruncatedNormal(a, b, low=-3.0, high=4.0),
    "Dirichlet": lambda a, b: dist.Dirichlet(b),
    "Poisson": lambda a, b: dist.Poisson(b),
    "NegativeBinomial": lambda a, b: dist.NegativeBinomial2(b, b),
    "Binomial": lambda a, b: dist.Binomial(10, logits=a),
    "BetaBinomial": lambda a, b: dist.BetaBinomial(b, b, 10),
    "Bernoulli": lambda a, b: dist.Bernoulli(logits=a),
    "Categorical": lambda a, b: dist.Categorical(logits=a),
    "Multinomial": lambda a, b: dist.Multinomial(6, logits=a),
    "OrderedLogistic": lambda a, b: dist.OrderedLogistic(a, jnp.cumsum(b)),
    "ZeroInflatedPoisson": lambda a, b: dist.ZeroInflatedPoisson(jax.nn.sigmoid(a), b),
    "MultivariateNormal": lambda a, b: dist.MultivariateNormal(a, MATRIX * b[0]),
    "LowRank": lambda a, b: dist.LowRankMultivariateNormal(a, b[:, None], b),
    "LKJCholesky": lambda a, b: dist.LKJCholesky(3, b[0]),
    "GaussianRandomWalk": lambda a, b: dist.GaussianRandomWalk(b[0], 3),
    "Mixture": lambda a, b: dist.MixtureSameFamily(dist.Categorical(logits=a), dist.Normal(a, b)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("group", [*(pytest.param(n, marks=pytest.mark.slow) for n in range(7)), 7])
def test_distributions_give_what_vmap_gives(group):
    names = list(DISTRIBUTIONS)[group::8]
    a, b = numbers(3, low=-1.0), numbers(3, low=0.5, high=2.0)
    own = [np.stack([x + 0.01 * i for i in range(LANES)], -1) for x in (a, b)]
    with jax.numpy_rank_promotion("allow"):  # some of NumPyro's need it
        values = {name: DISTRIBUTIONS[name](a, b).sample(jax.random.key(1)) for name in names}

        def value_and_grad(a, b, shift):
            def log_prob(a, b, shift, name):
                value = values[name]
                value = value + 0 * shift if jnp.issubdtype(value.dtype, np.floating) else value
                return jnp.sum(DISTRIBUTIONS[name](a, b).log_prob(value))

            return {name: jax.value_and_grad(log_prob, (0, 1, 2))(a, b, shift, name) for name in names}

        observed_or_drawn = [([*own, np.zeros(LANES if has else (), F)], [True, True, has]) for has in (False, True)]
        check(value_and_grad, *observed_or_drawn, rtol=1e-4)


X = np.random.default_rng(0).normal(size=(40, 3)).astype(F)
DATA = {"x": X, "y": (X.sum(1) > 0).astype(N)}


def logistic(x, y):
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([3]))
    phx.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def in_blocks(x, y):
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([3]))
    phx.sample("y", phx.blocked(lambda x: dist.Bernoulli(logits=x @ w), x, block=9), obs=y)


def through_time(x, y):
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([3]))
    level = phx.sample("level", dist.Normal(0.0, 1.0))
    path = lax.scan(lambda at, w: (0.5 * at + w, at), level, w)[1]
    phx.sample("y", dist.Bernoulli(logits=x @ path), obs=y)


@pytest.mark.parametrize("model", [logistic, in_blocks, through_time])
def test_lanes_of_a_target_are_what_vmap_gives(model, mesh_of, monkeypatch):
    mesh = mesh_of(1, 4)
    target = Target(model, phx.shard(DATA, mesh), mesh=mesh)
    size = sum(int(np.prod(v.unconstrained_shape, dtype=int)) for v in target.sites.latents)
    position = np.random.default_rng(1).normal(size=(size, 64)).astype(F)

    def run():
        def on_device(position, arrays):
            return LaneTarget(target.on_device(arrays, 64), 64).value_and_grad(Vector((position,)))

        specs = P(), target.array_specs()
        spread = jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
        compiled = jax.jit(spread).lower(position, target.place_arrays()).compile()
        hlo = compiled.as_text()
        assert hlo is not None and len(re.findall(r" all-reduce(?:-start)?\(", hlo)) == 1
        return compiled(position, target.place_arrays())

    found = run()
    monkeypatch.setattr(lane_target, "MANY_LANES", 1000)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(run()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_values_that_lanes_share_stay_shared():
    x = jnp.asarray(X)
    program = jax.make_jaxpr(lanes_last(jax.value_and_grad(lambda w: jnp.sum(jnp.tanh(x @ w) + jnp.sin(x).sum()))))(
        numbers(3, LANES)
    )
    products = [eqn for eqn in equations(program) if eqn.primitive.name == "dot_general"]
    assert len(products) == 2 and all(eqn.params["dimension_numbers"][1] == ((), ()) for eqn in products)
    (sine,) = [eqn for eqn in equations(program) if eqn.primitive.name == "sin"]
    assert sine.outvars[0].aval.shape == x.shape


def test_sums_over_devices_are_one(mesh_of):
    def all_devices(x, y):
        summed, shared = lax.psum((x * 2, y), "data")
        return summed + shared, lax.pmax(x, "data"), lax.pmin(x, "data")

    def run(every):
        def on_device(x, y):
            return every(lambda x: all_devices(x, y))(x)

        spread = jax.shard_map(on_device, mesh=mesh_of(1, 4), in_specs=(P(), P("data")), out_specs=P(), check_vma=False)
        return jax.make_jaxpr(spread)(numbers(3, LANES), numbers(12)), spread(numbers(3, LANES), numbers(12))

    program, found = run(lanes_last)
    by_vmap, expected = run(lambda f: jax.vmap(f, in_axes=-1, out_axes=-1))
    sums, theirs = ([e.primitive.name for e in equations(p)].count("psum") for p in (program, by_vmap))
    assert sums == theirs
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_function_with_its_own_rule_for_batches_keeps_it():
    @jax.custom_batching.custom_vmap
    def f(x):
        return x

    f.def_vmap(lambda size, batched, x: (x + size, True))
    np.testing.assert_array_equal(lanes_last(f)(jnp.zeros((2, LANES))), np.full((2, LANES), LANES))


def test_effects_happen_once_for_each_lane():
    seen = []

    def f(x):
        jax.debug.callback(lambda value: seen.append(float(value)), x.sum())
        return x

    jax.block_until_ready(lanes_last(f)(jnp.arange(LANES, dtype=F)[None]))
    jax.effects_barrier()
    assert sorted(seen) == list(range(LANES))
