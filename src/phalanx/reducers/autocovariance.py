"""Autocovariances up to a lag."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx.reducers.reducer import Reducer, on_host
from phalanx.reducers.shifted import at_lanes, begin_at


class Lagged(NamedTuple):
    """Of each chain: draws, an origin, sums of deviations from it, and of products of those up to `lags` draws apart.

    `first` are the first draws and `last` the last, the newest first, `(chains, lags, ...)`: what joins two stretches
    of a chain.
    """

    count: Any
    origin: Any
    deviations: Any
    products: Any
    first: Any
    last: Any


def autocovariance(lags: int) -> Reducer:
    r"""Autocovariances $\gamma_k = \frac1n \sum_t (x_t - \bar x)(x_{t+k} - \bar x)$, averaged over chains.

    $\bar x$ is the mean of all chains.

    Args:
        lags: the largest lag.

    Returns:
        A reducer; its result is an array `(lags + 1, ...)`, beginning with the variance.

    Raises:
        ValueError: when `lags` is no whole number of at least 1.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(0.0, 1.0))
        >>> reducers = {"a": phx.reducers.autocovariance(3)}
        >>> posterior = phx.mcmc(model, keep=[], reducers=reducers, num_samples=500, progress=False)
        >>> posterior.reduced["a"]["x"].shape
        (4,)
    """
    if not isinstance(lags, int) or lags < 1:
        raise ValueError(f"autocovariance: lags must be a whole number of at least 1, got {lags!r}.")
    return Reducer(f"autocovariance({lags})", _None(lags), _add, _merge, _finalize)


class _None(NamedTuple):
    lags: int

    def __call__(self, example: Array) -> Lagged:
        chains, rest = example.shape[0], example.shape[1:]
        dtype = jnp.promote_types(example.dtype, jnp.float32)
        zero, rows = jnp.zeros(example.shape, dtype), jnp.zeros((chains, self.lags, *rest), dtype)
        products = jnp.zeros((chains, self.lags + 1, *rest), dtype)
        return Lagged(jnp.zeros(chains, jnp.int32), zero, zero, products, rows, rows)


def _add(state: Lagged, draw: Array, where: Array) -> Lagged:
    lags = state.last.shape[1]
    draw = draw.astype(state.origin.dtype)
    origin = begin_at(state.origin, state.count, draw)
    here, away = at_lanes(where, draw), jnp.where(at_lanes(where, draw), draw - origin, 0.0)
    numbers = jnp.arange(lags).reshape(1, -1, *[1] * (draw.ndim - 1))
    count = at_lanes(state.count, state.last)
    before = jnp.where(numbers < count, state.last - origin[:, None], 0.0)
    products = state.products + away[:, None] * jnp.concatenate([away[:, None], before], axis=1)
    first = jnp.where((numbers == count) & here[:, None], draw[:, None], state.first)
    last = jnp.where(here[:, None], jnp.concatenate([draw[:, None], state.last[:, :-1]], axis=1), state.last)
    return Lagged(state.count + where, origin, state.deviations + away, products, first, last)


def _merge(a: Lagged, b: Lagged) -> Lagged:
    a, b = Lagged(*on_host(a)), Lagged(*on_host(b))
    origin = np.where(_wide(a.count, a.origin) > 0, a.origin, b.origin)
    a, b = _about(a, origin), _about(b, origin)
    products = a.products + b.products
    lags = a.last.shape[1]
    for lag in range(1, lags + 1):  # pairs of which one is in a and one in b
        for j in range(lag):
            pair = (a.last[:, lag - 1 - j] - origin) * (b.first[:, j] - origin)
            both = (lag - 1 - j < a.count) & (j < b.count)
            products[:, lag] += np.where(_wide(both, pair), pair, 0.0)
    first = _then(a.first, a.count, b.first)
    last = _then(b.last, b.count, a.last)
    return Lagged(a.count + b.count, origin, a.deviations + b.deviations, products, first, last)


def _then(rows: np.ndarray, count: np.ndarray, more: np.ndarray) -> np.ndarray:
    """The first `count` of `rows`, and then those of `more`."""
    both = np.concatenate([rows, more], axis=1)
    numbers = np.arange(rows.shape[1])[None]
    chosen = np.where(
        numbers < count[:, None], numbers, rows.shape[1] + numbers - np.minimum(count, rows.shape[1])[:, None]
    )
    return np.take_along_axis(both, chosen.reshape(*chosen.shape, *[1] * (rows.ndim - 2)), axis=1)


def _about(state: Lagged, origin: np.ndarray) -> Lagged:
    """The same about another origin."""
    shift = np.where(_wide(state.count, origin) > 0, state.origin - origin, 0.0)
    products = state.products + shift[:, None] * (_ends(state) + _pairs(state) * shift[:, None])
    deviations = state.deviations + _wide(state.count, shift) * shift
    return Lagged(state.count, origin, deviations, products, state.first, state.last)


def _pairs(state: Lagged) -> np.ndarray:
    """Pairs of draws at each lag."""
    lags = np.arange(state.last.shape[1] + 1)
    return _wide(np.maximum(state.count[:, None] - lags, 0), state.products)


def _ends(state: Lagged) -> np.ndarray:
    """For each lag, the sum of deviations over both members of all pairs."""
    lags = state.last.shape[1]
    left_out = [np.zeros_like(state.origin)]
    for lag in range(lags):
        known = _wide(lag < state.count, state.origin)
        ends = state.first[:, lag] + state.last[:, lag] - 2 * state.origin
        left_out.append(left_out[-1] + np.where(known, ends, 0.0))
    ends = 2 * state.deviations[:, None] - np.stack(left_out, axis=1)
    return np.where(_pairs(state) > 0, ends, 0.0)


def _wide(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    return values.reshape(values.shape + (1,) * (like.ndim - values.ndim))


def _finalize(state: Lagged) -> np.ndarray:
    state = Lagged(*on_host(state))
    means = state.origin + state.deviations / np.maximum(_wide(state.count, state.origin), 1)
    mean = np.tensordot(state.count / max(state.count.sum(), 1), means, axes=1)
    about = _about(state, np.broadcast_to(mean, state.origin.shape))
    return about.products.sum(0) / max(state.count.sum(), 1)
