"""Pareto-smoothed importance weights, and the shape of their tail, which decides whether they can be averaged."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float, Float64

LEAST_TAIL = 5
"""Fewest weights in a tail that is fitted."""

EQUAL = 1e-3
"""Range of the logarithms of the largest weights below which they count as equal."""

LITTLE = 0.05
"""Range of the logarithms of all weights below which the shape of their tail does not matter: for weights within 3% of
each other the fitted shape was 4."""

STEEPEST = 0.95
"""The largest shape with which a tail is extrapolated."""


class Smoothed(NamedTuple):
    """Smoothed weights.

    Attributes:
        log_weights: logarithms, `(draw,)`, on the scale of the input.
        k_hat: shape of the generalised Pareto distribution of the largest: infinity if it cannot be fitted, and minus
            infinity if all weights are equal.
    """

    log_weights: np.ndarray
    k_hat: float


def threshold(count: int) -> float:
    r"""Return the largest $\hat k$ for which this number of draws suffices: $\min(1 - 1/\log_{10} S, 0.7)$."""
    return min(1.0 - 1.0 / math.log10(max(count, 11)), 0.7)


def smooth(log_weights: Float[np.ndarray, "draw"]) -> Smoothed:
    r"""Replace the largest importance weights by quantiles of a generalised Pareto distribution fitted to them.

    Args:
        log_weights: logarithms of the weights of independent draws, `(draw,)`.

    Returns:
        The smoothed weights, and the fitted shape $\hat k$.

    Raises:
        ValueError: when one is NaN.

    Example:
        >>> import numpy as np
        >>> from phalanx.diagnostics.psis import smooth
        >>> x = np.random.default_rng(0).normal(size=4000)
        >>> smooth(-0.5 * (x / 0.95) ** 2 + 0.5 * x**2).k_hat < 0.5
        True

    Source:
        Vehtari, Simpson, Gelman, Yao, Gabry (2024), Pareto smoothed importance sampling.
    """
    log_weights = np.asarray(log_weights, np.float64)
    if np.isnan(log_weights).any():
        raise ValueError("smooth: a log weight is NaN.")
    count = len(log_weights)
    length = _tail_length(count)
    if length < LEAST_TAIL or not np.isfinite(log_weights.max()):
        return Smoothed(log_weights, math.inf)
    shifted = log_weights - log_weights.max()
    order = np.argsort(shifted, kind="stable")
    tail, below = order[-length:], shifted[order[-length - 1]]
    excess = np.exp(shifted[tail]) - np.exp(below)
    if below > -EQUAL or shifted.min() > -LITTLE:
        return Smoothed(log_weights, -math.inf)
    scale, shape = _pareto(np.maximum(excess, np.finfo(float).tiny))
    if not math.isfinite(shape):
        return Smoothed(log_weights, math.inf)
    quantiles = _quantiles((np.arange(length) + 0.5) / length, scale, shape) + np.exp(below)
    smoothed = shifted.copy()
    smoothed[tail] = np.minimum(np.log(quantiles), 0.0)  # at most the largest weight before
    return Smoothed(smoothed + log_weights.max(), shape)


def beyond_largest(values: Float[np.ndarray, "draw"]) -> float:
    """Return the part of a sum of positive numbers that draws larger than the largest expected one would contribute.

    It is extrapolated from the generalised Pareto distribution of the largest numbers: the expected value of a number
    in the upper `1 / n`, of which there is one in `n` draws. The shape is taken half of its standard error lower, so
    that few draws of a light tail have none that is heavy, and as `STEEPEST` at most, since at one the sum is infinite.

    Args:
        values: of independent draws, not negative, `(draw,)`.
    """
    length = _tail_length(len(values))
    if length < LEAST_TAIL or not np.isfinite(values).all():
        return math.inf
    largest = np.sort(values)[-length - 1 :]
    excess = largest[1:] - largest[0]
    if not excess[-1] > 0:
        return 0.0
    scale, shape = _pareto(np.maximum(excess, np.finfo(float).tiny))
    shape = min(shape - 0.5 * (1.0 + shape) / math.sqrt(length), STEEPEST)
    top = float(_quantiles(np.array([1.0 - 1.0 / length]), scale, shape)[0])
    return float(largest[0]) + top + (scale + shape * top) / (1.0 - shape)


def _tail_length(count: int) -> int:
    return int(min(0.2 * count, 3.0 * math.sqrt(count)))


def _pareto(excess: Float64[np.ndarray, "tail"]) -> tuple[float, float]:
    """Return scale and shape of a generalised Pareto distribution of ascending numbers (Zhang and Stephens, 2009)."""
    count = len(excess)
    grid = 30 + int(math.sqrt(count))
    points = 1.0 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))
    points = points / (3.0 * excess[int(count / 4 + 0.5) - 1]) + 1.0 / excess[-1]
    shapes = np.mean(np.log1p(-points[:, None] * excess), axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        profile = count * (np.log(-points / shapes) - shapes - 1.0)
    profile = np.where(np.isnan(profile), -np.inf, profile)
    weights = np.exp(profile - profile.max())
    point = float(np.sum(points * weights) / np.sum(weights))
    shape = float(np.mean(np.log1p(-point * excess)))
    scale = -shape / point
    return scale, (shape * count + 10 * 0.5) / (count + 10)  # a weak prior about a half


def _quantiles(probabilities: Float64[np.ndarray, "tail"], scale: float, shape: float) -> Float64[np.ndarray, "tail"]:
    survival = np.log1p(-probabilities)
    if abs(shape) < 1e-12:
        return -scale * survival
    with np.errstate(over="ignore"):  # a quantile of a very heavy tail may be infinite; weights are bounded later
        return scale * np.expm1(-shape * survival) / shape
