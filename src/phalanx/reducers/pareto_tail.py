"""Generalised Pareto distribution fitted to the largest importance weights, of many rows at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

LEAST_TAIL = 5
"""Fewest weights in a tail that is fitted."""


class ParetoTail(NamedTuple):
    """Scale and shape of generalised Pareto distributions, `(...)`."""

    scale: np.ndarray
    shape: np.ndarray


def tail_length(count: int, efficiency: float = 1.0) -> int:
    r"""Return the number of weights in the tail of `count`: $\lceil \min(S/5, 3 \sqrt{S/r}) \rceil$.

    Args:
        count: number of draws $S$.
        efficiency: independent draws per draw, $r$.
    """
    return math.ceil(min(0.2 * count, 3.0 * math.sqrt(count / efficiency)))


def fit_pareto(excess: Float[np.ndarray, "*rows tail"]) -> ParetoTail:
    """Return the distributions of ascending positive numbers, by row.

    Source:
        Zhang, Stephens (2009), A new and efficient estimation method for the generalized Pareto distribution.
    """
    count = excess.shape[-1]
    grid = 30 + int(math.sqrt(count))
    points = 1.0 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        points = points / (3.0 * excess[..., int(count / 4 + 0.5) - 1, None]) + 1.0 / excess[..., -1, None]
        shapes = np.stack([_mean_log(points[..., i], excess) for i in range(grid)], axis=-1)
        profile = count * (np.log(-points / shapes) - shapes - 1.0)
        profile = np.where(np.isnan(profile), -np.inf, profile)
        weights = np.exp(profile - profile.max(-1, keepdims=True))
        point = np.sum(points * weights, -1) / np.sum(weights, -1)
        shape = _mean_log(point, excess)
        scale = np.asarray(-shape / point)
    return ParetoTail(scale, np.asarray((shape * count + 10 * 0.5) / (count + 10)))  # a weak prior about a half


def pareto_quantiles(probabilities: Float[np.ndarray, "tail"], tails: ParetoTail) -> Float[np.ndarray, "*rows tail"]:
    """Return quantiles of the distributions, by row."""
    survival = np.log1p(-probabilities)
    scale, shape = (part[..., None] for part in tails)
    light = np.abs(shape) < 1e-12
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # a quantile of a heavy tail may be infinite
        return np.where(light, -scale * survival, scale * np.expm1(-shape * survival) / np.where(light, 1.0, shape))


def _mean_log(point: Any, excess: np.ndarray) -> np.ndarray:
    return np.asarray(np.mean(np.log1p(-point[..., None] * excess), axis=-1))
