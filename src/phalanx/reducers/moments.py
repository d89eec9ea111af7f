"""Count, mean and variance; the extremes."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx.reducers.reducer import Reducer, on_host
from phalanx.reducers.shifted import at_lanes, begin_at, grand


class Moments(NamedTuple):
    """Draws counted, their mean and their variance (with one degree of freedom less), in the shape of the variable."""

    count: int
    mean: np.ndarray
    variance: np.ndarray


class Sums(NamedTuple):
    """Of each chain: draws, and sums of deviations from an origin and of their squares."""

    count: Any
    origin: Any
    deviations: Any
    squares: Any

    @classmethod
    def none(cls, example: Array) -> Sums:
        """Of no draws."""
        zero = jnp.zeros(example.shape, jnp.promote_types(example.dtype, jnp.float32))
        return cls(jnp.zeros(example.shape[0], jnp.int32), zero, zero, zero)

    def add(self, draw: Array, where: Array) -> Sums:
        """With a draw of those chains `where` there is one."""
        draw = draw.astype(self.origin.dtype)
        origin = begin_at(self.origin, self.count, draw)
        away = jnp.where(at_lanes(where, draw), draw - origin, 0.0)
        return Sums(self.count + where, origin, self.deviations + away, self.squares + away * away)

    def merge(self, later: Sums) -> Sums:
        """With later draws of the same chains; in float64."""
        a, b = on_host(self), on_host(later)
        origin = np.where(_column(a.count, a.origin) > 0, a.origin, b.origin)
        a, b = a.about(origin), b.about(origin)
        return Sums(a.count + b.count, origin, a.deviations + b.deviations, a.squares + b.squares)

    def about(self, origin: np.ndarray) -> Sums:
        """The same about another origin."""
        count = _column(self.count, origin)
        shift = np.where(count > 0, self.origin - origin, 0.0)
        squares = self.squares + shift * (2 * self.deviations + count * shift)
        return Sums(self.count, origin, self.deviations + count * shift, squares)

    def chain_means(self) -> np.ndarray:
        """Mean of each chain."""
        return self.origin + self.deviations / np.maximum(_column(self.count, self.origin), 1)

    def chain_squares(self) -> np.ndarray:
        """Of each chain, the sum of squared deviations from its mean."""
        count = np.maximum(_column(self.count, self.origin), 1)
        return np.maximum(self.squares - self.deviations**2 / count, 0.0)


def _column(count: np.ndarray, like: np.ndarray) -> np.ndarray:
    return count.reshape(count.shape + (1,) * (like.ndim - 1))


def moments() -> Reducer:
    r"""Count, mean and variance over all chains.

    Sums $\sum (x - o)$ and $\sum (x - o)^2$ about each chain's first draw $o$ of a block, merged in float64.

    Returns:
        A reducer; its result is a `Moments(count, mean, variance)`.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(0.0, 1.0))
        >>> posterior = phx.mcmc(model, keep=[], reducers={"m": phx.reducers.moments()}, progress=False)
        >>> posterior.reduced["m"]["x"].count
        4000

    Source:
        Chan, Golub, LeVeque (1983), Algorithms for computing the sample variance.
    """
    return Reducer("moments()", Sums.none, Sums.add, Sums.merge, moments_of)


def moments_of(state: Sums) -> Moments:
    """Of the draws of all chains."""
    sums = Sums(*on_host(state))
    means = sums.chain_means()
    total, mean = grand(sums.count, means)
    between = np.tensordot(sums.count, (means - mean) ** 2, axes=1)
    squares = sums.chain_squares().sum(0) + between
    return Moments(int(total), mean, squares / (total - 1) if total > 1 else np.full_like(mean, np.nan))


class Extremes(NamedTuple):
    """The smallest and the largest value."""

    least: Any
    most: Any


def extremes() -> Reducer:
    """The smallest and the largest value over all chains.

    Returns:
        A reducer; its result is an `Extremes(least, most)`.

    Example:
        >>> import phalanx as phx
        >>> phx.reducers.extremes()
        extremes()
    """
    return Reducer("extremes()", _no_extremes, _more_extreme, _wider, _widest)


def _no_extremes(example: Array) -> Extremes:
    infinite = jnp.full(example.shape, jnp.inf, jnp.promote_types(example.dtype, jnp.float32))
    return Extremes(infinite, -infinite)


def _more_extreme(state: Extremes, draw: Array, where: Array) -> Extremes:
    here = at_lanes(where, draw)
    least, most = jnp.minimum(state.least, draw), jnp.maximum(state.most, draw)
    return Extremes(jnp.where(here, least, state.least), jnp.where(here, most, state.most))


def _wider(a: Extremes, b: Extremes) -> Extremes:
    return Extremes(np.minimum(a.least, b.least), np.maximum(a.most, b.most))


def _widest(state: Extremes) -> Extremes:
    return Extremes(np.min(state.least, axis=0), np.max(state.most, axis=0))
