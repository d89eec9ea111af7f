"""Pareto-smoothed importance weights, and the shape of their tail, which decides whether they can be averaged."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.reducers.pareto_tail import LEAST_TAIL, ParetoTail, fit_pareto, pareto_quantiles

if TYPE_CHECKING:
    from jaxtyping import Float

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
        raise ValueError("smooth: a log weight is NaN. Leave such draws out, or give them -inf, the log of no weight.")
    count = len(log_weights)
    length = _tail_length(count)
    if length < LEAST_TAIL or not np.isfinite(log_weights.max()):
        return Smoothed(log_weights, math.inf)
    relative_logs = log_weights - log_weights.max()
    order = np.argsort(relative_logs, kind="stable")
    tail = order[-length:]
    below = relative_logs[order[-length - 1]]
    excess = np.exp(relative_logs[tail]) - np.exp(below)
    if below > -EQUAL or relative_logs.min() > -LITTLE:
        return Smoothed(log_weights, -math.inf)
    tail_fit = fit_pareto(np.maximum(excess, np.finfo(float).tiny))
    if not np.isfinite(tail_fit.shape):
        return Smoothed(log_weights, math.inf)
    quantiles = pareto_quantiles((np.arange(length) + 0.5) / length, tail_fit) + np.exp(below)
    smoothed = relative_logs.copy()
    smoothed[tail] = np.minimum(np.log(quantiles), 0.0)  # at most the largest weight before
    return Smoothed(smoothed + log_weights.max(), float(tail_fit.shape))


def beyond_largest(values: Float[np.ndarray, "*rows draw"]) -> Float[np.ndarray, "*rows"]:
    """Return the expected contribution to the sum of `n` positive numbers of those beyond their `1 - 1 / n` quantile.

    One of `n` draws lies there on average, so that this is the mean beyond the quantile of a generalised Pareto
    distribution that is fitted to the largest numbers. Its shape is lowered by half of its standard error, so that few
    draws of a light tail are not taken for a heavy one, and is `STEEPEST` at most: at a shape of one the mean is
    infinite.

    Args:
        values: of independent draws, not negative, `(..., draw)`.

    Returns:
        The contribution of each row, infinite where a value is not finite, or with too few draws for a tail.
    """
    length = _tail_length(values.shape[-1])
    if length < LEAST_TAIL:
        return np.full(values.shape[:-1], math.inf)
    largest = np.sort(values, axis=-1)[..., -length - 1 :]
    threshold_value = largest[..., 0]
    with np.errstate(invalid="ignore"):  # rows whose values are not finite
        excess = largest[..., 1:] - largest[..., :1]
    has_tail = excess[..., -1] > 0
    positive = np.where(has_tail[..., None], np.maximum(excess, np.finfo(float).tiny), 1.0)
    scale, shape = fit_pareto(positive)
    shape = np.minimum(shape - 0.5 * (1.0 + shape) / math.sqrt(length), STEEPEST)
    top = pareto_quantiles(np.array([1.0 - 1.0 / length]), ParetoTail(scale, shape))[..., 0]
    beyond = threshold_value + top + (scale + shape * top) / (1.0 - shape)
    return np.where(np.isfinite(values).all(-1), np.where(has_tail, beyond, 0.0), math.inf)


def _tail_length(count: int) -> int:
    return int(min(0.2 * count, 3.0 * math.sqrt(count)))
