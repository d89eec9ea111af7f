"""Detection of label switching: chains that sit at the same place but for the order of a dimension's entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

MOST_ENTRIES = 50
"""The largest dimension whose orders are compared."""

CLOSE = 2.0
"""Distance between the means of chains, in standard deviations within chains, up to which they sit at one place."""

APART = 3.0
"""Distance from which on they do not."""


class DisagreeingVariable(NamedTuple):
    """Variable some elements of which have chains that disagree.

    Attributes:
        name: name of the variable.
        means, sds: mean and standard deviation of each chain, `(chain, ...)`.
    """

    name: str
    means: np.ndarray
    sds: np.ndarray


class Switching(NamedTuple):
    """Label switching.

    Attributes:
        variables: names of the variables whose entries are in another order.
        size: number of the entries.
        chains: chains in which their order differs from that of chain 0.
    """

    variables: tuple[str, ...]
    size: int
    chains: tuple[int, ...]


def switching_of(disagreeing: Sequence[DisagreeingVariable], log_density: np.ndarray | None) -> Switching | None:
    """Return the dimension along which chains have their entries in different orders; None if they have one order.

    One order of the entries must bring each chain to the place of the first one, in all variables that disagree, and
    the log densities of the chains must agree.

    Args:
        disagreeing: all variables of which chains disagree.
        log_density: `(chain, draw)`; None if unknown.

    Source: M. Stephens (2000), Dealing with label switching in mixture models.
    """
    if log_density is not None:
        means, sd = log_density.mean(axis=1), log_density.std(axis=1).mean()
        if not np.ptp(means) <= CLOSE * sd:
            return None
    sizes = [{size for size in one.means.shape[1:] if 2 <= size <= MOST_ENTRIES} for one in disagreeing]
    for size in sorted(set.intersection(*sizes) if sizes else ()):
        scaled = [_scaled(one) for one in disagreeing]
        orders = [_order(scaled, chain, size) for chain in range(len(disagreeing[0].means))]
        changed = [chain for chain, order in enumerate(orders) if (order != np.arange(size)).any()]
        if changed and all(_is_same(scaled, chain, order) for chain, order in enumerate(orders)):
            return Switching(tuple(one.name for one in disagreeing), size, tuple(changed))
    return None


def _scaled(one: DisagreeingVariable) -> np.ndarray:
    """Return the means of chains in typical standard deviations within chains, `(chain, ...)`."""
    return one.means / np.maximum(np.median(one.sds), np.finfo(float).tiny)


def _order(scaled: Sequence[np.ndarray], chain: int, size: int) -> np.ndarray:
    """Return the order of a chain's entries that brings them closest to those of chain 0."""
    from scipy.optimize import linear_sum_assignment  # slow to import

    cost = np.zeros((size, size))
    for values in scaled:
        axes = [axis for axis in range(values.ndim - 1) if values.shape[axis + 1] == size]
        # of a matrix of the size twice, rows and columns have one order: their own entries are compared in any order
        first, other = (_profiles(values[number], axes) for number in (0, chain))
        cost += ((first[:, None] - other[None]) ** 2).sum(axis=-1)
    return linear_sum_assignment(cost)[1]


def _profiles(values: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """Return a vector for each entry of the dimension, `(size, features)`."""
    if len(axes) == 1:
        return np.moveaxis(values, axes[0], 0).reshape(values.shape[axes[0]], -1)
    rows, columns = np.moveaxis(values, axes[0], 0), np.moveaxis(values, axes[1], 0)
    sides = [np.sort(side.reshape(len(side), -1), axis=1) for side in (rows, columns)]
    diagonal = np.diagonal(values, axis1=axes[0], axis2=axes[1]).reshape(-1, len(rows)).T
    return np.concatenate([*sides, diagonal], axis=1)


def _is_same(scaled: Sequence[np.ndarray], chain: int, order: np.ndarray) -> bool:
    """Return True if the order brings a chain to the place of chain 0, and no order would not if it changes any."""
    before, after = [], []
    for values in scaled:
        ordered = values[chain]
        for axis, size in enumerate(ordered.shape):
            if size == len(order):
                ordered = np.take(ordered, order, axis=axis)
        before.append(np.abs(values[chain] - values[0]).max())
        after.append(np.abs(ordered - values[0]).max())
    changes = bool((order != np.arange(len(order))).any())
    return max(after) <= CLOSE and (not changes or max(before) >= APART)
