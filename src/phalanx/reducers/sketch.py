"""Reducer of quantiles, from draws taken evenly from the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.mesh.specs import PyTree
from phalanx.reducers.reducer import Partial, Reducer
from phalanx.reducers.thinning import Room, ThinnedDraws, take, taken

if TYPE_CHECKING:
    from jaxtyping import Float64, Shaped

SIZE = 2**17
"""Draws that a sketch holds before it leaves out every other one."""

TAKEN = 4096
"""The most draws taken from a batch of draws, of all chains together; but at least two of each chain."""


class Kept(NamedTuple):
    """Draws taken altogether, `(n, ...)`, the number of draws that each represents, and the number of all draws."""

    values: np.ndarray
    weight: int
    draws: int


def quantiles(qs: Sequence[float]) -> Reducer:
    r"""Return a reducer of quantiles over all chains, from draws taken evenly from the run.

    A run is reduced in batches of at most 65,536 draws of a chain. From each batch it takes all draws if these are at
    most 4,096 of all chains together, otherwise between 2,048 and 4,096, or one or two of each chain with more than
    2,048 chains. Each is drawn at random from a span of its chain, and spans are equally long. The draws taken are
    sorted, and one of two neighbours is left out whenever there are more than 131,072. The rank of a result, as a
    fraction of all draws, has a standard error of at most $\sqrt{q (1 - q) / n}$, with `n` the draws taken altogether,
    in whatever order chains draw; leaving draws out adds about 1e-5. As long as all draws are taken, results are the
    quantiles of all. If a draw that is taken is NaN, so are the quantiles.

    Args:
        qs: probabilities of the quantiles, between 0 and 1.

    Returns:
        A reducer; its result is an array `(len(qs), ...)`, of real numbers also for whole draws.

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
        Munro, Paterson (1980), Selection and sorting with limited storage; Karnin, Lang, Liberty (2016), Optimal
        quantile approximation in streams; Vitter (1985), Random sampling with a reservoir.
    """
    try:
        probabilities = tuple(float(q) for q in np.atleast_1d(qs))
    except (TypeError, ValueError):
        raise TypeError(f"quantiles: qs must be numbers between 0 and 1, got {qs!r}.") from None
    if not probabilities or not all(0 <= q <= 1 for q in probabilities):
        raise ValueError(f"quantiles: qs must lie between 0 and 1, got {qs!r}.")
    return Reducer(f"quantiles({list(probabilities)})", Room(TAKEN), take, _merge, Partial(_finalize, (probabilities,)))


def _kept(state: ThinnedDraws | Kept) -> Kept:
    if isinstance(state, Kept):
        return state
    draws = taken(state)
    return Kept(draws.values, 2**draws.doubled, int(state.count.sum(dtype=np.int64)))


def _merge(a: ThinnedDraws | Kept, b: ThinnedDraws | Kept) -> Kept:
    """Return the draws of both, sorted and at most `SIZE`."""
    a = _kept(a)
    b = _kept(b)
    # random numbers that depend on the numbers of draws alone: equal runs give equal answers
    random = np.random.default_rng([a.draws, b.draws])
    weight = max(a.weight, b.weight)
    values = np.concatenate([_thinner(lot.values, weight // lot.weight, random) for lot in (a, b)])
    while len(values) > SIZE:
        values = _thinner(values, 2, random)
        weight = 2 * weight
    return Kept(np.sort(values, axis=0), weight, a.draws + b.draws)


def _thinner(
    values: Shaped[np.ndarray, "draws *shape"], every: int, random: np.random.Generator
) -> Shaped[np.ndarray, "some *shape"]:
    """Return one of every so many neighbours in order of size, beginning at random."""
    return values if every == 1 else np.sort(values, axis=0)[random.integers(every) :: every]


def _finalize(qs: tuple[float, ...], state: PyTree) -> Float64[np.ndarray, "{len(qs)} *shape"]:
    values = np.sort(_kept(state).values, axis=0).astype(np.float64)
    if not len(values):
        return np.full((len(qs), *values.shape[1:]), np.nan)
    place = np.asarray(qs) * (len(values) - 1)
    low = values[np.floor(place).astype(int)]
    high = values[np.ceil(place).astype(int)]
    fraction = (place % 1).reshape(-1, *[1] * (values.ndim - 1))
    with np.errstate(invalid="ignore"):
        between = np.where(low == high, low, (1 - fraction) * low + fraction * high)
    return np.where(np.isnan(values[-1]), np.nan, between)
