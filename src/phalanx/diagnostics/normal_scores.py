"""Normal quantiles of the ranks of draws, which make R-hat and ESS independent of scale and of heavy tails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtri

if TYPE_CHECKING:
    from jaxtyping import Float64, Int

# Blom (1958): with this offset the scores are nearly the means of the normal order statistics
_OFFSET = 3 / 8


def normal_scores(
    order: Int[np.ndarray, "element value"], ordered: Float64[np.ndarray, "element value"]
) -> Float64[np.ndarray, "element value"]:
    r"""Return the normal scores $\Phi^{-1}((r - 3/8) / (S + 1/4))$ of the ranks `r` of `S` values; ties share a rank.

    Args:
        order: the indices of the smallest, the second smallest, ... value, `(element, value)`.
        ordered: the values in that order, `(element, value)`.

    Returns:
        The score of each value at its own index, `(element, value)`.

    Source: A. Vehtari, A. Gelman, D. Simpson, B. Carpenter, P.-C. Bürkner (2021), Rank-normalization, folding, and
    localization: an improved R-hat for assessing convergence of MCMC.
    """
    count = order.shape[1]
    # a mean rank may be a half, so the table has an entry for each half; `scipy.stats.rankdata` takes thrice the time
    table = ndtri((np.arange(2, 2 * count + 1) / 2 - _OFFSET) / (count - 2 * _OFFSET + 1))
    scores = np.tile(table[::2], (len(order), 1))
    members, twice_ranks = _ties(ordered)
    scores.ravel()[members] = table[twice_ranks - 2]
    placed = np.empty_like(scores)
    np.put_along_axis(placed, order, scores, axis=1)
    return placed


def _ties(
    ordered: Float64[np.ndarray, "element value"],
) -> tuple[Int[np.ndarray, "tied"], Int[np.ndarray, "tied"]]:
    """Return the flat indices of tied values, and twice the mean rank, counted from one, of each."""
    count = ordered.shape[1]
    equal = np.zeros((len(ordered), count + 1), dtype=bool)  # to the value before; the last column stays False
    equal[:, 1:-1] = ordered[:, 1:] == ordered[:, :-1]
    before, after = equal[:, :-1], equal[:, 1:]
    first, last = np.flatnonzero(after & ~before), np.flatnonzero(before & ~after)
    return np.flatnonzero(before | after), np.repeat(first % count + last % count + 2, last - first + 1)
