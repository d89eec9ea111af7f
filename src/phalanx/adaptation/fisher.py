r"""Metric from draws and their gradients: the one that minimises the Fisher divergence.

For a Gaussian posterior with covariance $\Sigma$, the draws have covariance $\Sigma$ and the gradients of the log
density $\Sigma^{-1}$. Among diagonal metrics $s_i^2 = \sqrt{\operatorname{var}(x_i) / \operatorname{var}(g_i)}$
minimises the Fisher divergence from the posterior to the Gaussian, and among all metrics the geometric mean of
$\operatorname{cov}(x)$ and $\operatorname{cov}(g)^{-1}$. For a Gaussian it is exact from few draws, too few for a
covariance of the draws alone, since each draw comes with its gradient.

Source: Seyboldt, Carlson, Carpenter (2024), Preconditioning Hamiltonian Monte Carlo by minimizing Fisher divergence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.linalg import eigh  # SciPy's has threads of its own, which wait for a core that NumPy's threads use

if TYPE_CHECKING:
    from jaxtyping import Float64

WIDEST = 1e30
"""Variances lie between this and its inverse: float32 holds them and the squares of their roots."""

CONDITION = 1e8
"""The largest ratio of variances along directions: beyond it, rounding in float32 outweighs the gain."""

PAYS = 9.0
"""Ratio of variances, after scaling each coordinate, from which correlations are worth a matrix product per leapfrog:
the number of leapfrogs grows with its root."""

LEAST_HELD_OUT_GAIN = 3.0
"""Least factor by which correlations learned from half of the draws must improve the conditioning of the other half."""

DOUBLE_GAIN_RANK = 10.0
"""Rank at which twice that factor is required: its matrix products take as long as the rest of a cheap leapfrog."""

LEAST_VARIANCE_RATIO = 2.0
"""Least factor by which the variance along a direction of a low-rank metric exceeds 1, or 1 exceeds the variance."""

SHRINKAGE = 1e-5
"""Weight of the unit matrix in a covariance, in draws: enough for a covariance that is positive definite."""

MOST_DENSE = 500
"""Most coordinates for which whole covariance matrices are formed, if there are two draws for each coordinate."""


class Correlations(NamedTuple):
    """Variances along orthonormal directions of coordinates scaled to unit variance; see `kernels.metric.low_rank`."""

    directions: Float64[np.ndarray, "coordinate rank"]
    variances: Float64[np.ndarray, "rank"]
    outside: float
    correlated: bool


def scales(
    position_variance: Float64[np.ndarray, "*sets coordinate"],
    gradient_variance: Float64[np.ndarray, "*sets coordinate"],
    before: Float64[np.ndarray, "*sets coordinate"],
) -> Float64[np.ndarray, "*sets coordinate"]:
    """Return a variance for every coordinate: the one `before` where that from the draws is not finite or zero."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        variance = np.sqrt(position_variance) / np.sqrt(gradient_variance)
    is_scale = np.isfinite(variance) & (variance > 0)
    return np.clip(np.where(is_scale, variance, before), 1 / WIDEST, WIDEST)


def uncorrelated(size: int, rank: int) -> Correlations:
    """Return the correlations before there are draws."""
    return Correlations(np.eye(size, rank), np.ones(rank), 0.0 if rank == size else 1.0, False)


def correlations(
    position: Float64[np.ndarray, "draw coordinate"],
    gradient: Float64[np.ndarray, "draw coordinate"],
    variance: Float64[np.ndarray, "coordinate"],
    rank: int,
    always: bool,
) -> Correlations:
    """Return the correlations that draws and their gradients suggest, along at most `rank` directions.

    Args:
        position: the draws.
        gradient: of the log density at them.
        variance: of every coordinate, the metric's diagonal.
        rank: directions; as many as coordinates for any covariance.
        always: use correlations even where they do not pay, in the draws from which they are learned or in held-out
            ones.

    Returns:
        Directions and variances; never indefinite.
    """
    scale = np.sqrt(variance)
    x = position / scale
    g = gradient * scale
    fit = _correlations(x, g, rank, always)
    if always or not fit.correlated or _generalises(x, g, rank):
        return fit
    return fit._replace(correlated=False)


def _correlations(
    x: Float64[np.ndarray, "draw coordinate"], g: Float64[np.ndarray, "draw coordinate"], rank: int, always: bool
) -> Correlations:
    """Return the correlations of scaled draws and gradients, without a check on held-out draws."""
    count, size = x.shape
    x = x - x.mean(0)
    g = g - g.mean(0)
    basis = np.eye(size) if size <= MOST_DENSE and count >= 2 * size else _span(x, g, rank)
    if basis is None:
        return uncorrelated(size, rank)
    along, vectors = _geometric_mean(_shrunk(x @ basis), _shrunk(g @ basis))
    vectors = basis @ vectors
    if rank == size and vectors.shape[1] == size:
        along = np.clip(along, along.max() / CONDITION, None)
        return Correlations(vectors, along, 0.0, always or along.max() / along.min() > PAYS)
    return _few(along, vectors, size, rank, always)


