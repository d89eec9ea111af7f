"""Reducer of effective sample sizes in constant memory: from means of batches, which grow longer as chains do."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from phalanx.mesh.specs import PyTree
from phalanx.reducers.effective_size import effective_size
from phalanx.reducers.moments import ChainSums, Totals, constant_of
from phalanx.reducers.reducer import Partial, Reducer, on_host
from phalanx.reducers.shifted import add_to, at_lanes, half_distance

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float64, Int, Shaped

SLOTS_OF_ALL_CHAINS = 2**16
"""Room for batch means of all chains together, in numbers for each element: 256 KiB in float32."""

MOST_SLOTS = 256
"""Most room of a chain, which it has in runs of up to 256 chains. Half of it, at least, is in use after the first
doubling: the result then has a standard error of about 10%, see `ess`."""

LEAST_SLOTS = 16
"""Least room of a chain, in runs of 4,096 chains and more: a doubling leaves `FEWEST_BATCHES` of as many batches."""

FEWEST_BATCHES = 8
"""Fewest batches of each chain from which correlations are estimated."""

MEANS_AT_ONCE = 2**22
"""Most batch means whose correlations are computed at once, which bounds the memory."""


class Batched(NamedTuple):
    """State on the device.

    Attributes:
        draws: sums of all draws, with the anchor from which distances are measured.
        doubled: times that the length of batches was doubled.
        total, total_lost: sum of half distances from the anchor over the batch that is not full yet, and its rounding
            error; both are divided by two to the number of doublings, so that they do not overflow.
        means: means of half distances in full batches, `(chains, slots, ...)`. Slots merge in pairs when batches are
            doubled, so that slot 0 holds a batch of even number, or nothing.
        before: draws of the run before the first of this state. Batches are numbered from the start of the run, so that
            the first batch of this state may lack its first draws.
    """

    draws: Any
    doubled: Any
    total: Any
    total_lost: Any
    means: Any
    before: Any = 0


class Series(NamedTuple):
    """State on the host: totals of the draws, and batches in their order with the number of draws of each.

    Lengths are `(chains, batches)`, zero where there is no batch, and means `(chains, batches, ...)`.
    """

    draws: Totals
    lengths: np.ndarray
    means: np.ndarray


def ess(batch: int = 1) -> Reducer:
    r"""Return a reducer of the effective sample size of the mean, $\widehat{\mathrm{var}}^+ / \mathrm{MCSE}^2$.

    $\widehat{\mathrm{var}}^+$ is the variance of all chains together, within and between them. The error of the mean
    comes from the means of batches of consecutive draws, whose autocorrelations are summed as `diagnostics.ess` sums
    those of draws. Batches are doubled whenever a chain has 256 of them (fewer with more than 256 chains, but at least
    16). Batches may thus be shorter than the autocorrelation time; chains that do not agree, or that still drift, have
    few effective draws; and for up to 256 draws a chain it is the estimate from all lags. For more draws its standard
    error is about 10%.

    It is NaN for constant elements, for draws that are not finite, and for fewer than eight batches of each chain. It
    cannot detect a region that no chain has visited.

    Args:
        batch: draws of the shortest batch; longer ones take less time.

    Returns:
        A reducer; its result is an array in the shape of the variable.

    Raises:
        ValueError: when `batch` is not a whole number of at least 1.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(0.0, 1.0))
        >>> posterior = phx.mcmc(model, keep=[], reducers={"e": phx.reducers.ess()}, progress=False)
        >>> bool(posterior.reduced["e"]["x"] > 200)
        True

    Source:
        Flegal, Jones (2010), Batch means and spectral variance estimators in Markov chain Monte Carlo; Vehtari, Gelman,
        Simpson, Carpenter, Bürkner (2021), Rank-normalization, folding, and localization.
    """
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        raise ValueError(f"ess: batch must be a whole number of at least 1, got {batch!r}.")
    update, merge, finalize = (Partial(fn, (batch,)) for fn in (_update, _merge, _finalize))
    return Reducer(f"ess({batch})", _none, update, merge, finalize, statistic="ess", constant=_constant, begin=_begin)


def _none(example: Shaped[Array, "chains *shape"]) -> Batched:
    zero = jnp.zeros(example.shape[0], jnp.int32)
    return _begin(example, zero, zero)


def _begin(
    example: Shaped[Array, "chains *shape"], before: Int[Array, "chains"], chain: Int[Array, "chains"]
) -> Batched:
    chains = example.shape[0]
    draws = ChainSums.none(example)
    means = jnp.zeros((chains, _slots(chains), *example.shape[1:]), draws.mean.dtype)
    return Batched(draws, jnp.zeros(chains, jnp.int32), draws.mean, draws.mean, means, before)


def _slots(chains: int) -> int:
    """Return the most batches of a chain."""
    return 2 * (int(np.clip(SLOTS_OF_ALL_CHAINS // chains, LEAST_SLOTS, MOST_SLOTS)) // 2)


def _first(before: Array | np.ndarray, length: Array | np.ndarray) -> Array | np.ndarray:
    """Return the number of the batch in the first slot."""
    return before // (2 * length) * 2


def _update(batch: int, state: Batched, draw: Shaped[Array, "chains *shape"], where: Bool[Array, "chains"]) -> Batched:
    draws = state.draws.add(draw, where)
    half = jnp.where(at_lanes(where, draw), half_distance(draw, draws.anchor), 0.0)
    total, remainder = add_to(state.total, state.total_lost, half * at_lanes(_part(state.doubled, half.dtype), half))
    length = batch << state.doubled
    full = where & ((state.before + draws.count) % length == 0)
    state = Batched(draws, state.doubled, total, remainder, state.means, state.before)
    return lax.cond(full.any(), _close, lambda state, *_: state, state, full, length)


def _part(num_doublings: Int[Array, "chains"], dtype: DTypeLike) -> Float[Array, "chains"]:
    """Return one over two to the number of doublings, exactly."""
    return 1 / (1 << num_doublings).astype(dtype)


def _close(state: Batched, full: Bool[Array, "chains"], length: Int[Array, "chains"]) -> Batched:
    """End the batch under way of those chains whose batch is full, and double batches where there is no room left."""
    slots = state.means.shape[1]
    lanes = jnp.arange(len(full))
    before = state.before
    number = jnp.maximum((before + state.draws.count) // length - 1, 0)
    slot = jnp.clip(number - _first(before, length), 0, slots - 1)
    here = at_lanes(full, state.total)
    draws = length - jnp.clip(before - number * length, 0, length - 1)
    draws = draws.astype(state.total.dtype) * _part(state.doubled, state.total.dtype)
    mean = (state.total + state.total_lost) / at_lanes(draws, state.total)
    means = state.means.at[lanes, slot].set(jnp.where(here, mean, state.means[lanes, slot]))
    crowded = full & (slot == slots - 1)
    lengths = _lengths(before[:, None], state.draws.count[:, None], length[:, None], slots, jnp)
    second = lengths[:, 1::2] / jnp.maximum(lengths[:, ::2] + lengths[:, 1::2], 1)
    pairs = means[:, ::2] + (means[:, 1::2] - means[:, ::2]) * at_lanes(second, means).astype(means.dtype)
    merged_means = jnp.concatenate([pairs, jnp.zeros_like(pairs)], axis=1)
    odd = before // (2 * length) % 2 == 1  # the first pair is an odd batch: it goes into the second slot
    merged_means = jnp.where(at_lanes(odd, merged_means), jnp.roll(merged_means, 1, axis=1), merged_means)
    return Batched(
        state.draws,
        state.doubled + crowded,
        jnp.where(here, 0.0, state.total),
        jnp.where(here, 0.0, state.total_lost),
        jnp.where(at_lanes(crowded, means), merged_means, means),
        before,
    )


def _lengths(
    before: Array | np.ndarray, count: Array | np.ndarray, length: Array | np.ndarray, slots: int, numpy: ModuleType
) -> Any:
    """Return the number of draws of the batch in each slot, after `count` draws of this state."""
    begins = (_first(before, length) + numpy.arange(slots)[None]) * length
    return numpy.clip(numpy.minimum(begins + length, before + count) - numpy.maximum(begins, before), 0, None)


def _merge(batch: int, a: PyTree, b: PyTree) -> Series:
    a = _series(a, batch)
    b = _series(b, batch)
    lengths = np.concatenate([a.lengths, b.lengths], axis=1)
    means = np.concatenate([a.means, b.means], axis=1)
    return _binned(Series(a.draws.merge(b.draws), lengths, means), batch)


def _binned(series: Series, batch: int) -> Series:
    """Return the series in batches whose length depends on the numbers of draws and chains, not on the devices."""
    lengths = series.lengths
    means = series.means
    slots = _slots(len(lengths))
    starts = np.cumsum(lengths, axis=1) - lengths
    number = np.minimum(starts // _length(lengths, slots, batch), slots - 1)
    into = np.zeros((len(lengths), slots), lengths.dtype)
    chains = np.arange(len(lengths))[:, None]
    sums = np.zeros((len(lengths), slots, *means.shape[2:]))
    np.add.at(into, (chains, number), lengths)
    with np.errstate(invalid="ignore"):  # draws that are not finite lead to a result of NaN
        np.add.at(sums, (chains, number), np.where(at_lanes(lengths, means) > 0, means * at_lanes(lengths, means), 0.0))
    return Series(series.draws, into, sums / at_lanes(np.maximum(into, 1), sums))


def _length(lengths: Int[np.ndarray, "chains batches"], slots: int, batch: int) -> int:
    """Return the draws of a batch with which the longest chain has no more batches than there are slots."""
    length = batch
    while lengths.sum(axis=1).max() > slots * length or length < lengths.max():
        length *= 2
    return length


def _series(state: PyTree, batch: int) -> Series:
    """Return a state on the device as one on the host."""
    if isinstance(state, Series):
        return state
    anchor = np.asarray(state.draws.anchor).astype(np.float64)
    state = Batched(Totals.of(state.draws), *on_host(state[1:]))
    count = state.draws.count[:, None]
    length = (batch << state.doubled)[:, None]
    before = np.broadcast_to(state.before, state.draws.count.shape)[:, None]
    lengths = _lengths(before, count, length, state.means.shape[1], np)
    ends = np.cumsum(lengths, axis=1)
    rest = (state.total + state.total_lost) * at_lanes(1 << state.doubled, state.total)
    rest = rest[:, None] / at_lanes(np.maximum(lengths, 1), state.means)
    under_way = (ends == count) & (lengths > 0) & ((before + count) % length != 0)
    means = np.where(at_lanes(under_way, state.means), rest, state.means)
    return Series(state.draws, lengths, anchor[:, None] + 2 * means)


def _constant(state: PyTree) -> np.bool_ | Bool[np.ndarray, "*shape"]:
    return constant_of(state.draws)


def _finalize(batch: int, state: PyTree) -> Float64[np.ndarray, "*shape"]:
    series = _binned(_series(state, batch), batch)
    chains = len(series.lengths)
    shape = series.means.shape[2:]
    batches = _whole_batches(series.lengths, _length(series.lengths, series.lengths.shape[1], batch))
    if batches < FEWEST_BATCHES:
        return np.full(shape, np.nan)
    means = np.moveaxis(_with_rest(series, batches).reshape(chains, batches, -1), 2, 0)
    part = max(1, MEANS_AT_ONCE // (chains * batches))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        error = np.concatenate(
            [np.zeros(0), *(_error(means[i : i + part]) for i in range(0, len(means), part))]
        ).reshape(shape)
        of_draws = _variance(series.draws)
        total = series.draws.count.sum()
        size = of_draws / error * (total / series.lengths[:, :batches].sum())
        most = total * np.log10(total)
        return np.where(of_draws > 0, np.minimum(size, most), np.nan)


def _whole_batches(lengths: Int[np.ndarray, "chains batches"], length: int) -> int:
    """Return the number of batches that every chain has, without a last one that is short."""
    batches = int((lengths > 0).sum(axis=1).min())
    short = batches > 0 and (lengths[:, batches - 1] < length).any()
    return batches - int(short)


def _with_rest(series: Series, batches: int) -> Float64[np.ndarray, "chains batches *shape"]:
    """Return the means of the first batches, with the deviations of a short one after them added to the last.

    The variance is that of all draws: without the short batch, an outlier at the very end would raise the result.
    """
    means = series.means[:, :batches].copy()
    lengths = series.lengths
    if 0 < batches < lengths.shape[1]:
        last = lengths[:, batches - 1]
        rest = lengths[:, batches]
        fraction = np.where(rest < last, rest / np.maximum(last, 1), 0.0)
        apart = np.where(at_lanes(fraction, series.draws.mean) > 0, series.means[:, batches] - series.draws.mean, 0.0)
        means[:, -1] += at_lanes(fraction, apart) * apart
    return means


def _error(means: Float64[np.ndarray, "element chain batch"]) -> Float64[np.ndarray, "element"]:
    """Return the variance of the mean of all draws, from the means of batches `(element, chain, batch)`."""
    between = means.mean(2).var(1, ddof=1) if means.shape[1] > 1 else 0.0
    return (means.var(2).mean(1) + between) / effective_size(means)


def _variance(draws: Totals) -> np.float64 | Float64[np.ndarray, "*shape"]:
    """Return the variance of all chains together."""
    within = (draws.squares / at_lanes(np.maximum(draws.count, 1), draws.squares)).mean(0)
    return within + (draws.mean.var(0, ddof=1) if len(draws.mean) > 1 else 0.0)
