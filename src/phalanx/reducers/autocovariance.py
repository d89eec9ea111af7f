"""Reducer of autocovariances up to a lag."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from phalanx.reducers.reducer import Partial, Reducer, on_host
from phalanx.reducers.shifted import add_to, at_lanes, begin_at, first_scale, half_distance, lowered, sum_type

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float64, Int, Shaped


class Lagged(NamedTuple):
    """State by chain: draws, sums of distances from a centre, and sums of their products at each lag.

    Draws, the centre and the draws kept are distances from the anchor, multiplied by the scale. The draws kept join two
    batches of draws of a chain: `first` are the first ones and `last` the last, the newest first, `(chains, lags,
    ...)`. Sums are in two floats.
    """

    count: Any
    anchor: Any
    scale: Any
    centre: Any
    deviations: Any
    deviations_lost: Any
    products: Any
    products_lost: Any
    first: Any
    last: Any


def autocovariance(lags: int) -> Reducer:
    r"""Return a reducer of autocovariances $\gamma_k = \frac1n \sum_t (x_t - \bar x)(x_{t+k} - \bar x)$.

    They are averaged over chains, and $\bar x$ is the mean of all chains. Sums are in two floats and about a mean of
    the draws so far: the error is below 1e-6 of the variance, whatever the order and the mean of the draws.

    Args:
        lags: the largest lag.

    Returns:
        A reducer; its result is an array `(lags + 1, ...)`, beginning with the variance.

    Raises:
        ValueError: when `lags` is not a whole number of at least 1.

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
    return Reducer(f"autocovariance({lags})", Partial(_init, (lags,)), _add, _merge, _finalize)


def _init(lags: int, example: Shaped[Array, "chains *shape"]) -> Lagged:
    chains = example.shape[0]
    rest = example.shape[1:]
    dtype = sum_type(example.dtype)
    zero = jnp.zeros(example.shape, dtype)
    rows = jnp.zeros((chains, lags, *rest), dtype)
    products = jnp.zeros((chains, lags + 1, *rest), dtype)
    anchor = jnp.zeros(example.shape, example.dtype)
    return Lagged(
        jnp.zeros(chains, jnp.int32), anchor, first_scale(example), zero, zero, zero, products, products, rows, rows
    )


def _add(state: Lagged, draw: Shaped[Array, "chains *shape"], where: Bool[Array, "chains"]) -> Lagged:
    lags = state.last.shape[1]
    anchor = begin_at(state.anchor, state.count, draw)
    half = half_distance(draw, anchor)
    here = at_lanes(where, draw)
    scale, state = lowered(state.scale, half, here, state, _rescaled)
    draw = half * (2 * scale)
    away = jnp.where(here, draw - state.centre, 0.0)
    numbers = jnp.arange(lags).reshape(1, -1, *[1] * (draw.ndim - 1))
    count = at_lanes(state.count, state.last)
    before = jnp.where(numbers < count, state.last - state.centre[:, None], 0.0)
    products = away[:, None] * jnp.concatenate([away[:, None], before], axis=1)
    first = jnp.where((numbers == count) & here[:, None], draw[:, None], state.first)
    last = jnp.where(here[:, None], jnp.concatenate([draw[:, None], state.last[:, :-1]], axis=1), state.last)
    state = Lagged(
        state.count + where,
        anchor,
        scale,
        state.centre,
        *add_to(state.deviations, state.deviations_lost, away),
        *add_to(state.products, state.products_lost, products),
        first,
        last,
    )
    due = where & (state.count & (state.count - 1) == 0)
    return lax.cond(due.any(), _centred, lambda state, _: state, state, due)


def _rescaled(state: Lagged, change: Float[Array, "chains *shape"]) -> Lagged:
    by_lag = change[:, None]
    return state._replace(
        centre=state.centre * change,
        deviations=state.deviations * change,
        deviations_lost=state.deviations_lost * change,
        products=state.products * by_lag * by_lag,
        products_lost=state.products_lost * by_lag * by_lag,
        first=state.first * by_lag,
        last=state.last * by_lag,
    )


def _centred(state: Lagged, due: Bool[Array, "chains"]) -> Lagged:
    """Return the state about the mean so far, at 1, 2, 4, 8... draws.

    The mean of at least half of the draws is so near that of all that centring on it loses no digit.
    """
    mean = (state.deviations + state.deviations_lost) / at_lanes(jnp.maximum(state.count, 1), state.centre)
    centre = jnp.where(at_lanes(due, mean), state.centre + mean, state.centre)
    shift = state.centre - centre
    change = shift[:, None] * (_ends(state, jnp) + _pairs(state, jnp) * shift[:, None])
    change = jnp.where(at_lanes(due, change), change, 0.0)
    return state._replace(
        centre=centre,
        deviations=state.deviations + at_lanes(state.count, shift) * shift,
        products=(sums := add_to(state.products, state.products_lost, change))[0],
        products_lost=sums[1],
    )