def _generalises(
    x: Float64[np.ndarray, "draw coordinate"], g: Float64[np.ndarray, "draw coordinate"], rank: int
) -> bool:
    """Return whether correlations that either half of the draws suggests pay in the other half.

    The halves are of different chains, or times. Where correlations depend on the position, as in a funnel, those of
    some draws improve the conditioning of others by little. The required gain grows with the rank, since the matrix
    products of a leapfrog take some operations for each coordinate and direction.
    """
    half = len(x) // 2
    if half < 2:
        return False
    gains = []
    for first_half, other_half in ((slice(half), slice(half, None)), (slice(half, None), slice(half))):
        fit = _correlations(x[first_half], g[first_half], rank, always=True)
        wide, steep = ((rows[other_half] @ fit.directions).var(0) for rows in (x, g))
        before = _most(wide, fit.outside) * _most(steep, fit.outside)
        after = _most(wide / fit.variances, fit.outside) * _most(steep * fit.variances, fit.outside)
        gains.append(before / max(after, np.finfo(float).tiny))
    return bool(np.sqrt(np.prod(gains)) > LEAST_HELD_OUT_GAIN * (1 + rank / DOUBLE_GAIN_RANK))


def _most(variances: Float64[np.ndarray, "rank"], outside: float) -> float:
    """Return the largest variance along directions, and along all others, where it is `outside`."""
    return max(float(variances.max(initial=0.0)), outside)


def _few(
    along: Float64[np.ndarray, "found"],
    vectors: Float64[np.ndarray, "coordinate found"],
    size: int,
    rank: int,
    always: bool,
) -> Correlations:
    """Return the directions whose variances differ most from 1, and 1 for all others."""
    half = np.sqrt(CONDITION)
    along = np.clip(along, 1 / half, half)
    far = np.argsort(-np.abs(np.log(along)))[:rank]
    far = far[np.abs(np.log(along[far])) > np.log(LEAST_VARIANCE_RATIO)]
    directions = np.zeros((size, rank))
    variances = np.ones(rank)
    directions[:, : len(far)] = vectors[:, far]
    variances[: len(far)] = along[far]
    spread = max(along[far].max(initial=1.0), 1.0) / min(along[far].min(initial=1.0), 1.0)
    return Correlations(directions, variances, 1.0, bool(len(far)) and (always or spread > PAYS))


def _span(
    x: Float64[np.ndarray, "draw coordinate"], g: Float64[np.ndarray, "draw coordinate"], rank: int
) -> Float64[np.ndarray, "coordinate found"] | None:
    """Return an orthonormal basis of the directions in which draws, or gradients, vary most; None if none vary."""
    most = min(rank, len(x) // 4)
    if most == 0:
        return None
    basis, triangle = np.linalg.qr(np.concatenate([_leading(x, most), _leading(g, most)], 1))
    diagonal = np.abs(np.diag(triangle))
    spans = diagonal > 1e-6 * diagonal.max(initial=0.0)
    return basis[:, spans] if spans.any() else None


def _leading(rows: Float64[np.ndarray, "draw size"], most: int) -> Float64[np.ndarray, "size found"]:
    """Return the unit vectors along which rows vary most, by the smaller of their two matrices of inner products."""
    if len(rows) >= rows.shape[1]:
        return eigh(rows.T @ rows)[1][:, -most:]
    squares, weights = (part[..., -most:] for part in eigh(rows @ rows.T))
    varies = squares > len(rows) * np.finfo(float).eps * squares[-1]  # below it is rounding, as of equal draws
    return rows.T @ weights[:, varies] / np.sqrt(squares[varies])


def _shrunk(rows: Float64[np.ndarray, "draw size"]) -> Float64[np.ndarray, "size size"]:
    """Return the covariance of rows whose mean is zero, shrunk slightly towards the unit matrix."""
    count, size = rows.shape
    return (rows.T @ rows + SHRINKAGE * np.eye(size)) / (count - 1 + SHRINKAGE)


def _geometric_mean(
    a: Float64[np.ndarray, "size size"], b: Float64[np.ndarray, "size size"]
) -> tuple[Float64[np.ndarray, "size"], Float64[np.ndarray, "size size"]]:
    r"""Return eigenvalues and vectors of $A \# B^{-1} = B^{-1/2} (B^{1/2} A B^{1/2})^{1/2} B^{-1/2}$."""
    values, vectors = eigh(b)
    values = np.maximum(values, values.max() * np.finfo(np.float64).eps)
    root = (vectors * np.sqrt(values)) @ vectors.T
    inverse = (vectors / np.sqrt(values)) @ vectors.T
    middle, between = eigh(root @ a @ root)
    half = inverse @ between * np.maximum(middle, 0.0) ** 0.25
    mean = half @ half.T
    squares, directions = eigh((mean + mean.T) / 2)
    return np.maximum(squares, squares.max() / CONDITION), directions
