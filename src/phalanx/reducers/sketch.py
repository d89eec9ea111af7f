"""Quantiles and a reservoir, from draws taken evenly from the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx.reducers.reducer import Reducer
from phalanx.reducers.shifted import at_lanes

TAKEN = 4096
"""Draws taken from a block, of all chains together, or the last of each where there are more chains."""

APART = 16
"""Draws from one that is taken of a chain to the next."""

SIZE = 2**16
"""Draws that a sketch holds before every other one is left out."""


class Taken(NamedTuple):
    """Draws of each chain, and those taken, one of every `APART`, later ones over older: `(chains, slots, ...)`."""

    count: Any
    values: Any


class Kept(NamedTuple):
    """Draws taken in all `(n, ...)`, and how many taken ones each stands for."""

    values: np.ndarray
    weight: int


def quantiles(qs: Sequence[float]) -> Reducer:
    """Quantiles over all chains, of draws taken evenly from the run.

    One draw in 16 is taken of every chain, and of more than 256 chains fewer: the latest of each in every block. They
    are sorted, and every other one is left out whenever there are more than 131,072. The rank of a result is off by
    less than 1e-4 through the latter; its standard error as a quantile of `n` independent draws would be
    `sqrt(q (1 - q) / n)`.

    Args:
        qs: which quantiles, between 0 and 1.

    Returns:
        A reducer; its result is an array `(len(qs), ...)`.

    Raises:
        ValueError: when a quantile is not between 0 and 1.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(0.0, 1.0))
        >>> reducers = {"q": phx.reducers.quantiles([0.05, 0.5, 0.95])}
        >>> posterior = phx.mcmc(model, keep=[], reducers=reducers, num_samples=500, progress=False)
        >>> posterior.reduced["q"]["x"].shape
        (3,)

    Source:
        Munro, Paterson (1980), Selection and sorting with limited storage.
    """
    wanted = tuple(float(q) for q in np.atleast_1d(qs))
    if not wanted or not all(0 <= q <= 1 for q in wanted):
        raise ValueError(f"quantiles: they must lie between 0 and 1, got {qs!r}.")
    return Reducer(f"quantiles({list(wanted)})", _none, _take, _Sorted(), _Quantiles(wanted))


def reservoir(n: int) -> Reducer:
    """Draws taken evenly from the run, at most `n` of them: for pictures, and for functions thought of afterwards.

    Args:
        n: the most draws.

    Returns:
        A reducer; its result is an array `(at most n, ...)` in the order of the run.

    Raises:
        ValueError: when `n` is no whole number of at least 1.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(0.0, 1.0))
        >>> reducers = {"some": phx.reducers.reservoir(20)}
        >>> posterior = phx.mcmc(model, keep=[], reducers=reducers, num_samples=500, progress=False)
        >>> posterior.reduced["some"]["x"].shape
        (20,)
    """
    if not isinstance(n, int) or n < 1:
        raise ValueError(f"reservoir: n must be a whole number of at least 1, got {n!r}.")
    return Reducer(f"reservoir({n})", _none, _take, _InOrder(n), _Reservoir(n))


def _none(example: Array) -> Taken:
    chains = example.shape[0]
    slots = int(np.clip(TAKEN // chains, 1, TAKEN // 4))
    return Taken(jnp.zeros(chains, jnp.int32), jnp.zeros((chains, slots, *example.shape[1:]), example.dtype))


def _take(state: Taken, draw: Array, where: Array) -> Taken:
    slots = state.values.shape[1]
    slot = (state.count // APART) % slots
    here = (jnp.arange(slots)[None] == slot[:, None]) & where[:, None]
    return Taken(state.count + where, jnp.where(at_lanes(here, state.values), draw[:, None], state.values))


def _kept(state: Taken | Kept) -> Kept:
    """What a block has taken, chain after chain in the order of the slots."""
    if isinstance(state, Kept):
        return state
    count, values = np.asarray(state.count), np.asarray(state.values)
    used = np.minimum(-(-count // APART), values.shape[1])
    return Kept(values[np.arange(values.shape[1])[None] < used[:, None]], 1)


def _thinner(kept: Kept, weight: int) -> Kept:
    """Every other one, until each stands for as many as `weight`."""
    while kept.weight < weight:
        kept = Kept(kept.values[(kept.weight.bit_length() % 2) :: 2], 2 * kept.weight)
    return kept


class _Sorted(NamedTuple):
    """Merge, sorted element by element."""

    def __call__(self, a: Any, b: Any) -> Kept:
        return _joined(_kept(a), _kept(b), 2 * SIZE, ordered=True)


class _InOrder(NamedTuple):
    """Merge in the order of the run."""

    n: int

    def __call__(self, a: Any, b: Any) -> Kept:
        return _joined(_kept(a), _kept(b), max(2 * self.n, TAKEN), ordered=False)


def _joined(a: Kept, b: Kept, most: int, ordered: bool) -> Kept:
    if ordered:
        a, b = (Kept(np.sort(kept.values, axis=0), kept.weight) for kept in (a, b))
    weight = max(a.weight, b.weight)
    values = np.concatenate([_thinner(a, weight).values, _thinner(b, weight).values])
    kept = Kept(np.sort(values, axis=0) if ordered else values, weight)
    while len(kept.values) > most:
        kept = _thinner(kept, 2 * kept.weight)
    return kept


class _Quantiles(NamedTuple):
    qs: tuple[float, ...]

    def __call__(self, state: Any) -> np.ndarray:
        values = _kept(state).values
        if not len(values):
            return np.full((len(self.qs), *values.shape[1:]), np.nan)
        return np.quantile(values, self.qs, axis=0)


class _Reservoir(NamedTuple):
    n: int

    def __call__(self, state: Any) -> np.ndarray:
        values = _kept(state).values
        return values[np.unique(np.linspace(0, len(values) - 1, min(self.n, len(values))).astype(int))]
