"""Reducers of count, mean and variance, and of extremes."""

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


class Moments(NamedTuple):
    """Number of draws, their mean and their variance (with n - 1), in the shape of the variable."""

    count: int
    mean: np.ndarray
    variance: np.ndarray


class ChainSums(NamedTuple):
    """State on the device, by chain: draws, their anchor, their mean less the anchor, squared distances from the mean.

    Mean and squares are sums in two floats, of distances multiplied by the scale.
    """

    count: Any
    anchor: Any
    scale: Any
    mean: Any
    mean_lost: Any
    squares: Any
    squares_lost: Any

    @classmethod
    def none(cls, example: Shaped[Array, "chains *shape"]) -> ChainSums:
        """Return the state of no draws."""
        zero = jnp.zeros(example.shape, sum_type(example.dtype))
        anchor = jnp.zeros(example.shape, example.dtype)
        return cls(jnp.zeros(example.shape[0], jnp.int32), anchor, first_scale(example), zero, zero, zero, zero)

    def add(self, draw: Shaped[Array, "chains *shape"], where: Bool[Array, "chains"]) -> ChainSums:
        """Add a draw of the chains that are true in `where`."""
        anchor, here = begin_at(self.anchor, self.count, draw), at_lanes(where, draw)
        count, half = self.count + where, half_distance(draw, anchor)
        sums = (self.mean, self.mean_lost, self.squares, self.squares_lost)
        scale, (mean, mean_lost, squares, squares_lost) = lowered(self.scale, half, here, sums, _rescaled)
        away = jnp.where(here, (half * (2 * scale) - mean) - mean_lost, 0.0)
        step = away / at_lanes(jnp.maximum(count, 1), draw).astype(away.dtype)
        return ChainSums(
            count, anchor, scale,
            *add_to(mean, mean_lost, step),
            *add_to(squares, squares_lost, away * (away - step)),
        )  # fmt: skip

    def merge(self, later: PyTree) -> Totals:
        """Return the state with later draws of the same chains."""
        return Totals.of(self).merge(later)


def _rescaled(sums: tuple[Array, ...], change: Array) -> tuple[Array, ...]:
    mean, mean_lost, squares, squares_lost = sums
    # the square of the change may underflow
    return mean * change, mean_lost * change, squares * change * change, squares_lost * change * change


class Totals(NamedTuple):
    """State on the host, by chain and in float64: draws, their mean, and the sum of squared distances from it."""

    count: np.ndarray
    mean: np.ndarray
    squares: np.ndarray

    @classmethod
    def of(cls, state: PyTree) -> Totals:
        """Return the state of a batch of draws."""
        if isinstance(state, Totals):
            return state
        sums = ChainSums(*on_host(state))
        mean = sums.anchor.astype(np.float64) + (sums.mean + sums.mean_lost) / sums.scale
        drawn = column(sums.count, mean) > 0  # the anchor of a chain that has not drawn is no draw
        return cls(sums.count, np.where(drawn, mean, 0.0), (sums.squares + sums.squares_lost) / sums.scale / sums.scale)

    def merge(self, later: PyTree) -> Totals:
        """Return the state with later draws of the same chains."""
        later = Totals.of(later)
        count, apart = self.count + later.count, later.mean - self.mean
        fraction = column(later.count / np.maximum(count, 1), apart)
        squares = self.squares + later.squares + apart**2 * column(self.count, apart) * fraction
        return Totals(count, self.mean + fraction * apart, squares)


def constant_of(state: PyTree) -> np.bool_ | Bool[np.ndarray, "*shape"]:
    """Return a mask of elements that were the same in every draw of all chains, and finite."""
    chains = Totals.of(state)
    same = (chains.squares == 0) & (chains.mean == chains.mean[:1]) & np.isfinite(chains.mean)
    return same.all(0) & (chains.count.min() > 0)


def column(count: Shaped[np.ndarray, "*chains"], like: np.ndarray) -> np.ndarray:
    """Return one number of every chain, shaped to broadcast against that chain's elements."""
    return count.reshape(count.shape + (1,) * (like.ndim - count.ndim))


def moments() -> Reducer:
    r"""Return a reducer of count, mean and variance over all chains.

    The mean is updated draw by draw, $m \leftarrow m + (x - m) / n$, as is the sum of squared distances from it, in two
    floats each; batches of draws are merged in float64. For draws in any order, of any mean and size, and with outliers
    first or last, the relative error of the variance is below 1e-6, and the error of the mean below 1e-6 standard
    deviations. Both are NaN where a draw is not finite.

    Returns:
        A reducer; its result is a `Moments(count, mean, variance)`.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(0.0, 1.0))
        >>> posterior = phx.mcmc(model, keep=[], reducers={"m": phx.reducers.moments()}, progress=False)
        >>> posterior.reduced["m"]["x"].count
        4000

    Source:
        Welford (1962), Note on a method for calculating corrected sums of squares and products; Chan, Golub, LeVeque
        (1983), Algorithms for computing the sample variance; Knuth (1997), The art of computer programming 2, 4.2.2.
    """
    return Reducer("moments()", ChainSums.none, ChainSums.add, ChainSums.merge, moments_of)


def moments_of(state: PyTree) -> Moments:
    """Return the moments of the draws of all chains."""
    chains = Totals.of(state)
    total, mean = grand(chains.count, chains.mean)
    between = np.tensordot(chains.count, (chains.mean - mean) ** 2, axes=1)
    squares = chains.squares.sum(0) + between
    return Moments(int(total), mean, squares / (total - 1) if total > 1 else np.full_like(mean, np.nan))


class Extremes(NamedTuple):
    """Smallest and largest value."""

    least: Any
    most: Any


def extremes() -> Reducer:
    """Return a reducer of the smallest and the largest value over all chains; NaN where a draw is NaN.

    Returns:
        A reducer; its result is an `Extremes(least, most)`, in the type of the draws.

    Example:
        >>> import phalanx as phx
        >>> phx.reducers.extremes()
        extremes()
    """
    return Reducer("extremes()", _no_extremes, _more_extreme, _wider, _widest)


def _no_extremes(example: Shaped[Array, "chains *shape"]) -> Extremes:
    sum_type(example.dtype)
    if jnp.issubdtype(example.dtype, jnp.floating):
        least, most = jnp.inf, -jnp.inf
    elif example.dtype == jnp.bool_:
        least, most = True, False
    else:
        least, most = jnp.iinfo(example.dtype).max, jnp.iinfo(example.dtype).min
    return Extremes(*(jnp.full(example.shape, value, example.dtype) for value in (least, most)))


def _more_extreme(state: Extremes, draw: Shaped[Array, "chains *shape"], where: Bool[Array, "chains"]) -> Extremes:
    here = at_lanes(where, draw)
    least, most = jnp.minimum(state.least, draw), jnp.maximum(state.most, draw)
    return Extremes(jnp.where(here, least, state.least), jnp.where(here, most, state.most))


def _wider(a: Extremes, b: Extremes) -> Extremes:
    return Extremes(np.minimum(a.least, b.least), np.maximum(a.most, b.most))


def _widest(state: Extremes) -> Extremes:
    return Extremes(np.min(state.least, axis=0), np.max(state.most, axis=0))
