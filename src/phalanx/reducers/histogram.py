"""Counts between edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx.reducers.reducer import Reducer, on_host
from phalanx.reducers.shifted import at_lanes


class Histogram(NamedTuple):
    """Edges of the bins, draws in each `(..., bins)`, and draws below the first edge and from the last on."""

    edges: np.ndarray
    counts: np.ndarray
    below: np.ndarray
    above: np.ndarray


class Counts(NamedTuple):
    """Draws, and how many of them were at or above each edge `(1, edges, ...)`; over all chains."""

    draws: Any
    from_edge: Any


def histogram(edges: Sequence[float]) -> Reducer:
    """How many draws lie between edges, exactly; a bin has its lower edge and not its upper one.

    Each draw is compared with every edge, which costs as much as that many additions.

    Args:
        edges: of the bins, ascending; one more than there are bins.

    Returns:
        A reducer; its result is a `Histogram(edges, counts, below, above)`.

    Raises:
        ValueError: when there are fewer than two edges or they do not ascend.

    Example:
        >>> import phalanx as phx
        >>> phx.reducers.histogram([-1.0, 0.0, 1.0])
        histogram(2 bins from -1.0 to 1.0)
    """
    values = np.asarray(edges, np.float64)
    if values.ndim != 1 or len(values) < 2 or not (np.diff(values) > 0).all():
        raise ValueError(f"histogram: edges must be at least two ascending numbers, got {edges!r}.")
    name = f"histogram({len(values) - 1} bins from {values[0]} to {values[-1]})"
    key = tuple(values.tolist())
    return Reducer(name, _None(key), _Count(key), _merge, _Finalize(key))


class _None(NamedTuple):
    edges: tuple[float, ...]

    def __call__(self, example: Array) -> Counts:
        zero = jnp.zeros((1, *example.shape[1:]), jnp.int32)
        return Counts(jnp.zeros(1, jnp.int32), jnp.stack([zero] * len(self.edges), axis=1))


class _Count(NamedTuple):
    edges: tuple[float, ...]

    def __call__(self, state: Counts, draw: Array, where: Array) -> Counts:
        edges = jnp.asarray(self.edges, draw.dtype).reshape(1, -1, *[1] * (draw.ndim - 1))
        reached = (draw[:, None] >= edges) & at_lanes(where, draw[:, None])
        return Counts(
            state.draws + where.sum(dtype=jnp.int32), state.from_edge + reached.sum(0, dtype=jnp.int32, keepdims=True)
        )


def _merge(a: Counts, b: Counts) -> Counts:
    a, b = on_host(a), on_host(b)
    return Counts(a.draws + b.draws, a.from_edge + b.from_edge)


class _Finalize(NamedTuple):
    edges: tuple[float, ...]

    def __call__(self, state: Counts) -> Histogram:
        state = Counts(*on_host(state))
        reached = np.moveaxis(state.from_edge.sum(0), 0, -1)
        counts, total = reached[..., :-1] - reached[..., 1:], state.draws.sum()
        return Histogram(np.asarray(self.edges), counts, total - reached[..., 0], reached[..., -1])
