"""Reducer of every n-th draw, around any other reducer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from phalanx.reducers.reducer import Reducer

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
    name = f"thinned({reducer}, {every})"
    return Reducer(
        name, _InitThinned(reducer), _Update(reducer, every), _MergeThinned(reducer), _FinalizeThinned(reducer),
        statistic=reducer.statistic, superchains=reducer.superchains,
        constant=_Constant(reducer) if reducer.constant else None, begin=_Begin(reducer, every),
        of_observations=reducer.of_observations,
    )  # fmt: skip


class _InitThinned(NamedTuple):
    reducer: Reducer

    def __call__(self, example: Shaped[Array, "chains *shape"]) -> Thinned:
        return Thinned(jnp.zeros(example.shape[0], jnp.int32), self.reducer.init(example))


class _Begin(NamedTuple):
    reducer: Reducer
    every: int

    def __call__(
        self, example: Shaped[Array, "chains *shape"], before: Int[Array, "chains"], chain: Int[Array, "chains"]
    ) -> Thinned:
        used = (before + self.every - 1) // self.every
        return Thinned(before % self.every, self.reducer.begun(example, used, chain))


class _Update(NamedTuple):
    reducer: Reducer
    every: int

    def __call__(self, state: Thinned, draw: Shaped[Array, "chains *shape"], where: Bool[Array, "chains"]) -> Thinned:
        counts = where & (state.since == 0)
        since = jnp.where(where, jnp.where(state.since + 1 == self.every, 0, state.since + 1), state.since)
        return Thinned(since, self.reducer.update(state.state, draw, counts))


class _MergeThinned(NamedTuple):
    reducer: Reducer

    def __call__(self, a: Thinned, b: Thinned) -> Thinned:
        return Thinned(b.since, self.reducer.merge(a.state, b.state))


class _FinalizeThinned(NamedTuple):
    reducer: Reducer

    def __call__(self, state: Thinned) -> Any:
        return self.reducer.finalize(state.state)


class _Constant(NamedTuple):
    reducer: Reducer

    def __call__(self, state: Thinned) -> Any:
        return self.reducer.constant(state.state) if self.reducer.constant else None
