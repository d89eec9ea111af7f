"""Reducer of the covariance matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx.mesh.specs import PyTree
from phalanx.reducers.reducer import Reducer, on_host
from phalanx.reducers.shifted import add_to, at_lanes, begin_at, first_scale, grand, half_distance, lowered, sum_type

if TYPE_CHECKING:
    from jaxtyping import Bool, Shaped


class Covariance(NamedTuple):
    """Number of draws, their mean `(size,)` and covariance `(size, size)`, of a variable flattened to one dimension."""

    count: int
    mean: np.ndarray
    covariance: np.ndarray


class Products(NamedTuple):
    """State on the device, by chain: as for `moments()`, with products of distances from the mean for squares."""

    count: Any
    anchor: Any
    scale: Any
    mean: Any
    mean_lost: Any
    products: Any
    products_lost: Any


class ProductTotals(NamedTuple):
    """State on the host, by chain and in float64: draws, their mean, and products of distances from it."""

    count: np.ndarray
    mean: np.ndarray
    products: np.ndarray

    @classmethod
    def of(cls, state: PyTree) -> ProductTotals:
        """Return the state of a batch of draws."""
        if isinstance(state, ProductTotals):
            return state
        sums = Products(*on_host(state))
        mean = sums.anchor.astype(np.float64) + (sums.mean + sums.mean_lost) / sums.scale
        products = (sums.products + sums.products_lost) / sums.scale[:, :, None] / sums.scale[:, None, :]
        return cls(sums.count, np.where(sums.count[:, None] > 0, mean, 0.0), products)


def covariance() -> Reducer:
    r"""Return a reducer of count, mean and covariance over all chains.

    Errors are those of `moments()`; for a covariance, below 1e-6 of the product of the standard deviations.

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


def _none(example: Shaped[Array, "chains *shape"]) -> Products:
    chains = example.shape[0]
    size = int(np.prod(example.shape[1:], dtype=int))
    draw = example.reshape(chains, size)
    zero = jnp.zeros((chains, size), sum_type(example.dtype))
    products = jnp.zeros((chains, size, size), zero.dtype)
    return Products(
        jnp.zeros(chains, jnp.int32), jnp.zeros_like(draw), first_scale(draw), zero, zero, products, products
    )


def _add(state: Products, draw: Shaped[Array, "chains *shape"], where: Bool[Array, "chains"]) -> Products:
    draw = draw.reshape(state.anchor.shape)
    anchor = begin_at(state.anchor, state.count, draw)
    here = at_lanes(where, draw)
    count = state.count + where
    half = half_distance(draw, anchor)
    sums = (state.mean, state.mean_lost, state.products, state.products_lost)
    scale, (mean, mean_lost, products, products_lost) = lowered(state.scale, half, here, sums, _rescaled)
    away = jnp.where(here, (half * (2 * scale) - mean) - mean_lost, 0.0)
    step = away / jnp.maximum(count, 1)[:, None].astype(away.dtype)
    return Products(
        count,
        anchor,
        scale,
        *add_to(mean, mean_lost, step),
        *add_to(products, products_lost, away[:, :, None] * (away - step)[:, None, :]),
    )


def _rescaled(sums: tuple[Array, ...], change: Array) -> tuple[Array, ...]:
    mean, mean_lost, products, products_lost = sums
    rows = change[:, :, None]
    columns = change[:, None, :]
    return mean * change, mean_lost * change, products * rows * columns, products_lost * rows * columns


def _merge(a: PyTree, b: PyTree) -> ProductTotals:
    a = ProductTotals.of(a)
    b = ProductTotals.of(b)
    count = a.count + b.count
    fraction = b.count / np.maximum(count, 1)
    apart = b.mean - a.mean
    between = apart[:, :, None] * apart[:, None, :] * (a.count * fraction)[:, None, None]
    return ProductTotals(count, a.mean + fraction[:, None] * apart, a.products + b.products + between)


def _finalize(state: PyTree) -> Covariance:
    sums = ProductTotals.of(state)
    total, mean = grand(sums.count, sums.mean)
    away = sums.mean - mean
    squares = sums.products.sum(0)
    squares += np.einsum("c,ci,cj->ij", sums.count.astype(np.float64), away, away)
    squares = (squares + squares.T) / 2  # rounding leaves it slightly asymmetric
    return Covariance(int(total), mean, squares / (total - 1) if total > 1 else np.full_like(squares, np.nan))
