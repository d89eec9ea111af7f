"""Terms of a log density, tabulated, as factors between single discrete variables.

A dimension along which every term has one entry per position is a *plate*: its entries are summed over separately, all
at once. Along any other dimension of a discrete variable, each entry becomes a variable of its own. A dimension of a
term along which no entry differs is summed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx.marginals.entries import NO_ENTRY, Along, At, Site, TableAxis, Through
from phalanx.marginals.tables import ValueTable, merged

Dim = tuple[int, int]
"""A dimension of a discrete variable: the numbers of the site and of the dimension."""


@dataclass(frozen=True)
class Family:
    """Factors of equal form.

    Attributes:
        table: log densities, of shape (factors, values of each variable, ..., plates).
        entries: numbers of the variables, (factors, variables).
        plates: the plates, in order.
    """

    table: Array
    entries: np.ndarray
    plates: tuple[Dim, ...]

    @property
    def order(self) -> int:
        """Number of variables of a factor."""
        return self.entries.shape[1]


class Variables:
    """Numbers of the single variables, all entries of a plate being one.

    Attributes:
        plates: the plates of each site by the number of its dimension.
    """

    def __init__(self, sites: Sequence[Site], plates: Mapping[Dim, Dim]):
        self.sites = sites
        self.plates = [
            {d: plates[s, d] for d in range(len(site.entries)) if (s, d) in plates} for s, site in enumerate(sites)
        ]
        self.lengths = {root: sites[root[0]].entries[root[1]] for root in plates.values()}
        self._numbers, self.site_of = [], []
        for s, site in enumerate(sites):
            separate = [n for d, n in enumerate(site.entries) if d not in self.plates[s]]
            count = math.prod(separate)
            self._numbers.append(len(self.site_of) + np.arange(count).reshape(separate))
            self.site_of += [s] * count

    def numbers(self, site: int) -> np.ndarray:
        """Return the numbers of a site's variables, along its dimensions that are no plates."""
        return self._numbers[site]

    def plates_of(self, number: int) -> tuple[Dim, ...]:
        """Return the plates of a variable, in order."""
        return tuple(sorted(self.plates[self.site_of[number]].values()))

    def size(self, number: int) -> int:
        """Return the number of values of a variable."""
        return self.sites[self.site_of[number]].size


def factors_of(
    tables: Sequence[ValueTable], sites: Sequence[Site], indices: Sequence[np.ndarray]
) -> tuple[list[Family], Variables]:
    """Return the terms in `tables` as factors, and their variables.

    Args:
        tables: terms, elementwise.
        sites: the discrete variables.
        indices: arrays that select entries, by the number in `Through`.
    """
    tables = [_by_entry(table, sites, indices) for table in tables]
    variables = Variables(sites, plates_of(tables, sites))
    return [family for table in tables for family in _families(table, variables)], variables


def _by_entry(table: ValueTable, sites: Sequence[Site], indices: Sequence[np.ndarray]) -> ValueTable:
    """Return a term whose entries an array selects as sums over the elements that select the same entry."""
    while chosen := next(((a, c) for a in table.axes for c in a.where if isinstance(c, Through)), None):
        axis, through = chosen
        number, before = axis.where.index(through), len(table.axes)
        others = [a for a in table.axes if a is not axis and any(a.runs_along(d) for d in through.dims)]
        if others or any(c != through and set(_dims(c)) & set(through.dims) for c in axis.where):
            names = ", ".join(dict.fromkeys(repr(sites[a.site].name) for a in (axis, *others)))
            raise ValueError(
                f"phx.marginalize: a term of the log density depends on entries of {names} that the data select, and "
                f"on other entries in each row. The data then determine which entries depend on each other, so Phalanx "
                f"cannot sum over them one by one. Let each row select one entry."
            )
        length = sites[axis.site].entries[number]
        rest = [d for d in range(len(table.shape)) if d not in through.dims]
        front = jnp.transpose(
            table.array, [before + d for d in through.dims] + [*range(before)] + [before + d for d in rest]
        )
        rows = front.reshape(-1, *front.shape[len(through.dims) :])
        sums = jax.ops.segment_sum(rows, jnp.asarray(indices[through.array]).reshape(-1), length)
        # the entries become the first dimension of the term
        shift = {d: n + 1 for n, d in enumerate(rest)}
        array = jnp.moveaxis(sums, 0, before)
        axes = []
        for a in table.axes:
            where = [_renamed(c, shift) for c in a.where]
            if a is axis:
                where[number] = Along(0, 0, 1) if length > 1 else At(0)
            axes.append(TableAxis(a.site, tuple(where)))
        table = merged(array, axes)
    return table


def _renamed(component: Any, dims: Mapping[int, int]) -> Any:
    if isinstance(component, Along):
        return component._replace(dim=dims[component.dim])
    if isinstance(component, Through):
        return Through(tuple(dims.get(d, -1) for d in component.dims), component.array)
    return component


def _dims(component: Any) -> tuple[int, ...]:
    return (component.dim,) if isinstance(component, Along) else ()


