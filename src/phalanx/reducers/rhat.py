"""Reducer of R-hat, of chains or superchains; on the draws themselves, not on ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.reducers.moments import ChainSums, Totals, constant_of
from phalanx.reducers.reducer import Reducer

if TYPE_CHECKING:
    from jaxtyping import Float64


def rhat(superchains: int | None = None) -> Reducer:
    r"""Return a reducer of R-hat, $\sqrt{1 + B/W - 1/n}$.

    $B$ is the variance of the chains' means and $W$ the mean of their variances. Chains are not split and draws not
    ranked, since both would need all of the draws: it detects chains that are in different places, but not a drift
    common to all, which `ess()` detects. NaN where an element is constant or not finite, with fewer than two draws, and
    with one chain.

    Args:
        superchains: number of groups of consecutive chains, each of which begins at one point; the nested R-hat then
            compares groups instead of chains, as `diagnostics.nested_rhat` does. Groups of chains that begin apart
            agree whether or not they have converged, so that a run accepts it only with `init=phx.superchains(...)`.

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
        Gelman, Rubin (1992), Inference from iterative simulation using multiple sequences; Margossian et al. (2024),
        Nested R-hat.
    """
    if superchains is None:
        merge, finalize = ChainSums.merge, _Rhat(None)
        return Reducer(
            "rhat()", ChainSums.none, ChainSums.add, merge, finalize, statistic="r_hat", constant=constant_of
        )
    if not isinstance(superchains, int) or superchains < 2:
        raise ValueError(f"rhat: superchains must be a whole number of at least 2, got {superchains!r}.")
    name = f"rhat(superchains={superchains})"
    return Reducer(name, ChainSums.none, ChainSums.add, ChainSums.merge, _Rhat(superchains), superchains=superchains)


class _Rhat(NamedTuple):
    superchains: int | None

    def __call__(self, state: ChainSums | Totals) -> np.float64 | Float64[np.ndarray, "*shape"]:
        sums = Totals.of(state)
        draws = sums.count.min()
        if draws < 2 or len(sums.count) < 2:
            return np.full(sums.mean.shape[1:], np.nan)
        means, squares = sums.mean, sums.squares
        variances = squares / (sums.count - 1).reshape(-1, *[1] * (squares.ndim - 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.superchains is None:
                within, between = variances.mean(0), means.var(0, ddof=1)
                return np.sqrt((draws - 1) / draws + between / within)
            groups, variances = (_grouped(values, self.superchains) for values in (means, variances))
            between = groups.mean(1).var(0, ddof=1)
            inside = groups.var(1, ddof=1) if groups.shape[1] > 1 else np.zeros(groups[:, 0].shape)
            return np.sqrt(1 + between / (inside + variances.mean(1)).mean(0))


def _grouped(
    values: Float64[np.ndarray, "chains *shape"], groups: int
) -> Float64[np.ndarray, "{groups} members *shape"]:
    if len(values) % groups:
        raise ValueError(f"rhat: {len(values)} chains cannot be divided evenly among {groups} superchains.")
    return values.reshape(groups, -1, *values.shape[1:])
