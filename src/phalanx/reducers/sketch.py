"""Reducers of quantiles and of a reservoir of draws, from draws taken evenly from the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from phalanx.reducers.reducer import Reducer
from phalanx.reducers.thinning import TAKEN, Kept, Room, kept, random_of, take

if TYPE_CHECKING:
    from jaxtyping import Float64, Shaped

SIZE = 2**17
"""Draws that a sketch holds before it leaves out every other one."""

LARGE = 2**15
"""The most draws that a reservoir takes from a batch of draws."""


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
        wanted = tuple(float(q) for q in np.atleast_1d(qs))
    except (TypeError, ValueError):
        raise TypeError(f"quantiles: qs must be numbers between 0 and 1, got {qs!r}.") from None
    if not wanted or not all(0 <= q <= 1 for q in wanted):
        raise ValueError(f"quantiles: qs must lie between 0 and 1, got {qs!r}.")
    return Reducer(f"quantiles({list(wanted)})", Room(), take, _Merge(SIZE, True), _Quantiles(wanted))


def reservoir(n: int) -> Reducer:
    """Return a reducer that keeps at most `n` draws taken evenly from the run, for plots and later computations.

    Each is drawn at random from a span of its chain, and spans are about equally long: any part of the run has the same
    fraction of the reservoir as of the draws. From a batch of draws (at most 65,536 of a chain) it takes at most
    32,768, or two of each chain, so that there may be fewer than `n`.

    Args:
        n: the most draws.

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
        Vitter (1985), Random sampling with a reservoir.
    """
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ValueError(f"reservoir: n must be a whole number of at least 1, got {n!r}.")
    # halving leaves n draws only in a room for twice as many
    most = max(2 * n, TAKEN)
    return Reducer(f"reservoir({n})", Room(min(most, LARGE)), take, _Merge(most, False), _Reservoir(n))


class _Merge(NamedTuple):
    """Merge two sets of draws to one of at most `most`: sorted, or in the order of the run."""

    most: int
    ordered: bool

    def __call__(self, a: Any, b: Any) -> Kept:
        a, b = kept(a), kept(b)
        random, weight = random_of(a.draws, b.draws), max(a.weight, b.weight)
        values = np.concatenate([self._thinner(lot.values, weight // lot.weight, random) for lot in (a, b)])
        while len(values) > self.most:
            values, weight = self._thinner(values, 2, random), 2 * weight
        return Kept(np.sort(values, axis=0) if self.ordered else values, weight, a.draws + b.draws)

    def _thinner(
        self, values: Shaped[np.ndarray, "draws *shape"], every: int, random: np.random.Generator
    ) -> Shaped[np.ndarray, "some *shape"]:
        """Return one of every so many neighbours, at random; of the last, if they are fewer, one or zero."""
        if every == 1:
            return values
        if self.ordered:
            return np.sort(values, axis=0)[random.integers(every) :: every]
        groups = np.arange(0, len(values), every)
        chosen = groups + random.integers(every, size=len(groups))
        return values[chosen[chosen < len(values)]]


class _Quantiles(NamedTuple):
    qs: tuple[float, ...]

    def __call__(self, state: Any) -> Float64[np.ndarray, "{len(self.qs)} *shape"]:
        values = np.sort(kept(state).values, axis=0).astype(np.float64)
        if not len(values):
            return np.full((len(self.qs), *values.shape[1:]), np.nan)
        place = np.asarray(self.qs) * (len(values) - 1)
        low, high = values[np.floor(place).astype(int)], values[np.ceil(place).astype(int)]
        share = (place % 1).reshape(-1, *[1] * (values.ndim - 1))
        with np.errstate(invalid="ignore"):
            between = np.where(low == high, low, (1 - share) * low + share * high)
        return np.where(np.isnan(values[-1]), np.nan, between)


class _Reservoir(NamedTuple):
    n: int

    def __call__(self, state: Any) -> Shaped[np.ndarray, "draws *shape"]:
        values = kept(state).values
        return values[np.unique(np.linspace(0, len(values) - 1, min(self.n, len(values))).astype(int))]
