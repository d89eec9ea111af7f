"""Detection of tails so heavy that a quantity has no variance, from the Pareto shapes of its draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from phalanx.reducers.pareto_tail import fit_pareto

if TYPE_CHECKING:
    from jaxtyping import Float64

FEWEST_TAIL = 40
"""Fewest draws in the largest tail that is fitted."""

TAILS = ((0.2, 0.5), (0.1, 0.4), (0.05, 0.25), (0.02, 0.0))
"""Fractions of the draws in a tail, and the shape that each must exceed: a wide component of a mixture looks heavy from
within the narrow one, but not further out."""

INFINITE_VARIANCE = 0.5
"""Shape from which on the variance is infinite."""

FINITE_VARIANCE = 1 / 3
"""Shape of the tails of Student's t with three degrees of freedom, whose variance is finite."""

NO_MEAN = 0.85
"""Shape from which on the mean may be infinite: it is from 1 on, and shapes have errors."""

ERRORS = 1.5
"""Standard errors by which a shape must exceed `FINITE_VARIANCE`."""

STEEP = 3.5
"""Ratio of the excess that an eighth of the tail exceeds to the median excess. A tail with a smaller ratio counts as
light without a fit: the ratio is 3 for an exponential tail and 4.4 for a shape of a half."""


def heavy_shapes(
    sorted_draws: Float64[np.ndarray, "element draw"], ess_tail: Float64[np.ndarray, "element"]
) -> Float64[np.ndarray, "element"]:
    r"""Return the Pareto shape of the heavier tail of elements whose variance is infinite as far as draws show, or NaN.

    Excesses over a high quantile have nearly a generalised Pareto distribution, whose moments of order $1 / k$ and more
    are infinite. A tail is heavy if its shape $\hat k$ exceeds 1/2, and 1/3 by 1.5 standard errors of
    $(1 + k) / \sqrt{M}$ with `M` effective draws in the tail, and if tails further out are heavy, too.

    Args:
        sorted_draws: draws of each element in ascending order.
        ess_tail: effective draws of the tails.

    Returns:
        The shape of the outer fifth of the draws; NaN where the variance is finite, unknown, or draws are too few.

    Source: J. Pickands (1975), Statistical inference using extreme order statistics; A. Vehtari, D. Simpson, A. Gelman,
    Y. Yao, J. Gabry (2024), Pareto smoothed importance sampling.
    """
    shapes = np.full(len(sorted_draws), np.nan)
    count = sorted_draws.shape[1]
    if int(TAILS[0][0] * count) < FEWEST_TAIL:
        return shapes
    effective = np.clip(ess_tail / count, 0.0, 1.0) * TAILS[0][0] * count
    with np.errstate(all="ignore"):  # constants, and draws that are not finite
        least = np.maximum(INFINITE_VARIANCE, FINITE_VARIANCE + ERRORS * (1 + FINITE_VARIANCE) / np.sqrt(effective))
        for draws in sorted_draws, -sorted_draws[:, ::-1]:
            outer = _excesses(draws, TAILS[0][0])
            size = outer.shape[1]
            steep = outer[:, -max(size // 8, 1)] / outer[:, size // 2]
            rows = np.flatnonzero(np.isfinite(outer[:, -1]) & (outer[:, size // 2] > 0) & (steep > STEEP))
            heavy = np.full(len(rows), np.inf)
            for fraction, bound in TAILS:
                if not len(rows):
                    break
                shape = fit_pareto(np.maximum(_excesses(draws[rows], fraction), np.finfo(float).tiny)).shape
                is_heavy = shape > (np.maximum(least[rows], bound) if fraction == TAILS[0][0] else bound)
                heavy = np.where(np.isinf(heavy), shape, heavy)[is_heavy]
                rows = rows[is_heavy]
            shapes[rows] = np.fmax(shapes[rows], heavy)
    return shapes


def _excesses(
    sorted_draws: Float64[np.ndarray, "element draw"], fraction: float
) -> Float64[np.ndarray, "element tail"]:
    """Return the largest draws less the next smaller one, ascending."""
    size = int(fraction * sorted_draws.shape[1])
    return sorted_draws[:, -size:] - sorted_draws[:, -size - 1, None]
