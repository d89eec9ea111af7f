"""The covariance matrix."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx.reducers.reducer import Reducer, on_host
from phalanx.reducers.shifted import at_lanes, begin_at, grand


class Covariance(NamedTuple):
    """Draws counted, their mean `(size,)` and covariance `(size, size)`; a variable of any shape is taken as flat."""

    count: int
    mean: np.ndarray
    covariance: np.ndarray


class Products(NamedTuple):
    """Of each chain: draws, sums of deviations from an origin `(chains, size)`, and of their products."""

    count: Any
    origin: Any
    deviations: Any
    products: Any


def covariance() -> Reducer:
    r"""Count, mean and covariance over all chains.

    Returns:
        A reducer; its result is a `Covariance(count, mean, covariance)`.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(0.0, 1.0).expand([2]))
        >>> reducers = {"c": phx.reducers.covariance()}
        >>> posterior = phx.mcmc(model, keep=[], reducers=reducers, num_samples=500, progress=False)
        >>> posterior.reduced["c"]["x"].covariance.shape
        (2, 2)

    Source:
        Chan, Golub, LeVeque (1983), Algorithms for computing the sample variance.
    """
    return Reducer("covariance()", _none, _add, _merge, _finalize)


def _none(example: Array) -> Products:
    chains, size = example.shape[0], int(np.prod(example.shape[1:], dtype=int))
    zero = jnp.zeros((chains, size), jnp.promote_types(example.dtype, jnp.float32))
    return Products(jnp.zeros(chains, jnp.int32), zero, zero, jnp.zeros((chains, size, size), zero.dtype))


def _add(state: Products, draw: Array, where: Array) -> Products:
    draw = draw.reshape(state.origin.shape).astype(state.origin.dtype)
    origin = begin_at(state.origin, state.count, draw)
    away = jnp.where(at_lanes(where, draw), draw - origin, 0.0)
    products = state.products + away[:, :, None] * away[:, None, :]
    return Products(state.count + where, origin, state.deviations + away, products)


def _merge(a: Products, b: Products) -> Products:
    a, b = Products(*on_host(a)), Products(*on_host(b))
    origin = np.where(a.count[:, None] > 0, a.origin, b.origin)
    a, b = _about(a, origin), _about(b, origin)
    return Products(a.count + b.count, origin, a.deviations + b.deviations, a.products + b.products)


def _about(state: Products, origin: np.ndarray) -> Products:
    count = state.count[:, None]
    shift = np.where(count > 0, state.origin - origin, 0.0)
    deviations = state.deviations + count * shift
    products = (
        state.products
        + shift[:, :, None] * state.deviations[:, None, :]
        + state.deviations[:, :, None] * shift[:, None, :]
        + count[:, :, None] * shift[:, :, None] * shift[:, None, :]
    )
    return Products(state.count, origin, deviations, products)


def _finalize(state: Products) -> Covariance:
    state = Products(*on_host(state))
    count = np.maximum(state.count, 1)[:, None]
    means = state.origin + state.deviations / count
    total, mean = grand(state.count, means)
    within = state.products - state.deviations[:, :, None] * state.deviations[:, None, :] / count[:, :, None]
    away = means - mean
    squares = within.sum(0) + np.einsum("c,ci,cj->ij", state.count.astype(np.float64), away, away)
    return Covariance(int(total), mean, squares / (total - 1) if total > 1 else np.full_like(squares, np.nan))
