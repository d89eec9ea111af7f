r"""Weights of particles at the next temperature, the evidence, and the influence of every ancestor on it.

Particles of the temperatures $\beta_s$, with evidences $Z_s$, are together draws from the mixture of their
distributions. At the power $\beta$ of the likelihood $L$ a particle has the weight

$$w(x) = \frac{L(x)^\beta}{\frac1t \sum_s L(x)^{\beta_s} / Z_s},$$

and the mean weight estimates $Z(\beta)$. Tempered SMC weighs the particles of the last temperature, persistent sampling
those of all. An ancestor is a draw from the prior. Ancestors are independent, so that the variance of the evidence is
that of a sum of their influences, whatever the kernel forgets (Chan, Lai, 2013; Lee, Whiteley, 2018).

Source: Del Moral, Doucet, Jasra (2006), Sequential Monte Carlo samplers; Karamanis, Seljak (2024), Persistent sampling;
Chan, Lai (2013), A general theory of particle filters in hidden Markov models; Lee, Whiteley (2018), Variance
estimation in the particle filter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.mesh.total import BITS

if TYPE_CHECKING:
    from jaxtyping import Float64, Int

LEAST_LOG_LIKELIHOOD = -1e300
"""Log likelihood of a particle that contradicts the data: a finite number, whose product with zero is zero."""

HALVINGS, SMALLEST = 32, 1e-15
"""Steps of the search for a temperature, and its first increment."""


class Temperature(NamedTuple):
    """A temperature with its evidence.

    Attributes:
        power: the power of the likelihood.
        log_evidence: logarithm of the evidence.
        influence: derivative of it by the share of each ancestor among all, `(ancestor,)`; it adds up to zero.
    """

    power: float
    log_evidence: float
    influence: Float64[np.ndarray, "ancestor"]


class Weighted(NamedTuple):
    """Particles of the pool, weighted for a temperature.

    Attributes:
        at: the temperature.
        weights: they add up to one, `(particle,)`.
        ess: effective number of the particles.
        of_ancestors: weights by ancestor, `(ancestor,)`.
        mean_log_likelihood: weighted mean of the log likelihood.
        mean_influence: influence of each ancestor on that mean, `(ancestor,)`.
    """

    at: Temperature
    weights: Float64[np.ndarray, "particle"]
    ess: float
    of_ancestors: Float64[np.ndarray, "ancestor"]
    mean_log_likelihood: float
    mean_influence: Float64[np.ndarray, "ancestor"]


@dataclass(frozen=True)
class Pool:
    """Particles that are weighted: of the last temperature, or of all.

    Attributes:
        keeps_all: true for persistent sampling.
        temperatures: those of the particles.
        log_likelihood: of the particles of each temperature, `(particle,)`.
        ancestors: their ancestors, `(particle,)`.
    """

    keeps_all: bool
    temperatures: tuple[Temperature, ...] = ()
    log_likelihood: tuple[Float64[np.ndarray, "particle"], ...] = ()
    ancestors: tuple[Int[np.ndarray, "particle"], ...] = ()

    def with_particles(
        self, at: Temperature, log_likelihood: Float64[np.ndarray, "particle"], ancestors: Int[np.ndarray, "particle"]
    ) -> Pool:
        """Return the pool with the particles of another temperature."""
        pool = self if self.keeps_all else Pool(False)
        return replace(
            self,
            temperatures=(*pool.temperatures, at),
            log_likelihood=(*pool.log_likelihood, np.maximum(log_likelihood, LEAST_LOG_LIKELIHOOD)),
            ancestors=(*pool.ancestors, ancestors),
        )

    def next(self, target_ess: float) -> Weighted:
        """Return the particles weighted for the highest power at which as many are effective, or for one.

        Args:
            target_ess: effective particles, as a fraction of those of one temperature that do not contradict the data.
        """
        log_likelihood = np.concatenate(self.log_likelihood)
        mixture = self._log_mixture()
        possible = min(np.mean([np.mean(part > LEAST_LOG_LIKELIHOOD) for part in self.log_likelihood]), 1.0)
        least = target_ess * possible * len(self.log_likelihood[0])

        def suffices(power: float) -> bool:
            return bool(_ess(power * log_likelihood - mixture) >= least)

        return self.at(_highest(suffices, self.temperatures[-1].power))

    def at(self, power: float) -> Weighted:
        """Return the particles weighted for a power of the likelihood."""
        log_likelihood = np.concatenate(self.log_likelihood)
        ancestors = np.concatenate(self.ancestors)
        mixture = self._log_mixture()
        roots = len(self.ancestors[0])
        count = len(log_likelihood)
        log_weights = power * log_likelihood - mixture
        log_sum = float(np.logaddexp.reduce(log_weights))
        weights = np.exp(log_weights - log_sum)
        of_ancestors = np.bincount(ancestors, weights, roots)
        influence = of_ancestors
        has_weight = weights > 0
        for stage, part in zip(self.temperatures, self.ancestors, strict=True):
            # the share of a temperature in the weighted mixture, by which an ancestor's part of its particles counts
            share = weights[has_weight] @ np.exp(
                (stage.power * log_likelihood - stage.log_evidence - mixture)[has_weight]
            )
            share /= len(self.temperatures)
            influence = influence + share * (stage.influence - np.bincount(part, minlength=roots) / len(part))
        mean_log_likelihood = float(weights[has_weight] @ log_likelihood[has_weight])
        apart = np.where(has_weight, weights * (log_likelihood - mean_log_likelihood), 0.0)
        temperature = Temperature(power, log_sum - math.log(count), influence)
        ess = _ess(log_weights)
        return Weighted(
            temperature, weights, ess, of_ancestors, mean_log_likelihood, np.bincount(ancestors, apart, roots)
        )

    def _log_mixture(self) -> Float64[np.ndarray, "particle"]:
        log_likelihood = np.concatenate(self.log_likelihood)
        log_mixture = np.full(len(log_likelihood), -np.inf)
        for temperature in self.temperatures:
            log_mixture = np.logaddexp(log_mixture, temperature.power * log_likelihood - temperature.log_evidence)
        return log_mixture - math.log(len(self.temperatures))


def first_temperature(count: int) -> Temperature:
    """Return the temperature of the prior, whose evidence is one."""
    return Temperature(0.0, 0.0, np.zeros(count))


def resampled(weights: Float64[np.ndarray, "particle"], count: int, uniform: float) -> Int[np.ndarray, "{count}"]:
    """Return numbers of particles, each as often as its weight says, up to one (systematic resampling).

    Args:
        weights: they add up to one.
        count: numbers to return.
        uniform: a random number on [0, 1).
    """
    edges = np.cumsum(weights)
    indices = np.searchsorted(edges / edges[-1], (np.arange(count) + uniform) / count, side="right")
    return np.minimum(indices, np.flatnonzero(weights)[-1])


def effective_number(shares: Float64[np.ndarray, "ancestor"]) -> float:
    """Return the number of equal shares with the same sum of squares."""
    return float(1.0 / np.sum(np.square(shares)))


def _ess(log_weights: Float64[np.ndarray, "particle"]) -> float:
    weights = np.exp(log_weights - log_weights.max())
    return float(weights.sum() ** 2 / np.square(weights).sum())


def _highest(suffices: Callable[[float], bool], before: float) -> float:
    """Return the highest power, rounded to `BITS` bits, that suffices; the least above `before` if none does."""
    if suffices(1.0):
        return 1.0
    low = math.log(SMALLEST)
    high = math.log(1.0 - before)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if suffices(before + math.exp(middle)) else (low, middle)
    power = _round_down(before + math.exp(low))
    return power if power > before else min(_round_down(before, more=1), 1.0)


def _round_down(power: float, more: int = 0) -> float:
    """Return a power with `BITS` bits, rounded down, so that its product with a log likelihood is exact.

    Args:
        power: the power.
        more: units of the last bit to add.
    """
    fraction, exponent = math.frexp(power)
    return math.ldexp(math.floor(math.ldexp(fraction, BITS)) + more, exponent - BITS)
