"""Test of whether divergent draws gather at small, large, central or extreme values of some quantity."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from math import comb, factorial, floor

import numpy as np
from scipy.special import ndtr

FALSE_ALARMS = 0.001
"""Probability of a report that divergences gather, over all quantities, if they do not."""

FEWEST = 5
"""Fewest divergences that are tested."""

REFERENCES = 2000
"""The most draws with which divergent ones are compared."""

DIVERGENT = 200
"""The most divergent draws that are compared."""

MOST_QUANTITIES = 10_000
"""The most quantities that are tested, those of small variables first: scales are among them."""

FOLDED = 10.0
"""Factor on the p-values of distances from the median, since small and large values lie far from it, too."""

EXACT = 16
"""Number of uniform variables up to which the distribution of their mean is evaluated by its series."""


def gathers(diverging: np.ndarray, columns: Iterable[tuple[str, np.ndarray]]) -> str | None:
    """Return the values at which divergent draws gather, in words; None if they gather at no quantity's values.

    If divergences do not gather, the ranks of the divergent draws among all draws are uniform, quantity by quantity,
    and so are the ranks of their distances from the median. Their means are compared with the means of independent
    uniform variables. Only the first of consecutive divergences counts.

    Args:
        diverging: mask of the draws that diverged, `(chain, draw)`.
        columns: names of scalar quantities and their draws, `(chain, draw)`.

    Returns:
        Words such as `spread is small`, for the quantity of the least p-value.
    """
    first = diverging.astype(bool).copy()
    first[:, 1:] &= ~first[:, :-1]
    divergent = np.flatnonzero(first)
    if len(divergent) < FEWEST:
        return None
    divergent = divergent[:: -(-len(divergent) // DIVERGENT)]
    others = np.flatnonzero(~diverging.astype(bool).ravel())
    if not len(others):
        return None
    others = others[:: -(-len(others) // REFERENCES)]
    least, words, tests = 1.0, None, 0
    for name, values in islice(columns, MOST_QUANTITIES):
        flat = values.reshape(-1)
        reference = np.sort(flat[others])
        if not np.isfinite(reference).all() or reference[0] == reference[-1]:
            continue
        at = flat[divergent]
        ranks = np.searchsorted(reference, at, "left") + np.searchsorted(reference, at, "right") + 1
        quantiles = ranks / (2 * len(reference) + 2)
        tests += 2
        for shares, low, high, penalty in (
            (quantiles, "small", "large", 1.0),
            (np.abs(2 * quantiles - 1), "near its median", "far from its median", FOLDED),
        ):
            mean = float(shares.mean())
            chance = penalty * 2 * mean_of_uniforms(min(mean, 1 - mean), len(shares))
            if chance < least:
                least, words = chance, f"{name} is {low if mean < 0.5 else high}"
    return words if least * tests < FALSE_ALARMS else None


def mean_of_uniforms(mean: float, count: int) -> float:
    """Return the probability that the mean of independent uniform variables on (0, 1) is no more than `mean`.

    Source: P. Hall (1927), J. O. Irwin (1927), on the distribution of means of samples from a uniform population.
    """
    if count > EXACT:
        return float(ndtr((mean - 0.5) * np.sqrt(12 * count)))
    if mean > 0.5:  # the series cancels badly in the upper half
        return 1.0 - mean_of_uniforms(1.0 - mean, count)
    total = mean * count
    terms = ((-1) ** j * comb(count, j) * (total - j) ** count for j in range(floor(total) + 1))
    return min(max(sum(terms) / factorial(count), 0.0), 1.0)