def _merge(a: Lagged, b: Lagged) -> Lagged:
    a = _widened(a)
    b = _widened(b)
    centre = np.where(at_lanes(a.count, a.centre) > 0, a.centre, b.centre)
    a = _about(a, centre)
    b = _about(b, centre)
    products = a.products + b.products
    lags = a.last.shape[1]
    for lag in range(1, lags + 1):  # pairs with one draw in a and one in b
        for j in range(lag):
            pair = (a.last[:, lag - 1 - j] - centre) * (b.first[:, j] - centre)
            both = (lag - 1 - j < a.count) & (j < b.count)
            products[:, lag] += np.where(at_lanes(both, pair), pair, 0.0)
    first = _then(a.first, a.count, b.first)
    last = _then(b.last, b.count, a.last)
    return a._replace(
        count=a.count + b.count, deviations=a.deviations + b.deviations, products=products, first=first, last=last
    )


def _widened(state: Lagged) -> Lagged:
    """Return the state in float64, with draws as they are and each sum one number."""
    state = Lagged(*on_host(state))
    anchor = np.where(at_lanes(state.count, state.centre) > 0, state.anchor.astype(np.float64), 0.0)
    scale = state.scale
    by_lag = state.scale[:, None]
    return Lagged(
        state.count,
        np.zeros_like(anchor),
        np.ones_like(scale),
        anchor + state.centre / scale,
        (state.deviations + state.deviations_lost) / scale,
        np.zeros_like(state.deviations),
        (state.products + state.products_lost) / by_lag / by_lag,
        np.zeros_like(state.products),
        state.first / by_lag + anchor[:, None],
        state.last / by_lag + anchor[:, None],
    )


def _then(
    rows: Float64[np.ndarray, "chains lags *shape"],
    count: Int[np.ndarray, "chains"],
    more: Float64[np.ndarray, "chains lags *shape"],
) -> Float64[np.ndarray, "chains lags *shape"]:
    """Return the first `count` of `rows`, followed by those of `more`."""
    both = np.concatenate([rows, more], axis=1)
    numbers = np.arange(rows.shape[1])[None]
    row_numbers = np.where(
        numbers < count[:, None], numbers, rows.shape[1] + numbers - np.minimum(count, rows.shape[1])[:, None]
    )
    return np.take_along_axis(both, row_numbers.reshape(*row_numbers.shape, *[1] * (rows.ndim - 2)), axis=1)


def _about(state: Lagged, centre: Float64[np.ndarray, "chains *shape"]) -> Lagged:
    """Return the state about another centre."""
    shift = np.where(at_lanes(state.count, centre) > 0, state.centre - centre, 0.0)
    products = state.products + shift[:, None] * (_ends(state, np) + _pairs(state, np) * shift[:, None])
    deviations = state.deviations + at_lanes(state.count, shift) * shift
    return state._replace(centre=centre, deviations=deviations, products=products)


def _pairs(state: Lagged, numpy: ModuleType) -> Array | np.ndarray:
    """Return the number of pairs of draws at each lag."""
    lags = numpy.arange(state.last.shape[1] + 1)[None]
    return at_lanes(numpy.maximum(state.count[:, None] - lags, 0), state.products)


def _ends(state: Lagged, numpy: ModuleType) -> Array | np.ndarray:
    """Return, for each lag, the sum of distances from the centre over both members of all pairs."""
    lags = state.last.shape[1]
    left_out = [numpy.zeros_like(state.centre)]
    for lag in range(lags):
        is_within = at_lanes(lag < state.count, state.centre)
        ends = (state.first[:, lag] - state.centre) + (state.last[:, lag] - state.centre)
        left_out.append(left_out[-1] + numpy.where(is_within, ends, 0.0))
    ends = 2 * (state.deviations + state.deviations_lost)[:, None] - numpy.stack(left_out, axis=1)
    return numpy.where(_pairs(state, numpy) > 0, ends, 0.0)


def _finalize(state: Lagged) -> Float64[np.ndarray, "lags *shape"]:
    state = _widened(state)
    means = state.centre + state.deviations / np.maximum(at_lanes(state.count, state.centre), 1)
    mean = np.tensordot(state.count / max(state.count.sum(), 1), means, axes=1)
    about = _about(state, np.broadcast_to(mean, state.centre.shape))
    return about.products.sum(0) / max(state.count.sum(), 1)
