r"""The acceptance rate of many chains as one number that sees those that are stuck.

Where a quarter of all chains sit where no trajectory succeeds and the others accept every one, the mean says .75 and
the step size is left as it is: the first never move again. Their harmonic mean is small. The step size is tuned to that
which a mean of `target` goes with where energy errors are normal, $N(2k^2, 4k^2)$, as in many dimensions they are:
there it is the same step size.

Source: Hoffman, Radul, Sountsov (2021), An adaptive-MCMC scheme for setting trajectory lengths in Hamiltonian Monte
Carlo, for the harmonic mean; Beskos et al. (2013), Optimal tuning of the hybrid Monte Carlo algorithm, for the errors.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr, ndtri

LEAST = 0.02
"""Rates count as no less: with a thousand chains one would decide for all."""


def harmonic_mean(rates: np.ndarray) -> float:
    """The harmonic mean of acceptance rates; what is not a number has not been accepted."""
    return 1.0 / float(np.mean(1.0 / np.maximum(np.nan_to_num(rates), LEAST)))


def harmonic_mean_of_normal_errors(mean: float) -> float:
    r"""The harmonic mean of rates $\min(1, e^{-E})$ whose mean is given, where the energy errors $E$ are normal.

    With a mean of $2 \Phi(-k)$ the mean of the inverse is $\Phi(-k) + e^{4 k^2} \Phi(3 k)$.
    """
    k = -float(ndtri(mean / 2))
    return 1.0 / float(ndtr(-k) + math.exp(4 * k * k) * ndtr(3 * k))
