"""The evidence by importance sampling: a fitted guide is the proposal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jax import Array

from phalanx.diagnostics.psis import Smoothed, smooth, threshold

if TYPE_CHECKING:
    from jaxtyping import Float64, Shaped

BRIDGED = 20
"""Iterations of the bridge's fixed-point equation, each of which reduces the error several times."""


class Evidence(NamedTuple):
    r"""An estimate of $\log p(\text{data})$.

    Attributes:
        log_evidence: the estimate, by importance sampling from the guide.
        error: its standard error, with the gap to draws after Markov moves; meaningless if `reliable` is false.
        elbo: the evidence lower bound, which is below the estimate but for noise.
        elbo_error: the standard error of the bound.
        k_hat: shape of the weights' tail.
        reliable: whether `k_hat` is low enough for the number of draws, the log density of each is a number, and no
            region was found that the guide misses.
        num_draws: number of draws.
    """

    log_evidence: float
    error: float
    elbo: float
    elbo_error: float
    k_hat: float
    reliable: bool
    num_draws: int


class Weights(NamedTuple):
    """Importance weights of draws from a guide.

    Attributes:
        log: raw logarithms.
        smoothed: logarithms with a smoothed tail.
        undefined: draws whose log density is not a number. They have weight zero, and their true weight is not known.
    """

    log: Float64[np.ndarray, "draw"]
    smoothed: Smoothed
    undefined: int = 0

    @classmethod
    def of(cls, log_p: Shaped[Array | np.ndarray, "draw"], log_q: Shaped[Array | np.ndarray, "draw"]) -> Weights:
        """Return the weights, given log densities under model and guide; a draw with NaN gets weight zero."""
        log = np.asarray(log_p, np.float64) - np.asarray(log_q, np.float64)
        undefined = np.isnan(log)
        log = np.where(undefined, -np.inf, log)
        return cls(log, smooth(log), int(undefined.sum()))

    @property
    def normalized(self) -> Float64[np.ndarray, "draw"]:
        """Smoothed weights that add up to one."""
        log = self.smoothed.log_weights
        weights = np.exp(log - log.max()) if np.isfinite(log.max()) else np.full(len(log), np.nan)
        return weights / weights.sum()

    @property
    def reliable(self) -> bool:
        """True if averages with these weights can be trusted."""
        return not self.undefined and self.smoothed.k_hat <= threshold(len(self.log))

    def bridged(self, log_weights: Shaped[np.ndarray, "moved"]) -> float:
        """Return the log evidence by bridge sampling between these draws and others of the posterior.

        Importance sampling integrates over the region of the guide's draws; the bridge, over that of the others too.

        Args:
            log_weights: log weights of the draws of the posterior.

        Source:
            Meng, Wong (1996), Simulating ratios of normalizing constants via a simple identity.
        """
        mine = len(self.log)
        theirs = len(log_weights)
        level = float(self.log.max() + math.log(np.mean(np.exp(self.log - self.log.max()))))
        ours = self.log - level
        others = log_weights - level
        part = theirs / (mine + theirs)
        ratio = 0.0
        for _ in range(BRIDGED):
            reference = math.log1p(-part) + ratio
            above = np.mean(np.exp(ours - np.logaddexp(math.log(part) + ours, reference)))
            below = np.mean(np.exp(-np.logaddexp(math.log(part) + others, reference)))
            ratio = float(np.log(above) - np.log(below))
        return level + ratio

    def evidence(self, gap: float = 0.0) -> Evidence:
        """Return the estimate, whose error includes the `gap` to another estimate."""
        count = len(self.log)
        highest = self.log.max()
        if not np.isfinite(highest):
            return Evidence(math.nan, math.nan, -math.inf, math.nan, math.inf, False, count)
        raw = np.exp(self.log - highest)
        error = math.hypot(float(np.std(raw, ddof=1) / raw.mean() / math.sqrt(count)), gap)
        finite = bool(np.isfinite(self.log).all())
        elbo = float(self.log.mean()) if finite else -math.inf
        elbo_error = float(np.std(self.log, ddof=1) / math.sqrt(count)) if finite else math.nan
        log_evidence = float(highest + math.log(raw.mean()))
        return Evidence(log_evidence, error, elbo, elbo_error, self.smoothed.k_hat, self.reliable, count)
