r"""Centring of partially centred variables, learned from draws of all chains.

Let $p$ be the density of the draws as positions $u_\lambda$. Of all products of normal densities, the one with the
moments of the draws is nearest to $p$: their Kullback-Leibler divergence is

$$\sum_i \log \operatorname{sd}(u_{\lambda, i}) + (1 - \lambda_i) \operatorname{E} \log (\tau_i / \tau_{0, i})
+ \text{const},$$

with a term for each element. If $\tau_0$ is the geometric mean of the draws of $\tau$, the second part is zero: the
best weight of an element is that of the smallest standard deviation, or a smaller one that is nearly as good.

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

AS_GOOD = 0.02
"""Difference of logarithms of standard deviations within which the least weight is taken. Of positions that are equally
good on the whole, those nearer to the non-centred one leave less of a neck where the scale is small."""

NUMBERS = 2**20
"""Maximal number of draws times elements that are evaluated at once."""

FEWEST_DRAWS = 20
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
    flat = [x.reshape(len(x), -1) for x in (residual, location, log_scale)]
    finite = np.logical_and.reduce([np.isfinite(x).all(1) for x in flat])
    count = int(finite.sum())
    size = flat[0].shape[1]
    if count < FEWEST_DRAWS:
        return before
    is_shared = np.ndim(before) == 1
    unit = flat[2][finite].mean(0, np.float64)
    if is_shared:
        unit = np.full(size, unit.mean())
    spreads = np.empty((len(GRID), size))
    step = max(1, NUMBERS // count)
    for first in range(0, size, step):
        part = slice(first, first + step)
        arrays = [x[finite, part].astype(np.float64) for x in flat]
        arrays[2] -= unit[part]
        spreads[:, part] = [_log_spread(weight, *arrays) for weight in GRID]
    if is_shared:
        spreads = spreads.mean(1)
        unit = unit[0]
    best = (spreads <= spreads.min(0) + AS_GOOD).argmax(0)
    return np.stack([GRID[best], unit]).reshape(before.shape).astype(before.dtype)


def _log_spread(
    weight: float,
    residual: Float64[np.ndarray, "draw element"],
    location: Float64[np.ndarray, "draw element"],
    log_scale: Float64[np.ndarray, "draw element"],
) -> Float64[np.ndarray, "element"]:
    """Return the logarithm of the standard deviation of each element's position, given scales relative to the unit."""
    with np.errstate(over="ignore", invalid="ignore"):
        spread = (weight * location + np.exp((weight - 1) * log_scale) * residual).std(0)
    spread = np.where(np.isfinite(spread), spread, np.inf)
    return np.log(np.maximum(spread, np.finfo(float).tiny))
