"""Reducer of the covariance matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx.reducers.reducer import Reducer, on_host
from phalanx.reducers.shifted import add_to, at_lanes, begin_at, distance, grand, sum_type

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64, Shaped


class Covariance(NamedTuple):
    """Number of draws, their mean `(size,)` and covariance `(size, size)`, of a variable flattened to one dimension."""

    count: int
    mean: np.ndarray
    covariance: np.ndarray


class Products(NamedTuple):
    """State by chain: draws, their anchor and mean as for `moments()`, and products of distances from the mean."""

    count: Any
    anchor: Any
    mean: Any
    mean_lost: Any
    products: Any
    products_lost: Any

    @property
    def chain_means(self) -> Float64[np.ndarray, "chains size"]:
        """Mean of each chain, of a state on the host; zero for a chain without draws."""
        mean = self.anchor.astype(np.float64) + (self.mean + self.mean_lost)
        return np.where(self.count[:, None] > 0, mean, 0.0)


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
    chains, size = example.shape[0], int(np.prod(example.shape[1:], dtype=int))
    dtype = sum_type(example.dtype)
    anchor, mean = jnp.zeros((chains, size), example.dtype), jnp.zeros((chains, size), dtype)
    products = jnp.zeros((chains, size, size), dtype)
    return Products(jnp.zeros(chains, jnp.int32), anchor, mean, mean, products, products)


def _add(state: Products, draw: Shaped[Array, "chains *shape"], where: Bool[Array, "chains"]) -> Products:
    draw = draw.reshape(state.anchor.shape)
    anchor = begin_at(state.anchor, state.count, draw)
    count = state.count + where
    away = jnp.where(at_lanes(where, draw), (distance(draw, anchor) - state.mean) - state.mean_lost, 0.0)
    step = away / jnp.maximum(count, 1)[:, None].astype(away.dtype)
    return Products(
        count, anchor,
        *add_to(state.mean, state.mean_lost, step),
        *add_to(state.products, state.products_lost, away[:, :, None] * (away - step)[:, None, :]),
    )  # fmt: skip


def _merge(a: Products, b: Products) -> Products:
    a, b = Products(*on_host(a)), Products(*on_host(b))
    count = a.count + b.count
    share, mean, apart = b.count / np.maximum(count, 1), a.chain_means, b.chain_means - a.chain_means
    between = apart[:, :, None] * apart[:, None, :] * (a.count * share)[:, None, None]
    products = a.products + a.products_lost + b.products + b.products_lost + between
    zero = np.zeros_like(mean)
    return Products(count, mean + share[:, None] * apart, zero, zero, products, np.zeros_like(products))


def _finalize(state: Products) -> Covariance:
    state = Products(*on_host(state))
    total, mean = grand(state.count, state.chain_means)
    away = state.chain_means - mean
    squares = (state.products + state.products_lost).sum(0)
    squares += np.einsum("c,ci,cj->ij", state.count.astype(np.float64), away, away)
    squares = (squares + squares.T) / 2  # rounding leaves it slightly asymmetric
    return Covariance(int(total), mean, squares / (total - 1) if total > 1 else np.full_like(squares, np.nan))
