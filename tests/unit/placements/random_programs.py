"""Random programs over rows: operations of six kinds of values, chained at random.

A program of a seed is the same on every machine. Its arguments are weights `w` (8,) and `v` (3, HIDDEN), latent rows
`z` (n,), and data `x` (n, 3), `y` (n,) and codes `c` (n,).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

CODES, HIDDEN = 5, 7

NUMBER, ROWS, TABLE, COLUMNS, GROUPS, UNITS = "number", "rows", "table", "columns", "groups", "units"
"""Kinds of values: (), (n,), (n, 3), (3,), (CODES,), (n, HIDDEN)."""


class Context(NamedTuple):
    """The data that every operation may read."""

    n: int
    x: Any
    c: Any
    weights: np.ndarray
    order: np.ndarray
    key: Any


class Operation(NamedTuple):
    """An operation: its kind of result, its kinds of operands, and its function of the context and operands."""

    result: str
    operands: tuple[str, ...]
    function: Callable[..., Any]


@jax.custom_vjp
def clipped_gradient(x):
    return x * 1.0


clipped_gradient.defvjp(lambda x: (x * 1.0, None), lambda _, slope: (jnp.clip(slope, -0.02, 0.02),))


@jax.custom_jvp
def scaled_square(x, s):
    return x * x * s


@scaled_square.defjvp
def _(primals, tangents):
    (x, s), (dx, ds) = primals, tangents
    return x * x * s, 2 * x * s * dx + x * x * ds


def _positive(x):
    return 0.5 + x**2


def _finite(x):
    return jnp.where(jnp.isfinite(x), x, 0.0)


def _of(result: str, *operands: str) -> Callable[..., list[Operation]]:
    return lambda *functions: [Operation(result, operands, function) for function in functions]


OPERATIONS: list[Operation] = [
    *_of(ROWS, ROWS)(
        lambda k, r: jnp.tanh(r),
        lambda k, r: jnp.exp(-(r**2)),
        lambda k, r: jax.nn.softplus(30 * r) / 30,
        lambda k, r: jax.nn.relu(r),
        lambda k, r: jnp.abs(r),
        lambda k, r: jnp.sqrt(_positive(r)),
        lambda k, r: jax.scipy.special.gammaln(_positive(r)),
        lambda k, r: lax.erf(r),
        lambda k, r: jnp.where(r > 0.1, jnp.log(jnp.where(r > 0.1, r, 1.0)), 0.0),
        lambda k, r: jnp.clip(r, -0.5, 0.5),
        lambda k, r: r * k.weights,
        lambda k, r: r / k.weights,
        lambda k, r: r - r.mean(),
        lambda k, r: r - lax.stop_gradient(r.max()),
        lambda k, r: jax.nn.softmax(r),
        lambda k, r: jnp.cumsum(r) / k.n,
        lambda k, r: lax.cumsum(r, reverse=True) / k.n,
        lambda k, r: lax.cummax(r),
        lambda k, r: lax.cumlogsumexp(r, reverse=True),
        lambda k, r: lax.associative_scan(jnp.add, r) / k.n,
        lambda k, r: r[::-1],
        lambda k, r: jnp.roll(r, 1),
        lambda k, r: jnp.sort(r),
        lambda k, r: r[k.order],
        lambda k, r: r[k.c % k.n],
        lambda k, r: jnp.diff(r, prepend=0.0),
        lambda k, r: jnp.concatenate([r[1:], r[:1]]),
        lambda k, r: jnp.pad(r[: k.n - 1], (1, 0)),
        lambda k, r: jnp.convolve(r, jnp.array([0.2, 0.5, 0.3]), "same") if k.n > 3 else r,
        lambda k, r: r.at[0].set(1.0),
        lambda k, r: r.at[k.c % k.n].add(r / k.n),
        lambda k, r: lax.dynamic_update_slice(r, r[:1] * 0.5, (k.c[0] % k.n,)),
        lambda k, r: lax.scan(lambda carry, row: (0.5 * carry + row, carry), 0.0, r)[1],
        lambda k, r: lax.scan(lambda carry, t: (jnp.tanh(carry + t * r), None), r, jnp.arange(3.0))[0],
        lambda k, r: lax.fori_loop(0, 2, lambda i, carry: carry - carry.mean(), r),
        lambda k, r: lax.fori_loop(0, 2, lambda i, carry: jnp.roll(carry, 1) * 0.5, r),
        lambda k, r: lax.map(jnp.sin, r),
        lambda k, r: jnp.abs(r + 1j * r + 0.1),
        lambda k, r: jnp.repeat(r, 2).reshape(k.n, 2).sum(1),
        lambda k, r: jnp.tile(r, 2)[: k.n],
        lambda k, r: clipped_gradient(r),
        lambda k, r: jax.checkpoint(lambda a: jnp.sin(a) * a.mean())(r),
        lambda k, r: jax.jit(lambda a: a * 0.5 - a.sum() / k.n)(r),
        lambda k, r: r + 0.1 * jax.random.normal(k.key, (k.n,)),
        lambda k, r: r * jax.vmap(jax.random.uniform)(jax.random.split(k.key, k.n)),
        lambda k, r: r * jnp.arange(k.n) / k.n,
        lambda k, r: jnp.interp(r, jnp.linspace(-1, 1, 4), jnp.array([0.0, 1.0, 0.5, 2.0])),
        lambda k, r: jnp.searchsorted(jnp.sort(r), r) / k.n,
        lambda k, r: jnp.linalg.solve(jnp.eye(k.n) + 0.1 * jnp.exp(-((r[:, None] - r[None]) ** 2)) / k.n, r),
        lambda k, r: lax.stop_gradient(lax.while_loop(lambda a: jnp.abs(a).max() > 0.5, lambda a: a * 0.5, r)),
        lambda k, r: jax.grad(lambda a: jnp.sum(jnp.sin(a) * r))(r),
    ),
    *_of(ROWS, ROWS, ROWS)(
        lambda k, r, q: r + q,
        lambda k, r, q: r * q,
        lambda k, r, q: jnp.maximum(r, q),
        lambda k, r, q: r / _positive(q),
        lambda k, r, q: jnp.logaddexp(r, q),
        lambda k, r, q: jnp.where(q > 0, r, 0.3 * q),
        lambda k, r, q: jnp.outer(r, q).sum(1) / k.n,
    ),
    *_of(ROWS, ROWS, NUMBER)(
        lambda k, r, s: r * s,
        lambda k, r, s: r + s,
        lambda k, r, s: scaled_square(r, s),
        lambda k, r, s: lax.cond(s > 0, lambda: r * 2, lambda: r * 0 + s),
        lambda k, r, s: lax.switch(jnp.int32(s > 0.2), [lambda a: a, jnp.ones_like], r),
        lambda k, r, s: jnp.broadcast_to(s, (k.n,)) * r,
        lambda k, r, s: lax.fori_loop(0, 3, lambda i, carry: jnp.sin(carry) + s, r),
    ),
    *_of(ROWS, TABLE)(
        lambda k, t: t.sum(1),
        lambda k, t: t.max(1),
        lambda k, t: t[:, 1],
        lambda k, t: t.T[0],
        lambda k, t: jnp.linalg.norm(t + 0.1, axis=1),
        lambda k, t: jnp.take_along_axis(t, (k.c % 3)[:, None], 1)[:, 0],
        lambda k, t: jax.vmap(lambda a: lax.cond(a[0] > 0, jnp.sum, jnp.max, a))(t),
    ),
    *_of(ROWS, TABLE, COLUMNS)(
        lambda k, t, v: t @ v,
        lambda k, t, v: jnp.tensordot(t, v, 1),
        lambda k, t, v: jnp.einsum("ni,ij,nj->n", t, jnp.outer(v, v), t),
        lambda k, t, v: lax.scan(lambda carry, column: (carry * 0.5 + column, None), t[:, 0] * v[0], t.T)[0],
    ),
    *_of(ROWS, GROUPS)(
        lambda k, g: g[k.c],
        lambda k, g: jax.nn.one_hot(k.c, CODES) @ g,
        lambda k, g: jnp.take(g, (k.c + 1) % CODES),
    ),
    *_of(ROWS, UNITS)(lambda k, u: u.mean(1), lambda k, u: jax.nn.logsumexp(u, 1), lambda k, u: u[:, 2]),
    *_of(TABLE, TABLE)(
        lambda k, t: jax.nn.log_softmax(t, 1),
        lambda k, t: jnp.cumsum(t, 1),
        lambda k, t: jnp.concatenate([t[:, :1], t[:, 1:] * 2], 1),
        lambda k, t: (t.reshape(-1) * 0.5).reshape(-1, 3),
        lambda k, t: jnp.flip(t, 1),
        lambda k, t: jnp.fft.fft(t, axis=1).real,
        lambda k, t: jnp.linalg.solve(jnp.eye(3)[None] + 0.2 * t[:, :, None] * t[:, None], t[..., None])[..., 0],
        lambda k, t: jnp.linalg.cholesky(jnp.eye(3)[None] + t[:, :, None] * t[:, None])[:, 2],
        lambda k, t: t.at[:, 0].set(0.5),
    ),
    *_of(TABLE, TABLE, ROWS)(lambda k, t, r: t + r[:, None], lambda k, t, r: jnp.stack([r, r * 2, t[:, 0]], 1)),
    *_of(TABLE, TABLE, COLUMNS)(lambda k, t, v: t * v[None]),
    *_of(COLUMNS, TABLE)(lambda k, t: t.mean(0), lambda k, t: t[0], lambda k, t: t.max(0), lambda k, t: t[-1]),
    *_of(COLUMNS, TABLE, ROWS)(lambda k, t, r: (t * r[:, None]).sum(0) / k.n, lambda k, t, r: r @ t / k.n),
    *_of(COLUMNS, COLUMNS)(lambda k, v: jnp.tanh(v), lambda k, v: clipped_gradient(v)),
    *_of(COLUMNS, COLUMNS, NUMBER)(lambda k, v, s: v * s),
    *_of(GROUPS, ROWS)(
        lambda k, r: jax.ops.segment_sum(r, k.c, CODES) / k.n,
        lambda k, r: _finite(jax.ops.segment_max(r, k.c, CODES)),
        lambda k, r: jax.ops.segment_sum(r, k.c, CODES) / (1 + jnp.bincount(k.c, length=CODES)),
        lambda k, r: jnp.zeros(CODES).at[k.c].add(r) / k.n,
    ),
    *_of(GROUPS, GROUPS)(lambda k, g: jnp.tanh(g), lambda k, g: g - g.mean()),
    *_of(UNITS, UNITS)(
        lambda k, u: jnp.tanh(u),
        lambda k, u: jax.nn.softmax(u, 1),
        lambda k, u: u - u.mean(1, keepdims=True),
        lambda k, u: u - u.mean(0)[None],
    ),
    *_of(UNITS, UNITS, ROWS)(lambda k, u, r: u * r[:, None]),
    *_of(NUMBER, ROWS)(
        lambda k, r: r.sum() / k.n,
        lambda k, r: r.mean(),
        lambda k, r: r.max(),
        lambda k, r: r.min(),
        lambda k, r: jnp.var(r),
        lambda k, r: jax.nn.logsumexp(r),
        lambda k, r: jnp.prod(1 + 0.1 * jnp.tanh(r) / k.n),
        lambda k, r: r[0],
        lambda k, r: r[-1],
        lambda k, r: r[jnp.argmax(r)],
        lambda k, r: jnp.median(r),
        lambda k, r: jnp.quantile(r, 0.3),
        lambda k, r: jnp.dot(r, r) / k.n,
        lambda k, r: jnp.any(r > 1) * 0.3,
        lambda k, r: (jnp.sum(r > 0) // 2) / k.n,
        lambda k, r: jnp.sum(r).astype(int) / k.n,
        lambda k, r: jnp.sum(r > 0).astype(bool) * 0.2,
        lambda k, r: jnp.argmin(r) / k.n,
        lambda k, r: r[: k.n // 2].sum() / k.n,
        lambda k, r: r[::2].sum() / k.n,
        lambda k, r: ((r[1:] - r[:-1]) ** 2).sum() / k.n,
        lambda k, r: (1 / _positive(r[1:] - r[:-1])).sum() / k.n,
        lambda k, r: jnp.sum(jnp.where(r > 0, r, 0)) / (1 + jnp.sum(r > 0)),
        lambda k, r: jax.jvp(lambda a: jax.nn.logsumexp(a * r), (0.3,), (1.0,))[1],
        lambda k, r: lax.fori_loop(0, k.n, lambda i, total: total + r[i] * r[k.n - 1 - i], 0.0) / k.n,
    ),
    *_of(NUMBER, ROWS, NUMBER)(
        lambda k, r, s: lax.cond(s > 0, lambda a: a.sum() / k.n, lambda a: jnp.sort(a)[0] * 0.5, r),
        lambda k, r, s: jnp.where(r.sum() > 0, s, r.sum() / k.n),
        lambda k, r, s: lax.scan(lambda carry, t: (carry + (t * r).sum() / k.n, None), s, jnp.arange(3.0))[0],
        lambda k, r, s: lax.scan(lambda carry, t: (jnp.tanh(carry) + jnp.sort(r)[0] * t, None), s, jnp.arange(3.0))[0],
        lambda k, r, s: jax.grad(lambda a: jnp.sum(jnp.sin(a * r)))(s) / k.n,
        lambda k, r, s: clipped_gradient(s * r).sum() / k.n,
    ),
    *_of(NUMBER, TABLE)(
        lambda k, t: t.sum() / k.n,
        lambda k, t: t.max(),
        lambda k, t: jnp.linalg.slogdet(jnp.eye(3) + t.T @ t / k.n)[1],
        lambda k, t: (t @ t.T).max() / k.n,
    ),
    *_of(NUMBER, GROUPS)(lambda k, g: g.sum() / k.n),
    *_of(NUMBER, COLUMNS)(lambda k, v: v.sum()),
    *_of(NUMBER, UNITS)(lambda k, u: u.sum() / k.n, lambda k, u: u.max()),
    *_of(NUMBER, NUMBER, NUMBER)(lambda k, s, t: jnp.tanh(s) + t**2, lambda k, s, t: s * t),
]

TOTALS: dict[str, Callable[..., Any]] = {
    NUMBER: lambda k, s: s,
    ROWS: lambda k, r: -jnp.log1p(r**2).sum(),
    TABLE: lambda k, t: jnp.sin(t).sum(),
    COLUMNS: lambda k, v: v.sum(),
    GROUPS: lambda k, g: (g * jnp.arange(CODES)).sum(),
    UNITS: lambda k, u: jnp.cos(u).sum() / k.n,
}


def program_of(seed: int) -> Callable[..., Any]:
    """Return the log density of a seed, a function of `(w, v, z, x, y, c)`."""
    choose = random.Random(seed)
    steps: list[tuple[Operation, list[float]]] = []
    for _ in range(choose.randint(3, 8)):
        operation = choose.choice(OPERATIONS)
        steps.append((operation, [choose.random() for _ in operation.operands]))

    def density(w, v, z, x, y, c):
        rng, n = np.random.default_rng(seed), x.shape[0]
        weights = (0.5 + rng.random(n)).astype(x.dtype)
        context = Context(n, x, c, weights, rng.permutation(n), jax.random.key(seed))
        values: dict[str, list[Any]] = {
            NUMBER: [w[0], w[1]],
            ROWS: [z, x @ w[:3], y],
            TABLE: [x],
            COLUMNS: [w[:3], w[2:5]],
            GROUPS: [w[3:8]],
            UNITS: [x @ v],
        }
        results = []
        for operation, picks in steps:
            recent = [values[kind][-4:] for kind in operation.operands]
            operands = [each[int(pick * len(each))] for each, pick in zip(recent, picks, strict=True)]
            result = operation.function(context, *operands)
            values[operation.result].append(result)
            results.append((operation.result, result))
        total = sum(TOTALS[kind](context, result) for kind, result in results[-3:])
        return total - 0.5 * (z**2).mean() - 0.5 * (w**2).sum() - 0.5 * (v**2).sum()

    return density


def arguments_of(seed: int, rows: int) -> tuple[np.ndarray, ...]:
    """Return arguments of a program of so many rows."""
    rng = np.random.default_rng(seed)
    shapes = [(8,), (3, HIDDEN), (rows,), (rows, 3), (rows,)]
    return *(rng.normal(size=shape).astype(np.float32) for shape in shapes), rng.integers(0, CODES, rows, np.int32)
