"""Scalar elements of draws `(chain, draw, ...)`: their names, and statistics of all of them in batches."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np

from phalanx.diagnostics.element_statistics import ElementStatistics
from phalanx.inputs.axis_names import Labels as Names
from phalanx.store.lazy_array import LazyArray

BATCH_NUMBERS = 2**15
"""Numbers in a batch of elements: few enough for the processor's cache."""

MOST_NUMBERS = 2**23
"""Numbers in all batches that are processed at a time; they take about ten times their size."""


def as_draws(draws: np.ndarray, name: str = "draws") -> np.ndarray:
    """Return `draws` as an array, after checking that it has the axes `(chain, draw, ...)` and at least one of each.

    Raises:
        ValueError: when an axis is missing, or there are no chains or no draws.
    """
    draws = draws if isinstance(draws, LazyArray) else np.asarray(draws)
    if draws.ndim < 2:
        raise ValueError(f"{name}: expected an array of shape (chain, draw, ...); got shape {draws.shape}.")
    chains, length = draws.shape[:2]
    if chains == 0 or length == 0:
        raise ValueError(f"{name}: there are no draws to summarise: {chains} chains of {length} draws.")
    return draws


def element_names(name: str, shape: tuple[int, ...], labels: Names | None = None) -> list[str]:
    """Name every element of a variable in row-major order: `b` for a scalar, else `b[0]`, `b[age]`, or `w[0,1]`, ..."""
    if not shape:
        return [name]
    axes = zip(axis_names(name, shape, labels), shape, strict=True)
    by_axis = [map(str, range(size)) if levels is None else levels for levels, size in axes]
    return [f"{name}[{','.join(index)}]" for index in product(*by_axis)]


def element_name(name: str, index: tuple[int, ...], shape: tuple[int, ...], labels: Names | None = None) -> str:
    """Name one element of a variable as `element_names` does."""
    axes = zip(axis_names(name, shape, labels), index, strict=True)
    entries = [str(number) if levels is None else levels[number] for levels, number in axes]
    return f"{name}[{','.join(entries)}]" if entries else name


def axis_names(name: str, shape: tuple[int, ...], labels: Names | None = None) -> list[tuple[str, ...] | None]:
    """Return the labels of the entries along each axis of a variable; None for an axis that the labels do not fit."""
    of_axes = (labels or {}).get(name, ())
    if len(of_axes) != len(shape):
        return [None] * len(shape)
    return [of_axis if of_axis and len(of_axis) == size else None for of_axis, size in zip(of_axes, shape, strict=True)]


def measure(statistic: Callable[[ElementStatistics], np.ndarray], draws: np.ndarray) -> np.ndarray:
    """Apply `statistic` to every element, a batch of elements at a time, which bounds the memory.

    Args:
        statistic: from a batch of elements to an array with as many rows.
        draws: `(chain, draw, ...)`.

    Returns:
        The statistic of each element, of shape `draws.shape[2:]` followed by that of `statistic` for one element.
    """
    if isinstance(draws, LazyArray):
        parts = [measure(statistic, piece) for piece in draws.pieces()]
        return np.concatenate(parts).reshape(draws.shape[2:] + parts[0].shape[1:])
    flat = draws.reshape(*draws.shape[:2], int(np.prod(draws.shape[2:])))
    size = max(1, BATCH_NUMBERS // (flat.shape[0] * flat.shape[1]))

    def of_batch(first: int) -> np.ndarray:
        values = np.moveaxis(flat[:, :, first : first + size], 2, 0)
        # constant chains and infinite draws lead to infinity or NaN, without a warning
        with np.errstate(all="ignore"):
            return statistic(ElementStatistics(np.ascontiguousarray(values, dtype=np.float64)))

    if flat.shape[2] <= size:
        values = of_batch(0)
    else:  # NumPy lets other threads run while it computes
        workers = min(os.cpu_count() or 1, max(1, MOST_NUMBERS // (size * flat.shape[0] * flat.shape[1])))
        with ThreadPoolExecutor(workers) as pool:
            values = np.concatenate(list(pool.map(of_batch, range(0, flat.shape[2], size))))
    return values.reshape(draws.shape[2:] + values.shape[1:])
