"""Reducer of counts between edges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from phalanx.reducers.reducer import Partial, Reducer, on_host
from phalanx.reducers.shifted import at_lanes, sum_type

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64, Shaped


class Histogram(NamedTuple):
    """Counts of draws: in each bin `(..., bins)`, below the first edge, at or above the last edge, and NaN.

    Together they add up to all draws.
    """

    edges: np.ndarray
    counts: np.ndarray
    below: np.ndarray
    above: np.ndarray
    nan: np.ndarray


class BinCounts(NamedTuple):
    """Counts over all chains: draws, draws at or above each edge `(1, edges, ...)`, and draws that are NaN."""

    draws: Any
    from_edge: Any
    nan: Any


def histogram(edges: Sequence[float] | np.ndarray) -> Reducer:
    """Return a reducer that counts draws between edges, exactly; a bin includes its lower edge, not its upper one.

    Draws of any type are compared with the edges without rounding, also whole numbers with fractional edges. Each draw
    is compared with every edge, which costs as much as that many additions.

    Args:
        edges: ascending edges of the bins, one more than there are bins.

    Returns:
        A reducer; its result is a `Histogram(edges, counts, below, above, nan)`.

    Raises:
        ValueError: when there are fewer than two edges or they do not ascend.

    Example:
        >>> import phalanx as phx
        >>> phx.reducers.histogram([-1.0, 0.0, 1.0])
        histogram(2 bins from -1.0 to 1.0)
    """
    try:
        values = np.asarray(edges, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"histogram: edges must be numbers, such as [-1.0, 0.0, 1.0]; got {edges!r}.") from None
    if values.ndim != 1 or len(values) < 2 or not (np.diff(values) > 0).all():
        raise ValueError(f"histogram: edges must be at least two ascending numbers, got {edges!r}.")
    name = f"histogram({len(values) - 1} bins from {values[0]} to {values[-1]})"
    init, update, finalize = (Partial(fn, (tuple(values.tolist()),)) for fn in (_init, _count, _finalize))
    return Reducer(name, init, update, _merge, finalize)


def _init(edges: tuple[float, ...], example: Shaped[Array, "chains *shape"]) -> BinCounts:
    sum_type(example.dtype)
    zero = jnp.zeros((1, *example.shape[1:]), jnp.int32)
    return BinCounts(jnp.zeros(1, jnp.int32), jnp.stack([zero] * len(edges), axis=1), zero)


def _count(
    edges: tuple[float, ...], state: BinCounts, draw: Shaped[Array, "chains *shape"], where: Bool[Array, "chains"]
) -> BinCounts:
    draw = draw.astype(jnp.int32) if draw.dtype == jnp.bool_ else draw
    by_edge = _least_from(np.asarray(edges), draw.dtype)
    least, reachable = (jnp.asarray(x).reshape(1, -1, *[1] * (draw.ndim - 1)) for x in by_edge)
    here = at_lanes(where, draw)
    is_above = (draw[:, None] >= least) & reachable & here[:, None]
    return BinCounts(
        state.draws + where.sum(dtype=jnp.int32),
        state.from_edge + is_above.sum(0, dtype=jnp.int32, keepdims=True),
        state.nan + (jnp.not_equal(draw, draw) & here).sum(0, dtype=jnp.int32, keepdims=True),
    )


def _least_from(
    edges: Float64[np.ndarray, "edges"], dtype: DTypeLike
) -> tuple[Shaped[np.ndarray, "edges"], Bool[np.ndarray, "edges"]]:
    """Return the least number of the dtype at or above each edge, and a mask of the edges that have one."""
    if jnp.issubdtype(dtype, jnp.floating):
        with np.errstate(over="ignore"):
            nearest = edges.astype(dtype)
        above = np.nextafter(nearest, np.asarray(np.inf, dtype))
        least = np.where(nearest.astype(np.float64) < edges, above, nearest)
        tiny = jnp.finfo(dtype).tiny
        # XLA compares subnormal numbers as zeros, on CPUs
        return np.where((least > 0) & (least < tiny), tiny, least), np.ones(edges.shape, bool)
    least = int(jnp.iinfo(dtype).min)
    most = int(jnp.iinfo(dtype).max)
    whole = [min(max(math.ceil(edge), least), most) if math.isfinite(edge) else least for edge in edges]
    return np.asarray(whole, dtype), edges <= most


def _merge(a: BinCounts, b: BinCounts) -> BinCounts:
    a = on_host(a)
    b = on_host(b)
    return BinCounts(a.draws + b.draws, a.from_edge + b.from_edge, a.nan + b.nan)


def _finalize(edges: tuple[float, ...], state: BinCounts) -> Histogram:
    state = BinCounts(*on_host(state))
    cumulative = np.moveaxis(state.from_edge.sum(0), 0, -1)
    nan = state.nan.sum(0)
    counts = cumulative[..., :-1] - cumulative[..., 1:]
    below = state.draws.sum() - nan - cumulative[..., 0]
    return Histogram(np.asarray(edges), counts, below, cumulative[..., -1], nan)
