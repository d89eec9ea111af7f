"""Reducer of every n-th draw, around any other reducer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from phalanx.reducers.reducer import Partial, Reducer

if TYPE_CHECKING:
    from jaxtyping import Bool, Int, Shaped


class Thinned(NamedTuple):
    """Draws of each chain since the last one that was used, and the state of the inner reducer."""

    since: Any
    state: Any


def thinned(reducer: Reducer, every: int) -> Reducer:
    """Return a reducer of every n-th draw of each chain, which saves memory if draws are autocorrelated.

    It uses the first draw of each chain, and then every n-th, however the run is divided into calls.

    Args:
        reducer: the reducer of the draws that are used.
        every: n, draws of a chain from one that is used to the next.

    Returns:
        A reducer with the same result.

    Raises:
        ValueError: when `every` is not a whole number of at least 1.

    Example:
        >>> import phalanx as phx
        >>> phx.reducers.thinned(phx.reducers.moments(), 10)
        thinned(moments(), 10)
    """
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise ValueError(f"thinned: every must be a whole number of at least 1, got {every!r}.")
    init, merge, finalize, constant = (Partial(fn, (reducer,)) for fn in (_init, _merge, _finalize, _constant))
    update, begin = (Partial(fn, (reducer, every)) for fn in (_update, _begin))
    return Reducer(
        f"thinned({reducer}, {every})",
        init,
        update,
        merge,
        finalize,
        statistic=reducer.statistic,
        superchains=reducer.superchains,
        constant=constant if reducer.constant else None,
        begin=begin,
        of_observations=reducer.of_observations,
    )


def _init(reducer: Reducer, example: Shaped[Array, "chains *shape"]) -> Thinned:
    return Thinned(jnp.zeros(example.shape[0], jnp.int32), reducer.init(example))


def _begin(
    reducer: Reducer,
    every: int,
    example: Shaped[Array, "chains *shape"],
    before: Int[Array, "chains"],
    chain: Int[Array, "chains"],
) -> Thinned:
    num_before = (before + every - 1) // every
    return Thinned(before % every, reducer.begun(example, num_before, chain))


def _update(
    reducer: Reducer, every: int, state: Thinned, draw: Shaped[Array, "chains *shape"], where: Bool[Array, "chains"]
) -> Thinned:
    counts = where & (state.since == 0)
    since = jnp.where(where, jnp.where(state.since + 1 == every, 0, state.since + 1), state.since)
    return Thinned(since, reducer.update(state.state, draw, counts))


def _merge(reducer: Reducer, a: Thinned, b: Thinned) -> Thinned:
    return Thinned(b.since, reducer.merge(a.state, b.state))


def _finalize(reducer: Reducer, state: Thinned) -> Any:
    return reducer.finalize(state.state)


def _constant(reducer: Reducer, state: Thinned) -> Any:
    return reducer.constant(state.state) if reducer.constant else None
