"""Draws as a list of scalar elements: the view that every diagnostic takes of an array `(chain, draw, ...)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

# With fewer draws there is nothing to split in halves and compare.
FEWEST_DRAWS = 4


def as_draws(draws: np.ndarray, name: str = "draws") -> np.ndarray:
    """Return `draws` as an array, after checking that it has the axes `(chain, draw, ...)` and at least one of each.

    Raises:
        ValueError: when an axis is missing, or there are no chains or no draws.
    """
    draws = np.asarray(draws)
    if draws.ndim < 2:
        raise ValueError(f"{name}: expected an array of shape (chain, draw, ...); got shape {draws.shape}.")
    chains, length = draws.shape[:2]
    if chains == 0 or length == 0:
        raise ValueError(f"{name}: there are no draws to summarise: {chains} chains of {length} draws.")
    return draws


def element_names(name: str, shape: tuple[int, ...]) -> list[str]:
    """Name every element of a variable in row-major order: `b` for a scalar, else `b[0]`, `b[1]`, or `w[0,1]`, ..."""
    if not shape:
        return [name]
    return [f"{name}[{','.join(map(str, index))}]" for index in np.ndindex(shape)]


def elements(draws: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the draws of each element in row-major order, float64 `(chain, draw)`."""
    flat = draws.reshape(*draws.shape[:2], -1)
    for index in range(flat.shape[2]):
        yield np.ascontiguousarray(flat[:, :, index], dtype=np.float64)


def per_element(statistic: Callable[[np.ndarray], float], draws: np.ndarray) -> np.ndarray:
    """Apply `statistic` to the draws of each element; NaN where the element is constant, not finite, or too short.

    Such an element is never shown to ArviZ, which divides by its variance and warns.

    Args:
        statistic: from `(chain, draw)` to a number.
        draws: `(chain, draw, ...)`.

    Returns:
        The statistic of each element, float64, of shape `draws.shape[2:]`.
    """
    # Chains that each stand still, at different values, have no variance within: infinity is the answer, not a warning.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        values = [statistic(element) if _varies(element) else np.nan for element in elements(draws)]
    return np.array(values, dtype=np.float64).reshape(draws.shape[2:])


def _varies(element: np.ndarray) -> bool:
    """Tell whether there is something to measure: enough draws, all finite, not all the same."""
    return element.shape[1] >= FEWEST_DRAWS and bool(np.isfinite(element).all()) and bool(np.ptp(element) > 0)
