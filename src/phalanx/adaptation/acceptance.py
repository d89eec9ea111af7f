r"""The acceptance rate of many chains as one number that sees those that are stuck.

Where a quarter of all chains sit where no trajectory succeeds and the others accept every one, the mean says .75 and
the step size is left as it is: the first never move again. Their harmonic mean is small. The step size is tuned to that
which a mean of `target` goes with where energy errors are normal, $N(2k^2, 4k^2)$, as in many dimensions they are:
there it is the same step size.

A chain that wanders into a tail of narrow curvature is stuck there for long, and then the tails are badly known. In
most rounds no chain is, in some one: what such a round says must weigh as much as it would among the draws of all.

Source: Hoffman, Radul, Sountsov (2021), An adaptive-MCMC scheme for setting trajectory lengths in Hamiltonian Monte
Carlo, for the harmonic mean; Beskos et al. (2013), Optimal tuning of the hybrid Monte Carlo algorithm, for the errors.
"""

from __future__ import annotations

import math
from functools import cache

from scipy.special import ndtr, ndtri

LEAST = 0.01
"""Rates count as no less: were it nothing, one draw would decide for a thousand chains. Where all others succeed it
lets some eight draws in a thousand fail: fewer cost leapfrogs on posteriors that have no narrow tails."""


def harmonic_mean(inverse: float, expected: float) -> float:
    r"""The harmonic mean of acceptance rates, to first order in their inverses' around what is expected.

    It is $h (2 - h m)$, where $m$ is the mean of inverses and $h$ what is expected: linear, so that its mean over
    rounds is that of all their draws. Of rounds' own harmonic means no number of stuck chains would count for more than
    the others' success. No less than $h - 1$, or a first round would decide for all.

    Args:
        inverse: mean of the inverses of acceptance rates, none of which counts as less than `LEAST`.
        expected: their harmonic mean where the step size is right.
    """
    return expected - min(expected * (expected * inverse - 1), 1.0)


@cache
def harmonic_mean_of_normal_errors(mean: float) -> float:
    r"""The harmonic mean of rates $\min(1, e^{-E})$ whose mean is given, where the energy errors $E$ are normal.

    With a mean of $2 \Phi(-k)$ the mean of the inverse is $\Phi(-k) + e^{4 k^2} \Phi(3 k)$.
    """
    k = -float(ndtri(mean / 2))
    return 1.0 / float(ndtr(-k) + math.exp(4 * k * k) * ndtr(3 * k))
