"""The evidence by importance sampling: a fitted guide is the proposal."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from phalanx.diagnostics.psis import Smoothed, smooth, threshold

BRIDGED = 20
"""Iterations of the bridge's equation, each of which brings it several times closer."""


class Evidence(NamedTuple):
    r"""An estimate of $\log p(\text{data})$.

    Attributes:
        log_evidence: by importance sampling from the guide.
        error: its standard error, with what Markov moves of the draws show of missed tails; it means nothing where
            `reliable` is false.
        elbo: the evidence lower bound, which it is not below but for noise.
        elbo_error: the standard error of the bound.
        k_hat: shape of the weights' tail.
        reliable: whether `k_hat` is low enough for as many draws, the log density of each is a number, and no region
            was found that the guide misses.
        num_draws: how many there were.
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
        log: logarithms, as they are.
        smoothed: with a smoothed tail.
        undefined: draws whose log density is not a number. They weigh nothing, and what they should weigh nobody knows.
    """

    log: np.ndarray
    smoothed: Smoothed
    undefined: int = 0

    @classmethod
    def of(cls, log_p: np.ndarray, log_q: np.ndarray) -> Weights:
        """Of log densities under the model and the guide; a draw without a density under the model weighs nothing."""
        log = np.asarray(log_p, np.float64) - np.asarray(log_q, np.float64)
        undefined = np.isnan(log)
        log = np.where(undefined, -np.inf, log)
        return cls(log, smooth(log), int(undefined.sum()))

    @property
    def normalized(self) -> np.ndarray:
        """Smoothed weights that add up to one."""
        log = self.smoothed.log_weights
        weights = np.exp(log - log.max()) if np.isfinite(log.max()) else np.full(len(log), np.nan)
        return weights / weights.sum()

    @property
    def reliable(self) -> bool:
        """Whether averages with these weights can be trusted."""
        return not self.undefined and self.smoothed.k_hat <= threshold(len(self.log))

    def bridged(self, log_weights: np.ndarray) -> float:
        """Return the log evidence by bridge sampling between these draws and others of the posterior.

        Importance sampling sees the posterior where the guide draws; the bridge also where the others are.

        Args:
            log_weights: of the draws of the posterior.

        Source:
            Meng, Wong (1996), Simulating ratios of normalizing constants via a simple identity.
        """
        mine, theirs = len(self.log), len(log_weights)
        level = float(self.log.max() + math.log(np.mean(np.exp(self.log - self.log.max()))))
        ours, others = self.log - level, log_weights - level
        part, ratio = theirs / (mine + theirs), 0.0
        for _ in range(BRIDGED):
            reference = math.log1p(-part) + ratio
            above = np.mean(np.exp(ours - np.logaddexp(math.log(part) + ours, reference)))
            below = np.mean(np.exp(-np.logaddexp(math.log(part) + others, reference)))
            ratio = float(np.log(above) - np.log(below))
        return level + ratio

    def evidence(self, gap: float = 0.0) -> Evidence:
        """Return the estimate, whose error includes a gap that is known from elsewhere."""
        count, highest = len(self.log), self.log.max()
        if not np.isfinite(highest):
            return Evidence(math.nan, math.nan, -math.inf, math.nan, math.inf, False, count)
        raw = np.exp(self.log - highest)
        error = math.hypot(float(np.std(raw, ddof=1) / raw.mean() / math.sqrt(count)), gap)
        finite = bool(np.isfinite(self.log).all())
        elbo = float(self.log.mean()) if finite else -math.inf
        elbo_error = float(np.std(self.log, ddof=1) / math.sqrt(count)) if finite else math.nan
        log_evidence = float(highest + math.log(raw.mean()))
        return Evidence(log_evidence, error, elbo, elbo_error, self.smoothed.k_hat, self.reliable, count)
