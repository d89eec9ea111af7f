"""Comparing Monte-Carlo estimates with exact answers, at a declared rate of false failures."""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.stats import norm

from phalanx.diagnostics import mcse

FALSE_FAILURES = 1e-6
"""Probability that one comparison fails though the kernel is right, if the error is normal and its size known.

The Monte-Carlo error is itself estimated from a few hundred effective draws, to some 5%: with a rate this small on each
of a few hundred comparisons, one false failure in a thousand runs of the suite is a generous bound.
"""


def assert_moments(draws: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> None:
    """Mean and standard deviation of draws (chain, draw, ...) against exact ones, in Monte-Carlo standard errors."""
    limit = norm.isf(FALSE_FAILURES / 2)
    kinds: tuple[tuple[Literal["mean", "sd"], np.ndarray, np.ndarray], ...] = (
        ("mean", draws.mean((0, 1)), mean),
        ("sd", draws.std((0, 1), ddof=1), sd),
    )
    for kind, estimate, exact in kinds:
        error = (estimate - exact) / mcse(draws.astype(np.float64), kind)
        assert np.abs(error).max() < limit, f"{kind}: {estimate} against {exact}, off by {error} standard errors"
