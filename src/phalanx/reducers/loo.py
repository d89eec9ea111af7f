r"""Reducer of leave-one-out cross-validation, from the largest importance ratios of each observation.

The posterior without observation $y_i$ is the posterior with weights $w_s \propto 1 / p(y_i \mid \theta_s)$. Their tail
is smoothed by a generalised Pareto distribution. The other weights enter through their sum alone, and
$w_s p(y_i \mid \theta_s)$ is 1 for each: the largest ratios, a sum and a count give the results of all draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from phalanx.reducers.pareto_tail import LEAST_TAIL, fit_pareto, pareto_quantiles, tail_length
from phalanx.reducers.reducer import Partial, Reducer
from phalanx.reducers.shifted import add_to, at_lanes, sum_type

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float64, Shaped

TAIL = 200
"""Ratios kept of each observation: as many as the tail of 4,000 draws has."""

CHUNK = 2**19
"""Ratios that the host sorts or fits at a time, which bounds its memory."""

LOG_TINY = float(np.log(np.finfo(float).tiny))
"""The least logarithm, relative to the largest weight, at which a tail begins."""


ROUNDING = 8
"""Units in the last place by which the logarithms of equal weights may differ: devices round elements of full vectors
and the elements left over differently."""


class PointwiseLoo(NamedTuple):
    r"""Leave-one-out predictive densities of observations `(...)`.

    Attributes:
        draws: number of draws.
        elpd: $\log p(y_i \mid y_{-i})$; NaN, as all results, for an entry that is no observation.
        lppd: $\log p(y_i \mid y)$, with the observation itself among the data.
        pareto_k: shape of the tail of the importance weights; minus infinity if the largest are equal, as for an
            observation that depends on no latent variable: the result is then exact.
    """

    draws: int
    elpd: np.ndarray
    lppd: np.ndarray
    pareto_k: np.ndarray


class Ratios(NamedTuple):
    """State of all chains of a device: log ratios `(1, ..., room)`, of which `filled` are set, and two sums.

    `rest` is the sum of the dropped ratios, relative to the logarithm `rest_at`. `density` is the sum of all densities,
    relative to the logarithm `density_at`; `lost` is its rounding error.
    """

    draws: Any
    filled: Any
    ratios: Any
    rest_at: Any
    rest: Any
    density_at: Any
    density: Any
    lost: Any


class KeptRatios(NamedTuple):
    """State on the host: the largest ratios `(..., tail + 1)`, and logarithms of the sums in float64."""

    draws: np.ndarray
    largest: np.ndarray
    rest: np.ndarray
    density: np.ndarray


def loo(tail: int = TAIL) -> Reducer:
    r"""Return a reducer of leave-one-out cross-validation by Pareto-smoothed importance sampling.

    In `reducers=` of `phx.mcmc` it reduces the log density of each observation of the model. With `phx.reduce` it
    reduces log densities that a function returns. For each observation it keeps `tail + 1` numbers, and room for some
    more, so memory does not grow with the draws. The tail of $S$ draws has $\min(S/5, 3\sqrt{S})$ ratios: up to `tail`
    of them, the results are those of all draws; beyond, the tail is the `tail` largest ratios. Entries that a mask
    leaves out, or that are missing and imputed, are not observations: their results are NaN. A function in `phx.reduce`
    marks such entries by a log density of plus infinity.

    Args:
        tail: the most ratios in a tail: 200 suffice for 4,400 draws.

    Returns:
        A reducer; its result is a `PointwiseLoo(draws, elpd, lppd, pareto_k)` of arrays with one entry for each
        observation. `posterior.loo()` sums them up and judges them.

    Raises:
        ValueError: when `tail` is not a whole number of at least 10.

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions as dist, phalanx as phx
        >>> def model(y):
        ...     mean = phx.sample("mean", dist.Normal(0.0, 10.0))
        ...     phx.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> reducers = {"loo": phx.reducers.loo()}
        >>> data = {"y": jnp.arange(5.0)}
        >>> posterior = phx.mcmc(model, data, keep=[], reducers=reducers, num_samples=500, progress=False)
        >>> posterior.reduced["loo"]["y"].elpd.shape
        (5,)

    Source:
        Vehtari, Gelman, Gabry (2017), Practical Bayesian model evaluation using leave-one-out cross-validation and
        WAIC; Vehtari, Simpson, Gelman, Yao, Gabry (2024), Pareto smoothed importance sampling.
    """
    if not isinstance(tail, int) or isinstance(tail, bool) or tail < 10:
        raise ValueError(f"loo: tail must be a whole number of at least 10, got {tail!r}.")
    init, update, merge, finalize = (Partial(fn, (tail,)) for fn in (_init, _update, _merge, _finalize))
    return Reducer(f"loo({tail})", init, update, merge, finalize, of_observations=True)


def _init(tail: int, example: Shaped[Array, "chains *shape"]) -> Ratios:
    chains, *shape = example.shape
    wide = sum_type(example.dtype)
    zero = jnp.zeros(1, jnp.int32)
    room = tail + 1 + max(chains, tail // 3)
    nothing = jnp.zeros((1, *shape), wide)
    lowest = jnp.full((1, *shape), -jnp.inf, wide)
    ratios = jnp.full((1, *shape, room), -jnp.inf, wide)
    return Ratios(zero, zero, ratios, lowest, nothing, lowest, nothing, nothing)


def _update(tail: int, state: Ratios, draw: Shaped[Array, "chains *shape"], where: Bool[Array, "chains"]) -> Ratios:
    here = at_lanes(where, draw)
    draw = jnp.where(here & ~jnp.isnan(draw), draw.astype(state.rest.dtype), -jnp.inf)
    room = state.ratios.shape[-1]
    full = state.filled[0] + len(draw) > room
    state = lax.cond(full, lambda state: _dropped(state, tail), lambda state: state, state)
    slots = jnp.where(where, state.filled[0] + jnp.cumsum(where) - 1, room)
    ratios = state.ratios.at[0, ..., slots].set(-draw, mode="drop")
    most, total, remainder = _with_densities(state, draw, here)
    count = where.sum(dtype=jnp.int32)
    return state._replace(
        draws=state.draws + count,
        filled=state.filled + count,
        ratios=ratios,
        density_at=most,
        density=total,
        lost=remainder,
    )


def _dropped(state: Ratios, tail: int) -> Ratios:
    """Keep the largest ratios, and add up the others."""
    num_kept = tail + 1
    largest = lax.top_k(state.ratios, num_kept)[0]
    least = largest[..., -1:]
    finite = jnp.isfinite(least)
    below = jnp.where(state.ratios < least, jnp.exp(state.ratios - least), 0.0).sum(-1)
    equal = (state.ratios >= least).sum(-1) - num_kept  # beyond those that are kept
    more = jnp.where(finite[..., 0], below + equal, 0.0)
    at = jnp.maximum(state.rest_at, jnp.where(finite, least, -jnp.inf)[..., 0])
    rest = state.rest * _power(state.rest_at, at) + more * _power(least[..., 0], at)
    room = state.ratios.shape[-1] - num_kept
    ratios = jnp.concatenate([largest, jnp.full((*largest.shape[:-1], room), -jnp.inf, largest.dtype)], axis=-1)
    return state._replace(filled=jnp.minimum(state.filled, num_kept), ratios=ratios, rest_at=at, rest=rest)


def _with_densities(
    state: Ratios, draw: Float[Array, "chains *shape"], here: Bool[Array, "chains ..."]
) -> tuple[Array, Array, Array]:
    """Return the sum of densities after adding those of a draw; an entry that is left out adds zero."""
    draw = jnp.where(jnp.isposinf(draw), -jnp.inf, draw)
    most = jnp.maximum(state.density_at, draw.max(0)[None])
    scale = _power(state.density_at, most)
    more = jnp.where(here, _power(draw, most), 0.0).sum(0)[None]
    return most, *add_to(state.density * scale, state.lost * scale, more)


def _power(log: Array, at: Array) -> Array:
    """Return `exp(log - at)`, 0 if `log` is minus infinity."""
    return jnp.where(jnp.isneginf(log), 0.0, jnp.exp(log - at))


def _kept(state: Ratios | KeptRatios, tail: int) -> KeptRatios:
    if isinstance(state, KeptRatios):
        return state
    largest, rest = _largest([np.asarray(state.ratios)[0]], tail + 1)
    at, sums, density_at, density, remainder = (
        np.asarray(part[0], np.float64) for part in (state.rest_at, state.rest, *state[5:])
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        before = np.log(sums) + at
        density = np.log(density + remainder) + density_at
    return KeptRatios(np.asarray(state.draws[0], np.int64), largest, np.logaddexp(rest, before), density)


def ratios_of(terms: Shaped[np.ndarray, "draws *shape"], tail: int) -> KeptRatios:
    """Return the state after log densities of some draws, on the host, where sorting is faster than on CPU devices."""
    wide = np.where(np.isnan(terms), -np.inf, terms)
    most = wide.max(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        powers = np.where(np.isneginf(wide), 0.0, np.exp(wide - most, dtype=np.float64))
        density = np.log(powers.sum(0)) + most
    ratios = [np.moveaxis(-wide, 0, -1)]
    if (missing := tail + 1 - len(terms)) > 0:
        ratios.append(np.full((*terms.shape[1:], missing), -np.inf, terms.dtype))
    largest, rest = _largest(ratios, tail + 1)
    return KeptRatios(np.asarray(len(terms)), largest, rest, density)


def _merge(tail: int, a: Ratios | KeptRatios, b: Ratios | KeptRatios) -> KeptRatios:
    a = _kept(a, tail)
    b = _kept(b, tail)
    largest, rest = _largest([a.largest, b.largest], tail + 1)
    for part in (a.rest, b.rest):
        rest = np.logaddexp(rest, part)
    return KeptRatios(a.draws + b.draws, largest, rest, np.logaddexp(a.density, b.density))


def _finalize(tail: int, state: Ratios | KeptRatios) -> PointwiseLoo:
    state = _kept(state, tail)
    draws = int(state.draws)
    length = min(tail_length(draws), tail, max(draws - 1, 0))
    return pointwise(state, length)


def pointwise(state: KeptRatios, length: int) -> PointwiseLoo:
    """Return the results, given the number of ratios in a tail."""
    draws = int(state.draws)
    shape = state.rest.shape
    largest = state.largest.reshape(-1, state.largest.shape[-1])
    rest = state.rest.ravel()
    elpd, shapes = (np.empty(rest.shape) for _ in range(2))
    for rows in _chunks(len(rest), largest.shape[-1]):
        sorted_ratios = np.sort(largest[rows].astype(np.float64))
        elpd[rows], shapes[rows] = left_out(sorted_ratios, rest[rows], length, draws)
        cutoff = sorted_ratios[:, sorted_ratios.shape[1] - length - 1]
        shapes[rows][are_equal(cutoff, sorted_ratios[:, -1], state.largest.dtype)] = -np.inf
    lppd = state.density - np.log(max(draws, 1))
    absent = (draws > 0) & np.isneginf(largest).all(1).reshape(shape)  # its log density is plus infinity
    parts = (elpd.reshape(shape), lppd, shapes.reshape(shape))
    return PointwiseLoo(draws, *(np.where(absent, np.nan, part) for part in parts))


def left_out(
    largest: Float64[np.ndarray, "rows kept"],
    rest: Float64[np.ndarray, "rows"],
    length: int,
    draws: int,
    log_weights: Float64[np.ndarray, "rows kept"] | None = None,
) -> tuple[Float64[np.ndarray, "rows"], Float64[np.ndarray, "rows"]]:
    """Return the log densities of observations that are left out, and the shapes of their tails.

    Args:
        largest: logarithms of the largest ratios, ascending.
        rest: logarithm of the sum of the other ratios.
        length: number of ratios in a tail.
        draws: number of all draws.
        log_weights: log weights of the draws of `largest`, if draws have weights: `largest` has all of them then.
    """
    most = largest[:, -1]
    with np.errstate(invalid="ignore"):
        logs = largest - most[:, None]
        rest = np.exp(rest - most)
    cutoff = np.maximum(logs[:, largest.shape[1] - length - 1], LOG_TINY)
    smooth = logs.copy()
    shapes = np.full(len(logs), np.inf)
    lengths = np.sum(logs[:, largest.shape[1] - length :] > cutoff[:, None], axis=1)
    for count in np.unique(lengths[lengths >= LEAST_TAIL]):
        rows = np.flatnonzero((lengths == count) & np.isfinite(most))
        smooth[rows, -count:], shapes[rows] = _smoothed(logs[rows, -count:], cutoff[rows])
    with np.errstate(invalid="ignore", divide="ignore"):
        total = rest + np.exp(smooth).sum(1)
        # a ratio times its density is the draw's weight but for the factor by which it is smoothed
        there = np.isfinite(logs)
        others = draws - there.sum(1) if log_weights is None else 0.0
        weights = 0.0 if log_weights is None else log_weights
        ones = others + np.where(there, np.exp(smooth - logs + weights), 0.0).sum(1)
        return np.where(np.isfinite(most), np.log(ones) - np.log(total) - most, -np.inf), shapes


def are_equal(
    least: Float64[np.ndarray, "rows"], most: Float64[np.ndarray, "rows"], dtype: DTypeLike
) -> Bool[np.ndarray, "rows"]:
    """Return whether the least and the largest of log weights of this type differ by rounding only."""
    with np.errstate(invalid="ignore"):  # both may be infinite
        return most - least <= ROUNDING * np.finfo(dtype).eps * np.maximum(np.abs(most), 1.0)


def _smoothed(
    tail: Float64[np.ndarray, "rows tail"], cutoff: Float64[np.ndarray, "rows"]
) -> tuple[Float64[np.ndarray, "rows tail"], Float64[np.ndarray, "rows"]]:
    """Return smoothed tails of log weights, at most 0, and their shapes; a tail without a fit stays as it is."""
    count = tail.shape[1]
    lowest = np.exp(cutoff)[:, None]
    tails = fit_pareto(np.exp(tail) - lowest)
    with np.errstate(invalid="ignore"):
        smooth = np.log(pareto_quantiles((np.arange(count) + 0.5) / count, tails) + lowest)
    good = np.isfinite(tails.shape) & np.isfinite(smooth[:, 0])
    return np.where(good[:, None], np.minimum(smooth, 0.0), tail), np.where(good, tails.shape, np.inf)


def _largest(
    parts: Sequence[Shaped[np.ndarray, "*shape _"]], num_kept: int
) -> tuple[Shaped[np.ndarray, "*shape {num_kept}"], Float64[np.ndarray, "*shape"]]:
    """Return the largest numbers of each row, and the logarithm of the sum of exponentials of the others."""
    shape = parts[0].shape[:-1]
    width = sum(part.shape[-1] for part in parts)
    flat = [part.reshape(-1, part.shape[-1]) for part in parts]
    largest = np.empty((len(flat[0]), num_kept), parts[0].dtype)
    rest = np.empty(len(flat[0]))
    for rows in _chunks(len(rest), width):
        partition = np.partition(np.concatenate([part[rows] for part in flat], axis=1), width - num_kept, axis=1)
        largest[rows] = partition[:, width - num_kept :]
        rest[rows] = np.logaddexp.reduce(partition[:, : width - num_kept].astype(np.float64), axis=1, initial=-np.inf)
    return largest.reshape(*shape, num_kept), rest.reshape(shape)


def _chunks(rows: int, width: int) -> list[slice]:
    step = max(CHUNK // width, 1)
    return [slice(first, first + step) for first in range(0, rows, step)]
