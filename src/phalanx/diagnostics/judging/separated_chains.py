"""Detection of chains in different places, or at places that differ in the order of entries: causes of a high R-hat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from phalanx.diagnostics.elements import Names, element_names
from phalanx.errors.message_text import first_few

WITHIN = (0.05, 0.95)
"""Quantiles of a chain's draws that bound its range."""

MOST_QUANTITIES = 20
"""The most quantities that are checked, those of the largest R-hat."""

MOST_ENTRIES = 50
"""The largest dimension whose orders are compared."""

CLOSE = 2.0
"""Distance between the means of chains, in standard deviations within chains, up to which they sit at one place."""

APART = 3.0
"""Distance between the means of chains, in the same unit, from which on they sit at different places."""


def separated_chains(
    draws: Mapping[str, np.ndarray], suspects: Sequence[str], labels: Names | None = None
) -> str | None:
    """Return a sentence that names groups of chains whose ranges do not overlap; None if all overlap.

    Args:
        draws: arrays of shape `(chain, draw, ...)` by variable name.
        suspects: quantities as the summary names them, the worst first.
        labels: labels of the entries, by variable and axis.

    Returns:
        A sentence about the quantity that separates the chains best, or None.
    """
    best, width = None, 0.0
    for name, values in _elements(draws, list(suspects)[:MOST_QUANTITIES], labels):
        if not np.isfinite(values).all():
            continue
        groups = _groups(values)
        gap = _gap(values, groups) if len(groups) > 1 else 0.0
        if gap > width:
            best = _sentence(name, values, groups)
            width = gap
    return best


def _elements(
    draws: Mapping[str, np.ndarray], elements: list[str], labels: Names | None
) -> Iterator[tuple[str, np.ndarray]]:
    for variable, values in draws.items():
        if not any(name == variable or name.startswith(f"{variable}[") for name in elements):
            continue
        flat = values.reshape(*values.shape[:2], -1)
        for number, name in enumerate(element_names(variable, values.shape[2:], labels)):
            if name in elements:
                yield name, flat[:, :, number].astype(np.float64)


def _groups(values: np.ndarray) -> list[np.ndarray]:
    """Return the chains in groups, from the lowest to the highest, whose ranges do not overlap."""
    low, high = np.quantile(values, WITHIN, axis=1)
    order = np.argsort(low, kind="stable")
    begins = low[order][1:] > np.maximum.accumulate(high[order])[:-1]
    return np.split(order, np.flatnonzero(begins) + 1)


def _gap(values: np.ndarray, groups: list[np.ndarray]) -> float:
    """Return the widest gap between neighbouring groups, in median widths of a chain."""
    low, high = np.quantile(values, WITHIN, axis=1)
    gaps = [low[b].min() - high[a].max() for a, b in pairwise(groups)]
    with np.errstate(over="ignore"):  # chains that stand still have no width
        return max(gaps) / max(float(np.median(high - low)), np.finfo(float).tiny)


def _sentence(name: str, values: np.ndarray, groups: list[np.ndarray]) -> str:
    middles = [float(np.median(values[group])) for group in groups]
    clauses = [
        f"near {middle:.3g} in {_chains(group)}"
        for group, middle in sorted(zip(groups, middles, strict=True), key=lambda pair: (-len(pair[0]), pair[1]))
    ]
    return f"The chains sit in different places: {name} is {first_few(clauses, separator='; ')}."


def _chains(group: np.ndarray) -> str:
    return f"chain{'s' if len(group) > 1 else ''} {first_few(np.sort(group))}"


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
        means = log_density.mean(axis=1)
        sd = log_density.std(axis=1).mean()
        if not np.ptp(means) <= CLOSE * sd:
            return None
    sizes = [{size for size in one.means.shape[1:] if 2 <= size <= MOST_ENTRIES} for one in disagreeing]
    for size in sorted(set.intersection(*sizes) if sizes else ()):
        standard_means = [(one.means / np.maximum(np.median(one.sds), np.finfo(float).tiny)) for one in disagreeing]
        orders = [_order(standard_means, chain, size) for chain in range(len(disagreeing[0].means))]
        switching_chains = [chain for chain, order in enumerate(orders) if (order != np.arange(size)).any()]
        if switching_chains and all(_is_same(standard_means, chain, order) for chain, order in enumerate(orders)):
            return Switching(tuple(one.name for one in disagreeing), size, tuple(switching_chains))
    return None


def _order(standard_means: Sequence[np.ndarray], chain: int, size: int) -> np.ndarray:
    """Return the order of a chain's entries that brings them closest to those of chain 0."""
    from scipy.optimize import linear_sum_assignment  # slow to import

    cost = np.zeros((size, size))
    for values in standard_means:
        axes = [axis for axis in range(values.ndim - 1) if values.shape[axis + 1] == size]
        # of a matrix of the size twice, rows and columns have one order: their own entries are compared in any order
        first, other = (_profiles(values[number], axes) for number in (0, chain))
        cost += ((first[:, None] - other[None]) ** 2).sum(axis=-1)
    return linear_sum_assignment(cost)[1]


def _profiles(values: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """Return a vector for each entry of the dimension, `(size, features)`."""
    if len(axes) == 1:
        return np.moveaxis(values, axes[0], 0).reshape(values.shape[axes[0]], -1)
    rows = np.moveaxis(values, axes[0], 0)
    columns = np.moveaxis(values, axes[1], 0)
    sides = [np.sort(side.reshape(len(side), -1), axis=1) for side in (rows, columns)]
    diagonal = np.diagonal(values, axis1=axes[0], axis2=axes[1]).reshape(-1, len(rows)).T
    return np.concatenate([*sides, diagonal], axis=1)


def _is_same(standard_means: Sequence[np.ndarray], chain: int, order: np.ndarray) -> bool:
    """Return True if the order brings a chain to the place of chain 0, and does so by necessity.

    An order that changes something is necessary if the chain is elsewhere without it.
    """
    before = []
    after = []
    for values in standard_means:
        entries = values[chain]
        for axis, size in enumerate(entries.shape):
            if size == len(order):
                entries = np.take(entries, order, axis=axis)
        before.append(np.abs(values[chain] - values[0]).max())
        after.append(np.abs(entries - values[0]).max())
    changes = bool((order != np.arange(len(order))).any())
    return max(after) <= CLOSE and (not changes or max(before) >= APART)
