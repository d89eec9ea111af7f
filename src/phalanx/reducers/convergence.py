"""R-hat, of chains or superchains, and effective sample sizes by batch means; of draws themselves, not of ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx.reducers.moments import Sums, moments_of
from phalanx.reducers.reducer import Reducer, on_host
from phalanx.reducers.shifted import at_lanes


def rhat(superchains: int | None = None) -> Reducer:
    r"""R-hat: $\sqrt{1 + B/W - 1/n}$ with $B$ the variance of the chains' means and $W$ the mean of their variances.

    Chains are not split and draws not ranked, since both would need all of the draws: it tells chains that are in
    different places, and not a drift that all have in common.

    Args:
        superchains: number of groups of consecutive chains; the nested R-hat then compares groups instead of chains.

    Returns:
        A reducer; its result is an array in the shape of the variable.

    Raises:
        ValueError: when `superchains` is not a whole number of at least 2, or does not divide the chains.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(0.0, 1.0))
        >>> posterior = phx.mcmc(model, keep=[], reducers={"r": phx.reducers.rhat()}, num_samples=500, progress=False)
        >>> bool(posterior.reduced["r"]["x"] < 1.05)
        True

    Source:
        Gelman, Rubin (1992), Inference from iterative simulation using multiple sequences; Margossian et al. (2022),
        Nested R-hat.
    """
    if superchains is not None and (not isinstance(superchains, int) or superchains < 2):
        raise ValueError(f"rhat: superchains must be a whole number of at least 2, got {superchains!r}.")
    name = "rhat()" if superchains is None else f"rhat(superchains={superchains})"
    return Reducer(name, Sums.none, Sums.add, Sums.merge, _Rhat(superchains))


class _Rhat(NamedTuple):
    superchains: int | None

    def __call__(self, state: Sums) -> np.ndarray:
        sums = Sums(*on_host(state))
        draws = sums.count.min()
        if draws < 2 or len(sums.count) < 2:
            return np.full(sums.origin.shape[1:], np.nan)
        means, variances = sums.chain_means(), sums.chain_squares() / (draws - 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.superchains is None:
                within, between = variances.mean(0), means.var(0, ddof=1)
                return np.sqrt((draws - 1) / draws + between / within)
            groups, variances = (_grouped(values, self.superchains) for values in (means, variances))
            between = groups.mean(1).var(0, ddof=1)
            inside = groups.var(1, ddof=1) if groups.shape[1] > 1 else np.zeros(groups[:, 0].shape)
            return np.sqrt(1 + between / (inside + variances.mean(1)).mean(0))


def _grouped(values: np.ndarray, groups: int) -> np.ndarray:
    if len(values) % groups:
        raise ValueError(f"rhat: {len(values)} chains cannot be parted into {groups} superchains.")
    return values.reshape(groups, -1, *values.shape[1:])


class Batches(NamedTuple):
    """The draws, the batch under way, and the means of the batches that are full."""

    draws: Any
    size: Any
    total: Any
    means: Any


def ess(batch: int = 100) -> Reducer:
    r"""Effective sample size over all chains, by batch means: $N s^2 / (b\, s_b^2)$.

    $s^2$ is the variance of all $N$ draws and $s_b^2$ that of the means of batches of $b$ draws. It is right when
    batches are long against the time in which draws forget one another. Batches do not span blocks of a run.

    Args:
        batch: draws of a batch.

    Returns:
        A reducer; its result is an array in the shape of the variable.

    Raises:
        ValueError: when `batch` is no whole number of at least 1.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(0.0, 1.0))
        >>> posterior = phx.mcmc(model, keep=[], reducers={"e": phx.reducers.ess(50)}, progress=False)
        >>> bool(posterior.reduced["e"]["x"] > 200)
        True

    Source:
        Flegal, Jones (2010), Batch means and spectral variance estimators in Markov chain Monte Carlo.
    """
    if not isinstance(batch, int) or batch < 1:
        raise ValueError(f"ess: batch must be a whole number of at least 1, got {batch!r}.")
    return Reducer(f"ess({batch})", _no_batches, _AddToBatch(batch), _merge_batches, _Ess(batch))


def _no_batches(example: Array) -> Batches:
    draws = Sums.none(example)
    return Batches(draws, jnp.zeros(example.shape[0], jnp.int32), draws.origin, Sums.none(example))


class _AddToBatch(NamedTuple):
    batch: int

    def __call__(self, state: Batches, draw: Array, where: Array) -> Batches:
        draws = state.draws.add(draw, where)
        away = jnp.where(at_lanes(where, draw), draw.astype(draws.origin.dtype) - draws.origin, 0.0)
        size, total = state.size + where, state.total + away
        full = size == self.batch
        means = state.means.add(draws.origin + total / self.batch, full)
        total = jnp.where(at_lanes(full, total), 0.0, total)
        return Batches(draws, jnp.where(full, 0, size), total, means)


def _merge_batches(a: Batches, b: Batches) -> Batches:
    # the batch that a had under way is given up: it would have to go on in b
    size, total = on_host((b.size, b.total))
    return Batches(Sums.merge(a.draws, b.draws), size, total, Sums.merge(a.means, b.means))


class _Ess(NamedTuple):
    batch: int

    def __call__(self, state: Batches) -> np.ndarray:
        draws, means = moments_of(state.draws), moments_of(state.means)
        with np.errstate(divide="ignore", invalid="ignore"):
            return draws.count * draws.variance / (self.batch * means.variance)
