"""Reducers of count, mean and variance, of R-hat on the draws themselves (not on ranks), and of extremes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx.mesh.specs import PyTree
from phalanx.reducers.reducer import Partial, Reducer, on_host
from phalanx.reducers.shifted import add_to, at_lanes, begin_at, first_scale, grand, half_distance, lowered, sum_type

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64, Shaped


class Moments(NamedTuple):
    """Number of draws, their mean and their variance (with n - 1), in the shape of the variable."""

    count: int
    mean: np.ndarray
    variance: np.ndarray


class ChainSums(NamedTuple):
    """State on the device, by chain: count, anchor, mean minus the anchor, and squared deviations from the mean.

    Mean and squared deviations are sums in two floats, of distances multiplied by the scale.
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
        anchor = begin_at(self.anchor, self.count, draw)
        here = at_lanes(where, draw)
        count = self.count + where
        half = half_distance(draw, anchor)
        sums = (self.mean, self.mean_lost, self.squares, self.squares_lost)
        scale, (mean, mean_lost, squares, squares_lost) = lowered(self.scale, half, here, sums, _rescaled)
        away = jnp.where(here, (half * (2 * scale) - mean) - mean_lost, 0.0)
        step = away / at_lanes(jnp.maximum(count, 1), draw).astype(away.dtype)
        return ChainSums(
            count,
            anchor,
            scale,
            *add_to(mean, mean_lost, step),
            *add_to(squares, squares_lost, away * (away - step)),
        )

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
        has_draws = at_lanes(sums.count, mean) > 0  # the anchor of a chain that has not drawn is no draw
        return cls(
            sums.count, np.where(has_draws, mean, 0.0), (sums.squares + sums.squares_lost) / sums.scale / sums.scale
        )

    def merge(self, later: PyTree) -> Totals:
        """Return the state with later draws of the same chains."""
        later = Totals.of(later)
        count = self.count + later.count
        apart = later.mean - self.mean
        fraction = at_lanes(later.count / np.maximum(count, 1), apart)
        squares = self.squares + later.squares + apart**2 * at_lanes(self.count, apart) * fraction
        return Totals(count, self.mean + fraction * apart, squares)


def constant_of(state: PyTree) -> np.bool_ | Bool[np.ndarray, "*shape"]:
    """Return a mask of elements that were the same in every draw of all chains, and finite."""
    chains = Totals.of(state)
    same = (chains.squares == 0) & (chains.mean == chains.mean[:1]) & np.isfinite(chains.mean)
    return same.all(0) & (chains.count.min() > 0)


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


def rhat(superchains: int | None = None) -> Reducer:
    r"""Return a reducer of R-hat, $\sqrt{1 + B/W - 1/n}$.

    $B$ is the variance of the chains' means and $W$ the mean of their variances. Chains are not split and draws not
    ranked, since both would need all of the draws: it detects chains that are in different places, but not a drift
    common to all, which `ess()` detects. NaN where an element is constant or not finite, with fewer than two draws, and
    with one chain.

    Args:
        superchains: number of groups of consecutive chains, each of which begins at one point; the nested R-hat then
            compares groups instead of chains, as `diagnostics.nested_rhat` does. Groups of chains that begin apart
            agree whether or not they have converged, so that a run accepts it only with `init=phx.superchains(...)`.

    Returns:
        A reducer; its result is an array in the shape of the variable.

    Raises:
        ValueError: when `superchains` is not a whole number of at least 2, or does not divide the chains.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(0.0, 1.0))
        >>> posterior = phx.mcmc(model, keep=[], reducers={"r": phx.reducers.rhat()}, num_samples=500, progress=False)
        >>> bool(posterior.reduced["r"]["x"] < 1.05)
        True

    Source:
        Gelman, Rubin (1992), Inference from iterative simulation using multiple sequences; Margossian et al. (2024),
        Nested R-hat.
    """
    if superchains is None:
        return Reducer(
            "rhat()",
            ChainSums.none,
            ChainSums.add,
            ChainSums.merge,
            Partial(_rhat, (None,)),
            statistic="r_hat",
            constant=constant_of,
        )
    if not isinstance(superchains, int) or superchains < 2:
        raise ValueError(f"rhat: superchains must be a whole number of at least 2, got {superchains!r}.")
    return Reducer(
        f"rhat(superchains={superchains})",
        ChainSums.none,
        ChainSums.add,
        ChainSums.merge,
        Partial(_rhat, (superchains,)),
        superchains=superchains,
    )


def _rhat(superchains: int | None, state: ChainSums | Totals) -> np.float64 | Float64[np.ndarray, "*shape"]:
    sums = Totals.of(state)
    draws = sums.count.min()
    if draws < 2 or len(sums.count) < 2:
        return np.full(sums.mean.shape[1:], np.nan)
    means = sums.mean
    squares = sums.squares
    variances = squares / (sums.count - 1).reshape(-1, *[1] * (squares.ndim - 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        if superchains is None:
            within = variances.mean(0)
            between = means.var(0, ddof=1)
            return np.sqrt((draws - 1) / draws + between / within)
        groups, variances = (_grouped(values, superchains) for values in (means, variances))
        between = groups.mean(1).var(0, ddof=1)
        inside = groups.var(1, ddof=1) if groups.shape[1] > 1 else np.zeros(groups[:, 0].shape)
        return np.sqrt(1 + between / (inside + variances.mean(1)).mean(0))


def _grouped(
    values: Float64[np.ndarray, "chains *shape"], groups: int
) -> Float64[np.ndarray, "{groups} members *shape"]:
    if len(values) % groups:
        raise ValueError(f"rhat: {len(values)} chains cannot be divided evenly among {groups} superchains.")
    return values.reshape(groups, -1, *values.shape[1:])


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
        least = jnp.inf
        most = -jnp.inf
    elif example.dtype == jnp.bool_:
        least, most = True, False
    else:
        least = jnp.iinfo(example.dtype).max
        most = jnp.iinfo(example.dtype).min
    return Extremes(*(jnp.full(example.shape, value, example.dtype) for value in (least, most)))


def _more_extreme(state: Extremes, draw: Shaped[Array, "chains *shape"], where: Bool[Array, "chains"]) -> Extremes:
    here = at_lanes(where, draw)
    least = jnp.minimum(state.least, draw)
    most = jnp.maximum(state.most, draw)
    return Extremes(jnp.where(here, least, state.least), jnp.where(here, most, state.most))


def _wider(a: Extremes, b: Extremes) -> Extremes:
    return Extremes(np.minimum(a.least, b.least), np.maximum(a.most, b.most))


def _widest(state: Extremes) -> Extremes:
    return Extremes(np.min(state.least, axis=0), np.max(state.most, axis=0))
