r"""Acceptance rate of many chains as one number that responds to stuck chains: their harmonic mean.

If a quarter of all chains sit where no trajectory succeeds and the others accept every one, the mean is .75: the step
size stays, and those chains never move again. The harmonic mean is small. Tuning aims at the harmonic mean that belongs
to a mean of `target` where energy errors are normal, $N(2k^2, 4k^2)$, as they are in many dimensions: there the step
size is the same.

NUTS and HMC aim at the harmonic mean until the last windows of warm-up, so that chains which begin where trajectories
fail move on. The plain mean in the last windows gives the final step size. Kernels whose chains share the length of a
trajectory aim at the harmonic mean in all windows: a chain in a narrow arm of the posterior is stuck there for long.

In most rounds no chain is stuck, so that the mean over rounds must equal that over all their draws.

Source: Hoffman, Radul, Sountsov (2021), An adaptive-MCMC scheme for setting trajectory lengths in Hamiltonian Monte
Carlo, for the harmonic mean; Beskos et al. (2013), Optimal tuning of the hybrid Monte Carlo algorithm, for the errors.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from scipy.special import ndtr, ndtri

from phalanx.adaptation.tuner import array_module

LEAST_RATE = 0.01
"""Lower bound on each rate: with a bound of zero, one draw would decide for a thousand chains. This one accepts eight
failing draws in a thousand where all others succeed: fewer cost leapfrogs on posteriors without narrow tails."""


def harmonic_mean(inverse: Any, mean: float) -> Any:
    r"""Return the harmonic mean of acceptance rates, to first order around its expected value.

    It is $h (2 - h m)$, where $m$ is the mean of the inverse rates and $h$ the expected value. It is linear in $m$, so
    that its mean over rounds is that of all their draws; in a mean over the rounds' harmonic means, a round of stuck
    chains would weigh no more than a round of success. It is at least $h - 1$, or a first round would decide for all.

    Args:
        inverse: mean of the inverses of acceptance rates, each of which counts as at least `LEAST_RATE`.
        mean: their harmonic mean where the step size is right.
    """
    return mean - array_module(inverse).minimum(mean * (mean * inverse - 1), 1.0)


@cache
def harmonic_mean_of_normal_errors(mean: float) -> float:
    r"""Return the harmonic mean of rates $\min(1, e^{-E})$ with this mean, where the energy errors $E$ are normal.

    With a mean of $2 \Phi(-k)$ the mean of the inverse is $\Phi(-k) + e^{4 k^2} \Phi(3 k)$.
    """
    k = -float(ndtri(mean / 2))
    return 1.0 / float(ndtr(-k) + math.exp(4 * k * k) * ndtr(3 * k))