def plates_of(tables: Sequence[ValueTable], sites: Sequence[Site]) -> dict[Dim, Dim]:
    """Map each site dimension in a plate to the plate's first dimension, which names the plate."""
    root: dict[Dim, Dim] = {(s, d): (s, d) for s, site in enumerate(sites) for d in range(len(site.entries))}
    separate = {(s, d) for s, site in enumerate(sites) for d, n in enumerate(site.entries) if n == 1}

    def find(dim: Dim) -> Dim:
        while root[dim] != dim:
            dim = root[dim]
        return dim

    for table in tables:
        for d in range(len(table.shape)):
            met = [(axis, (axis.site, n)) for axis in table.axes for n, c in enumerate(axis.where) if d in _dims(c)]
            if all(axis.full(d, table.shape, sites[axis.site]) for axis, _ in met):
                for _, dim in met[1:]:
                    first, second = sorted((find(met[0][1]), find(dim)))
                    root[second] = first
            else:
                separate |= {dim for _, dim in met}
        separate |= {(axis.site, n) for axis in table.axes for n, c in enumerate(axis.where) if isinstance(c, At)}
    for table in tables:  # all pairs of a plate's entries, which are tied to each other
        for d, e in combinations(range(len(table.shape)), 2):
            here, there = ({find(dim) for dim in _site_dims(table, each)} for each in (d, e))
            separate |= here & there
    members: dict[Dim, list[Dim]] = {}
    for dim in root:
        members.setdefault(find(dim), []).append(dim)
    plates = {
        first: dims
        for first, dims in members.items()
        if not separate.intersection(dims) and len({site for site, _ in dims}) == len(dims)
    }
    return {dim: first for first, dims in plates.items() for dim in dims}


def _site_dims(table: ValueTable, dim: int) -> set[Dim]:
    return {(axis.site, n) for axis in table.axes for n, c in enumerate(axis.where) if dim in _dims(c)}


def _families(table: ValueTable, variables: Variables) -> Iterator[Family]:
    """Yield the factors of a term, in groups of equal form."""
    count, shape = len(table.axes), table.shape
    plate: dict[int, Dim] = {}
    separate: set[int] = set()
    for axis in table.axes:
        for n, c in enumerate(axis.where):
            for d in _dims(c):
                if n in variables.plates[axis.site]:
                    plate[d] = variables.plates[axis.site][n]
                else:
                    separate.add(d)
    array = jnp.sum(table.array, axis=[count + d for d in range(len(shape)) if d not in plate and d not in separate])
    kept = [d for d in range(len(shape)) if d in plate or d in separate]
    front, back = sorted(separate), sorted(plate, key=lambda d: plate[d])
    array = jnp.transpose(
        array, [count + kept.index(d) for d in front] + [*range(count)] + [count + kept.index(d) for d in back]
    )
    array = array.reshape(-1, *array.shape[len(front) :])
    positions = np.indices([shape[d] for d in front]).reshape(len(front), array.shape[0])
    at = {d: positions[n] for n, d in enumerate(front)}
    entries = [_numbers(axis, at, array.shape[0], variables) for axis in table.axes]
    plates = tuple(plate[d] for d in back)
    forms = np.stack([_first_equal(entries, n) for n in range(count)], axis=1)
    for form in np.unique(forms, axis=0):
        rows = np.flatnonzero((forms == form).all(axis=1))
        part = take(array, rows)
        for n in reversed(range(count)):
            if form[n] == NO_ENTRY:  # no entry: any value will do
                part = part[(slice(None),) * (n + 1) + (0,)]
        left = [n for n in range(count) if form[n] != NO_ENTRY]
        while (again := next((n for n in left if form[n] != n), None)) is not None:
            first, second = left.index(form[again]) + 1, left.index(again) + 1
            part = jnp.moveaxis(jnp.diagonal(part, axis1=first, axis2=second), -1, first)
            left.remove(again)
        columns = [entries[n][rows] for n in left]
        if not columns:  # a constant, which any variable of the site may carry
            site = table.axes[0].site
            part = jnp.repeat(part[:, None], variables.sites[site].size, axis=1)
            columns = [np.full(len(rows), variables.numbers(site).flat[0])]
        yield Family(part, np.stack(columns, 1), plates)


def _numbers(axis: TableAxis, at: Mapping[int, np.ndarray], count: int, variables: Variables) -> np.ndarray:
    """Return the number of the variable at each position; `NO_ENTRY` outside of the site."""
    site, index, inside = variables.sites[axis.site], [], np.ones(count, bool)
    for n, (c, length) in enumerate(zip(axis.where, site.entries, strict=True)):
        if n not in variables.plates[axis.site]:
            here = np.full(count, c.index) if isinstance(c, At) else c.at(at[c.dim])  # pyright: ignore
            inside &= (here >= 0) & (here < length)
            index.append(np.clip(here, 0, length - 1))
    return np.where(inside, variables.numbers(axis.site)[tuple(index)], NO_ENTRY)


def _first_equal(entries: Sequence[np.ndarray], number: int) -> np.ndarray:
    """Return for each position the first axis with the same variable as axis `number`; `NO_ENTRY` without one."""
    found = np.where(entries[number] == NO_ENTRY, NO_ENTRY, number)
    for n in reversed(range(number)):
        found = np.where((entries[n] == entries[number]) & (found != NO_ENTRY), n, found)
    return found


def take(table: Array, rows: np.ndarray) -> Array:
    """Return rows of a table: all of them as they are, evenly spaced ones by a slice."""
    if len(rows) == len(table) and np.array_equal(rows, np.arange(len(rows))):
        return table
    steps = np.unique(np.diff(rows))
    if len(rows) == 1 or (len(steps) == 1 and steps[0] > 0):
        return jax.lax.slice_in_dim(table, int(rows[0]), int(rows[-1]) + 1, int(steps[0]) if len(rows) > 1 else 1)
    return table[rows]
