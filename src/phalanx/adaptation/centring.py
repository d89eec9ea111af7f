r"""Centring of partially centred variables, learned from draws of all chains.

Let $p$ be the density of the draws as positions $u_\lambda$. Of all products of normal densities, the one with the
moments of the draws is nearest to $p$: their Kullback-Leibler divergence is

$$\sum_i \log \operatorname{sd}(u_{\lambda, i}) + (1 - \lambda_i) \operatorname{E} \log (\tau_i / \tau_{0, i})
+ \text{const},$$

with a term for each element. If $\tau_0$ is the geometric mean of the draws of $\tau$, the second part is zero: the
best weight of an element is that of the smallest standard deviation.

Source: Gorinova, Moore, Hoffman (2020), Automatic reparameterisation of probabilistic programs, who minimise the
divergence in the other direction, from draws of the normal density.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float, Float64

GRID = np.linspace(0.0, 1.0, 21)
"""Weights among which the best is chosen: a posterior changes little between two of them."""

FEWEST = 20
"""Draws of all chains from which weights are learned; of fewer, a standard deviation is too noisy."""


def learn_centring(
    residual: Float[np.ndarray, "draw *shape"],
    location: Float[np.ndarray, "draw *shape"],
    log_scale: Float[np.ndarray, "draw *shape"],
    before: Float[np.ndarray, "two *shape_or_one"],
) -> Float[np.ndarray, "two *shape_or_one"]:
    """Return weight and log unit of each element of a variable, or of all elements if `before` has one of each.

    Args:
        residual: value minus location, by draw.
        location: location, by draw.
        log_scale: logarithm of the scale, by draw.
        before: weight and log unit before these draws; they stay if the draws are too few.
    """
    arrays = [np.asarray(x, np.float64) for x in (residual, location, log_scale)]
    finite = np.logical_and.reduce([np.isfinite(x).reshape(len(x), -1).all(1) for x in arrays])
    if np.count_nonzero(finite) < FEWEST:
        return before
    residual, location, log_scale = (x[finite] for x in arrays)
    unit = log_scale.mean(0)
    if np.ndim(before) == 1:
        unit = unit.mean()
    terms = np.stack([_log_spread(weight, residual, location, log_scale - unit) for weight in GRID])
    if np.ndim(before) == 1:
        terms = terms.reshape(len(GRID), -1).sum(1)
    return np.stack([GRID[np.argmin(terms, 0)], unit]).astype(before.dtype)


def _log_spread(
    weight: float,
    residual: Float64[np.ndarray, "draw *shape"],
    location: Float64[np.ndarray, "draw *shape"],
    log_scale: Float64[np.ndarray, "draw *shape"],
) -> Float64[np.ndarray, "*shape"]:
    """Return the logarithm of the standard deviation of each element's position, given scales relative to the unit."""
    with np.errstate(over="ignore", invalid="ignore"):
        spread = (weight * location + np.exp((weight - 1) * log_scale) * residual).std(0)
    spread = np.where(np.isfinite(spread), spread, np.inf)
    return np.log(np.maximum(spread, np.finfo(float).tiny))
