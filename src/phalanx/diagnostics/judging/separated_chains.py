"""Detection of chains in different places, in words: a cause of a high R-hat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from phalanx.diagnostics.elements import Names, element_names
from phalanx.errors.words import first_few

WITHIN = (0.05, 0.95)
"""Quantiles of a chain's draws that bound its range."""

MOST_QUANTITIES = 20
"""The most quantities that are checked, those of the largest R-hat."""


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
            best, width = _sentence(name, values, groups), gap
    return best


def _elements(
    draws: Mapping[str, np.ndarray], wanted: list[str], labels: Names | None
) -> Iterator[tuple[str, np.ndarray]]:
    for variable, values in draws.items():
        if not any(name == variable or name.startswith(f"{variable}[") for name in wanted):
            continue
        flat = values.reshape(*values.shape[:2], -1)
        for number, name in enumerate(element_names(variable, values.shape[2:], labels)):
            if name in wanted:
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
    return f"The chains sit in different places: {name} is {first_few(clauses, joined='; ')}."


def _chains(group: np.ndarray) -> str:
    return f"chain{'s' if len(group) > 1 else ''} {first_few(np.sort(group))}"
