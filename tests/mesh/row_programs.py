"""Factors of many forms, as statisticians write them: those that add up over rows, and those that do not.

Each is a function of rows `x` (n, 3), `y` (n,), codes `c` (n,), and variables `w` (3,), `s` (), `b` (5,).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax

import phalanx as phx

LEVELS = 5
CELLS = np.array([-1.0, 0.0, 0.7, 2.0], np.float32)


def data_of(rows: int) -> dict[str, np.ndarray]:
    """Return data of so many rows."""
    random = np.random.default_rng(rows)
    x = random.normal(size=(rows, 3)).astype(np.float32)
    y = (x.sum(1) + random.normal(size=rows)).astype(np.float32)
    return {"x": x, "y": y, "c": random.integers(0, LEVELS, rows)}


def model_of(factor: Callable[..., Any]) -> Callable[..., None]:
    """Return the model with this factor."""

    def model(x, y, c):
        w = phx.sample("w", dist.Normal(0.0, 1.0).expand([3]))
        s = phx.sample("s", dist.Normal(0.0, 1.0))
        b = phx.sample("b", dist.Normal(0.0, 1.0).expand([LEVELS]))
        phx.factor("f", factor(x, y, c, w, s, b))

    return model


def ll(x, y, w):
    return dist.Normal(x @ w, 1.0).log_prob(y)


def squares(x, y, w):
    return (y - x @ w) ** 2


def with_ones(columns):
    """Return a factor of a regression on a design matrix, as `columns(ones, x)` gives it."""
    return lambda x, y, c, w, s, b: -((y - columns(jnp.ones(len(y)), x[:, :2]) @ w) ** 2).sum()


def sufficient(x, y, c, w, s, b):
    n, total, of_squares = y.shape[0], y.sum(), (y**2).sum()
    return -n * s - 0.5 * jnp.exp(-2 * s) * (of_squares - 2 * w[0] * total + n * w[0] ** 2)


def regression(x, y, c, w, s, b):
    return -x.shape[0] * s - 0.5 * jnp.exp(-2 * s) * squares(x, y, w).sum()


def quadratic(x, y, c, w, s, b):
    return w @ (x.T @ y) - 0.5 * w @ (x.T @ x) @ w


def scan_rows(x, y, c, w, s, b):
    def turn(total, row):
        xi, yi = row
        return total - (yi - xi @ w) ** 2, None

    return lax.scan(turn, 0.0, (x, y))[0]


def scan_pair(x, y, c, w, s, b):
    def turn(carry, row):
        return (carry[0] + row, carry[1] + row**2), None

    total, of_squares = lax.scan(turn, (0.0, 0.0), y)[0]
    return w[0] * total - of_squares * jnp.exp(s)


def scan_outputs(x, y, c, w, s, b):
    return lax.scan(lambda none, row: (none, -((row - s) ** 2)), None, y)[1].sum()


def fori(x, y, c, w, s, b):
    return lax.fori_loop(0, y.shape[0], lambda i, total: total - (y[i] - x[i] @ w) ** 2, 0.0)


def fori_vector(x, y, c, w, s, b):
    return lax.fori_loop(0, y.shape[0], lambda i, sums: sums + x[i] * y[i], jnp.zeros(3)) @ w


def fori_of_slices(x, y, c, w, s, b):
    def turn(i, total):
        return total - (lax.dynamic_slice_in_dim(y, i, 1)[0] - s) ** 2

    return lax.fori_loop(0, len(y), turn, 0.0)


def while_rows(x, y, c, w, s, b):
    def turn(carry):
        i, total = carry
        return i + 1, total + y[i] * s

    return lax.while_loop(lambda carry: carry[0] < len(y), turn, (0, 0.0))[1]


def python_loop(x, y, c, w, s, b):
    return sum(-((y[i] - s) ** 2) for i in range(len(y)))


def python_reduce(x, y, c, w, s, b):
    return functools.reduce(operator.add, [row * s for row in y])


def in_place(x, y, c, w, s, b):
    sums = jnp.zeros(LEVELS)
    return sums.at[c].add(y) @ b


def censored(x, y, c, w, s, b):
    normal = dist.Normal(x @ w, jnp.exp(s))
    return jnp.where(y > 1, jnp.log1p(-normal.cdf(1.0)), normal.log_prob(y)).sum()


def mixture(x, y, c, w, s, b):
    each = jnp.stack([dist.Normal(w[i], 1.0).log_prob(y) for i in range(3)], -1)
    return jax.nn.logsumexp(each + jax.nn.log_softmax(w)[None], axis=-1).sum()


def zero_inflated(x, y, c, w, s, b):
    rate, gate = jnp.exp(x @ w), jax.nn.sigmoid(s)
    zero = jnp.log(gate + (1 - gate) * jnp.exp(-rate))
    return jnp.where(c == 0, zero, jnp.log1p(-gate) + dist.Poisson(rate).log_prob(c)).sum()


def categorical(x, y, c, w, s, b):
    return jnp.take_along_axis(jax.nn.log_softmax(x @ jnp.outer(w, b)), c[:, None], axis=1).sum()


def normal_of_rows(x, y, c, w, s, b):
    return dist.MultivariateNormal(x @ w, covariance_matrix=jnp.exp(s) * jnp.eye(len(y))).log_prob(y)


def cholesky_by_row(x, y, c, w, s, b):
    cov = jnp.eye(3) * jnp.exp(s) + jnp.outer(w, w)
    return dist.MultivariateNormal(w[None], covariance_matrix=cov[None]).log_prob(x).sum()


ADDS_UP: dict[str, Callable[..., Any]] = {
    "rows": lambda x, y, c, w, s, b: ll(x, y, w),
    "rows by columns": lambda x, y, c, w, s, b: -((x - w[None]) ** 2),
    "columns": lambda x, y, c, w, s, b: -((x - w[None]) ** 2).sum(0),
    "rows last": lambda x, y, c, w, s, b: -((x.T - w[:, None]) ** 2),
    "sum": lambda x, y, c, w, s, b: ll(x, y, w).sum(),
    "vmap": lambda x, y, c, w, s, b: jax.vmap(lambda a, d: -((d - a @ w) ** 2))(x, y).sum(),
    "lax.map": lambda x, y, c, w, s, b: lax.map(lambda row: -((row - s) ** 2), y).sum(),
    "jit": lambda x, y, c, w, s, b: jax.jit(lambda x, y: ll(x, y, w).sum())(x, y),
    "checkpoint": lambda x, y, c, w, s, b: jax.checkpoint(lambda x, y: ll(x, y, w).sum())(x, y),
    "to_event": lambda x, y, c, w, s, b: dist.Normal(x @ w, 1.0).to_event(1).log_prob(y),
    "expand": lambda x, y, c, w, s, b: dist.Normal(s, 1.0).expand([len(y)]).log_prob(y).sum(),
    "regression": regression,
    "sufficient statistics": sufficient,
    "sum of ones": lambda x, y, c, w, s, b: ll(x, y, w).sum() - jnp.ones(len(y)).sum() * w.sum(),
    "shape times": lambda x, y, c, w, s, b: -x.shape[0] * jnp.log1p(s**2),
    "len times": lambda x, y, c, w, s, b: ll(x, y, w).sum() - len(y) * jnp.log1p(s**2),
    "size times": lambda x, y, c, w, s, b: (y * s).sum() + y.size * w[0],
    "half of shape": lambda x, y, c, w, s, b: -0.5 * x.shape[0] * (jnp.log(2 * jnp.pi) + s) - squares(x, y, w).sum(),
    "quadratic form": quadratic,
    "einsum": lambda x, y, c, w, s, b: -jnp.einsum("ij,ik,j,k->", x, x, w, w),
    "dot": lambda x, y, c, w, s, b: -jnp.dot(y - x @ w, y - x @ w),
    "at": lambda x, y, c, w, s, b: -(y - x @ w) @ (y - x @ w),
    "vdot": lambda x, y, c, w, s, b: -jnp.vdot(y - s, y - s),
    "inner": lambda x, y, c, w, s, b: -jnp.inner(y - s, y),
    "tensordot": lambda x, y, c, w, s, b: jnp.tensordot(x, y, axes=(0, 0)) @ w,
    "matmul of columns": lambda x, y, c, w, s, b: ((y[None] @ x) @ w)[0],
    "norm": lambda x, y, c, w, s, b: -(jnp.linalg.norm(y - x @ w) ** 2),
    "norm of a matrix": lambda x, y, c, w, s, b: -(jnp.linalg.norm(x - w[None]) ** 2),
    "norm of rows": lambda x, y, c, w, s, b: -jnp.linalg.norm(x - w[None], axis=1).sum(),
    "trace": lambda x, y, c, w, s, b: -jnp.trace((x - w[None]).T @ (x - w[None])) * jnp.exp(s),
    "trace of an outer product": lambda x, y, c, w, s, b: -jnp.trace(jnp.outer(y - s, y - s)),
    "scan": scan_rows,
    "scan of a pair": scan_pair,
    "scan of outputs": scan_outputs,
    "fori": fori,
    "fori of a vector": fori_vector,
    "fori of slices": fori_of_slices,
    "while": while_rows,
    "loop": python_loop,
    "reduce": python_reduce,
    "lax.reduce": lambda x, y, c, w, s, b: lax.reduce(y * s, 0.0, lax.add, (0,)),
    "cumsum": lambda x, y, c, w, s, b: jnp.cumsum(ll(x, y, w))[-1],
    "cumsum to the last row": lambda x, y, c, w, s, b: jnp.cumsum(y * s)[y.shape[0] - 1],
    "associative scan": lambda x, y, c, w, s, b: lax.associative_scan(jnp.add, y * s)[-1],
    "segment sum": lambda x, y, c, w, s, b: jax.ops.segment_sum(ll(x, y, w), c, LEVELS).sum(),
    "segment sum of effects": lambda x, y, c, w, s, b: jax.ops.segment_sum(y, c, LEVELS) @ b,
    "add in place": in_place,
    "bincount": lambda x, y, c, w, s, b: jnp.bincount(c, length=LEVELS) @ jax.nn.log_softmax(b),
    "weighted bincount": lambda x, y, c, w, s, b: jnp.bincount(c, weights=y, length=LEVELS) @ b,
    "one-hot counts": lambda x, y, c, w, s, b: jax.nn.one_hot(c, LEVELS).sum(0) @ jax.nn.log_softmax(b),
    "one-hot product": lambda x, y, c, w, s, b: (jax.nn.one_hot(c, LEVELS).T @ y) @ b,
    "histogram": lambda x, y, c, w, s, b: jnp.histogram(y, CELLS)[0] @ w,
    "digitize": lambda x, y, c, w, s, b: (b[jnp.digitize(y, CELLS)] * y).sum(),
    "group effects": lambda x, y, c, w, s, b: -((y - b[c]) ** 2).sum(),
    "stack of ones": with_ones(lambda ones, x: jnp.stack([ones, x[:, 0], x[:, 1]], 1)),
    "column stack": with_ones(lambda ones, x: jnp.column_stack([ones, x])),
    "concatenate": with_ones(lambda ones, x: jnp.concatenate([ones[:, None], x], axis=1)),
    "hstack": with_ones(lambda ones, x: jnp.hstack([ones[:, None], x])),
    "vstack": with_ones(lambda ones, x: jnp.vstack([ones[None], x.T]).T),
    "pad": with_ones(lambda ones, x: jnp.pad(x, ((0, 0), (1, 0)), constant_values=1.0)),
    "insert": with_ones(lambda ones, x: jnp.insert(x, 0, 1.0, axis=1)),
    "numpy's ones": with_ones(lambda ones, x: jnp.concatenate([np.ones((len(x), 1), np.float32), x], 1)),
    "polynomial": with_ones(lambda ones, x: jnp.vander(x[:, 0], 3)),
    "logistic": lambda x, y, c, w, s, b: ((y > 0) * (x @ w) - jnp.logaddexp(0.0, x @ w)).sum(),
    "probit": lambda x, y, c, w, s, b: jnp.log(jax.scipy.stats.norm.cdf(jnp.where(y > 0, 1, -1) * (x @ w) / 4)).sum(),
    "poisson": lambda x, y, c, w, s, b: (c * (x @ w) - jnp.exp(x @ w)).sum(),
    "categorical": categorical,
    "zero-inflated": zero_inflated,
    "censored": censored,
    "mixture": mixture,
    "student": lambda x, y, c, w, s, b: dist.StudentT(4.0, x @ w, jnp.exp(s)).log_prob(y).sum(),
    "horseshoe of columns": lambda x, y, c, w, s, b: dist.Normal(x @ (w * jnp.exp(s)), 1.0).log_prob(y).sum(),
    "rows of a normal": cholesky_by_row,
    "sum where": lambda x, y, c, w, s, b: jnp.sum(ll(x, y, w), where=y > 0),
    "nansum": lambda x, y, c, w, s, b: jnp.nansum(jnp.where(y > 1, jnp.nan, y * s)),
    "masked": lambda x, y, c, w, s, b: (jnp.where(y > 0, 1.0, 0.0) * ll(x, y, w)).sum(),
    "sum of the sorted": lambda x, y, c, w, s, b: jnp.sort(ll(x, y, w)).sum(),
    "sum of the reversed": lambda x, y, c, w, s, b: ll(x, y, w)[::-1].sum(),
    "in order of another": lambda x, y, c, w, s, b: ll(x, y, w)[jnp.argsort(y)].sum(),
    "log of a product": lambda x, y, c, w, s, b: -jnp.log(jnp.prod(1.0 + 0.01 * squares(x, y, w))),
    "determinant": lambda x, y, c, w, s, b: -jnp.linalg.slogdet(jnp.diag(1.0 + squares(x, y, w)))[1],
    "normal of all rows": normal_of_rows,
    "cond": lambda x, y, c, w, s, b: lax.cond(s > 0, lambda: ll(x, y, w).sum(), lambda: -(y * w[1]).sum()),
    "columns in a scan": lambda x, y, c, w, s, b: lax.scan(lambda t, col: (t - (col * s).sum(), None), 0.0, x.T)[0],
    "reshaped": lambda x, y, c, w, s, b: -((x.reshape(-1) - s) ** 2).sum(),
    "split": lambda x, y, c, w, s, b: sum((part[:, 0] * w[i]).sum() for i, part in enumerate(jnp.split(x, 3, 1))),
}
"""Factors that add up over rows."""


def standardised(x, y, c, w, s, b):
    centre = lax.pmean(x.mean(0), "data")[None]
    spread = lax.pmean(((x - centre) ** 2).mean(0), "data")[None]
    return ll((x - centre) / jnp.sqrt(spread), y, w).sum()


def less_the_mean_by_number(x, y, c, w, s, b):
    centre = lax.psum(x.sum(0), "data") / lax.psum(x.shape[0], "data")
    return ll(x - centre[None], y, w)


def log_of_all(x, y, c, w, s, b):
    return jnp.log(lax.psum(jnp.exp(x @ w).sum(), "data"))


def normalised_by_all(x, y, c, w, s, b):
    most = lax.pmax(lax.stop_gradient(x @ w).max(), "data")
    return (x @ w - most - jnp.log(lax.psum(jnp.exp(x @ w - most).sum(), "data"))).sum()


OVER_DEVICES: dict[str, Callable[..., Any]] = {
    "psum": lambda x, y, c, w, s, b: lax.psum(ll(x, y, w).sum(), "data"),
    "pmean": lambda x, y, c, w, s, b: lax.pmean(ll(x, y, w).mean(), "data"),
    "less the pmean": lambda x, y, c, w, s, b: ll(x - lax.pmean(x.mean(0), "data")[None], y, w).sum(),
    "rows less the pmean": lambda x, y, c, w, s, b: ll(x - lax.pmean(x.mean(0), "data")[None], y, w),
    "less the psum by its number": less_the_mean_by_number,
    "by the pmax": lambda x, y, c, w, s, b: ll(x / lax.pmax(jnp.abs(x).max(0), "data")[None], y, w).sum(),
    "less the pmin": lambda x, y, c, w, s, b: ll(x - lax.pmin(x.min(0), "data")[None], y, w).sum(),
    "standardised": standardised,
    "square of the psum": lambda x, y, c, w, s, b: -(lax.psum((y - x @ w).sum(), "data") ** 2),
    "log of the psum": log_of_all,
    "softmax by the psum": normalised_by_all,
    "gram by the psum": lambda x, y, c, w, s, b: -jnp.linalg.slogdet(lax.psum(x.T @ x, "data") + jnp.eye(3))[1] * s,
    "log of the number of all": lambda x, y, c, w, s, b: -jnp.log(lax.psum(len(y), "data")) * s**2 - w[1] ** 2,
    "number of all": lambda x, y, c, w, s, b: -lax.psum(len(y), "data") * jnp.log1p(w @ w),
    "rows by the pmax": lambda x, y, c, w, s, b: ll(x / lax.pmax(jnp.abs(x).max(0), "data")[None], y, w),
    "gathered": lambda x, y, c, w, s, b: -((lax.all_gather(y, "data", tiled=True) - s) ** 2).sum(),
}
"""Factors with sums and other collectives over devices: each sees all rows, as on one device."""


def smoothed(x, y, c, w, s, b):
    def turn(level, row):
        return 0.5 * level + 0.5 * row, -((row - level - s) ** 2)

    return lax.scan(turn, 0.0, y)[1].sum()


def hidden_states(x, y, c, w, s, b):
    move = jax.nn.log_softmax(jnp.outer(w, w))

    def turn(state, row):
        return jax.nn.logsumexp(state[:, None] + move, 0) - (row - w) ** 2, None

    return jax.nn.logsumexp(lax.scan(turn, jnp.zeros(3), y)[0])


def gaussian_process(x, y, c, w, s, b):
    near = jnp.exp(-0.5 * (x[:, :1] - x[:, 0][None]) ** 2) + (1 + jnp.exp(s)) * jnp.eye(len(y))
    return dist.MultivariateNormal(0.0, covariance_matrix=near).log_prob(y)


MIXES: dict[str, Callable[..., Any]] = {
    "mean": lambda x, y, c, w, s, b: ll(x, y, w).mean(),
    "less the mean": lambda x, y, c, w, s, b: ll(x - x.mean(0)[None], y, w).sum(),
    "standard scores": lambda x, y, c, w, s, b: (((y - y.mean()) / y.std()) * s).sum() + (x @ w).std(),
    "variance": lambda x, y, c, w, s, b: -jnp.var(y - x @ w),
    "log of a sum": lambda x, y, c, w, s, b: jax.nn.logsumexp(x @ w),
    "softmax over rows": lambda x, y, c, w, s, b: (jax.nn.log_softmax(x @ w) * y).sum(),
    "square of a sum": lambda x, y, c, w, s, b: -((y - x @ w).sum() ** 2),
    "square of the mean": lambda x, y, c, w, s, b: -len(y) * (y.mean() - s) ** 2,
    "maximum": lambda x, y, c, w, s, b: -jnp.abs(y - x @ w).max(),
    "median": lambda x, y, c, w, s, b: -jnp.abs(jnp.median(y) - s),
    "quantile": lambda x, y, c, w, s, b: -jnp.abs(jnp.quantile(y - x @ w, 0.9)),
    "log of the number": lambda x, y, c, w, s, b: -jnp.log(x.shape[0] + 0.0) * s**2,
    "by the number": lambda x, y, c, w, s, b: ll(x, y, w).sum() / x.shape[0],
    "differences": lambda x, y, c, w, s, b: -((jnp.diff(y) - s) ** 2).sum(),
    "autoregression": lambda x, y, c, w, s, b: dist.Normal(s * y[:-1], 1.0).log_prob(y[1:]).sum(),
    "random walk of rows": lambda x, y, c, w, s, b: -((jnp.cumsum(y) * s) ** 2).sum(),
    "smoothed": smoothed,
    "hidden states": hidden_states,
    "gaussian process": gaussian_process,
    "convolution": lambda x, y, c, w, s, b: -(jnp.convolve(y, w, mode="same") ** 2).sum(),
    "correlation": lambda x, y, c, w, s, b: jnp.corrcoef(x @ w, y)[0, 1],
    "covariance": lambda x, y, c, w, s, b: -jnp.linalg.slogdet(jnp.cov(x.T) + jnp.exp(s) * jnp.eye(3))[1],
    "least squares": lambda x, y, c, w, s, b: -((jnp.linalg.solve(x.T @ x, x.T @ y) - w) ** 2).sum(),
    "norm without a square": lambda x, y, c, w, s, b: -jnp.linalg.norm(y - x @ w),
    "group means": lambda x, y, c, w, s, b: (
        -((jax.ops.segment_sum(y, c, LEVELS) / jnp.maximum(jnp.bincount(c, length=LEVELS), 1) - b) ** 2).sum()
    ),
    "weighted average": lambda x, y, c, w, s, b: -((jnp.average(y, weights=jnp.exp(x @ w)) - s) ** 2),
    "ranks": lambda x, y, c, w, s, b: (jnp.argsort(jnp.argsort(y)) * (x @ w)).sum() * 0.01,
    "pairs": lambda x, y, c, w, s, b: -jnp.abs((x @ w)[:, None] - (x @ w)[None]).sum() * 0.01,
    "first row": lambda x, y, c, w, s, b: -((y[0] - s) ** 2),
    "last row": lambda x, y, c, w, s, b: -((y[-1] - s) ** 2),
}
"""Factors that mix rows, or depend on their number."""
