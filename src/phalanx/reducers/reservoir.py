"""Reducer of a sample of draws, which depends on the numbers of chains and draws, not on how the run was divided."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.reducers.reducer import Partial, Reducer
from phalanx.reducers.thinning import Room, ThinnedDraws, doublings, hash_of, take, taken

if TYPE_CHECKING:
    from jaxtyping import Shaped

LARGE = 2**14
"""The most draws of a reservoir that does not depend on how the run was divided, which bounds its room on a device."""


class SampledDraws(NamedTuple):
    """State on the host: draws in the order of the run, `(n, ...)`, with the numbers of their chains and draws."""

    values: np.ndarray
    chain: np.ndarray
    number: np.ndarray


def reservoir(n: int) -> Reducer:
    """Return a reducer that keeps `n` draws taken evenly from the run, for plots and later computations.

    Spans of a chain are represented by one of their draws, chosen by a hash of the numbers of chain and span. The `n`
    draws are those that represent the longest spans, and of spans equally long those with the smallest hashes. Any part
    of the run thus has the same fraction of the reservoir as of the draws, and the same draws are kept however the run
    is divided into calls, blocks, devices and lanes, for `n` up to 16,384. From a batch of draws (at most 65,536 of a
    chain) at most some 32,768 are taken, and at least two of each chain, so that a larger reservoir may not be filled.

    Args:
        n: the number of draws; a run of fewer is kept as a whole.

    Returns:
        A reducer; its result is an array `(at most n, ...)` in the order of the run.

    Raises:
        ValueError: when `n` is not a whole number of at least 1.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(0.0, 1.0))
        >>> reducers = {"some": phx.reducers.reservoir(20)}
        >>> posterior = phx.mcmc(model, keep=[], reducers=reducers, num_samples=500, progress=False)
        >>> posterior.reduced["some"]["x"].shape
        (20,)

    Source:
        Vitter (1985), Random sampling with a reservoir; Efraimidis, Spirakis (2006), Weighted random sampling with a
        reservoir.
    """
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ValueError(f"reservoir: n must be a whole number of at least 1, got {n!r}.")
    # Complete spans of a chain that has no room left are so many that, over all chains, at least n draws represent
    # spans twice as long: spans are doubled only where their draws are not among the n.
    room = Room(min(n, LARGE) * 2, spare=4)
    return Reducer(f"reservoir({n})", room, take, Partial(_merge, (n,)), Partial(_finalize, (n,)), begin=room.begin)


def _sample(state: ThinnedDraws | SampledDraws) -> SampledDraws:
    """Return the draws taken from a batch of draws."""
    return state if isinstance(state, SampledDraws) else SampledDraws(*taken(state)[:3])


def _longest(sample: SampledDraws, n: int) -> SampledDraws:
    """Return the `n` draws that represent the longest spans, in the order of the run."""
    values, chain, number = sample
    first = np.lexsort((number, chain, hash_of(chain, number), -doublings(chain, number)))[:n]
    order = first[np.lexsort((chain[first], number[first]))]
    return SampledDraws(values[order], chain[order], number[order])


def _merge(n: int, a: ThinnedDraws | SampledDraws, b: ThinnedDraws | SampledDraws) -> SampledDraws:
    pairs = zip(_sample(a), _sample(b), strict=True)
    return _longest(SampledDraws(*(np.concatenate(pair) for pair in pairs)), n)


def _finalize(n: int, state: ThinnedDraws | SampledDraws) -> Shaped[np.ndarray, "draws *shape"]:
    return _longest(_sample(state), n).values
