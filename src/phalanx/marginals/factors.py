r"""Terms of a log density, tabulated, as factors between single discrete variables, and sums over these variables.

A dimension along which every term has one entry per position is a *plate*: its entries are summed over separately, all
at once. Along any other dimension of a discrete variable, each entry becomes a variable of its own. A dimension of a
term along which no entry differs is summed.

A variable $v$ is eliminated by adding all factors that contain it and summing over its values, which gives a factor
between its neighbours: $\log \sum_v \exp(f_1 + f_2 + \dots)$. Variables that are not neighbours are eliminated in one
round, all of equal form at once. Of a chain of $T$ variables every second one is eliminated in a round, so that
$\log_2 T$ rounds suffice; of a tree all leaves. On CPUs a chain is summed along in order instead, which takes fewer
operations in all: each sum is a vector of $K$ values, not a table of $K^2$. The tables are kept: in reverse order, each
variable is drawn from its table given its neighbours.

Source: D. Koller, N. Friedman (2009), Probabilistic Graphical Models, chapter 9; S. Särkkä, Á. García-Fernández (2021),
Temporal parallelization of Bayesian smoothers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, groupby
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx.marginals.entries import NO_ENTRY, Along, At, Site, TableAxis, Through
from phalanx.marginals.value_tables import MOST_RUNS, ValueTable, check_size, merged

Dim = tuple[int, int]
"""A dimension of a discrete variable: the numbers of the site and of the dimension."""

FEW = 2
"""Number of neighbours up to which variables are eliminated in parallel; more are eliminated cheapest first."""


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
        self._numbers = []
        self.site_of = []
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
    while axis_selection := next(((a, c) for a in table.axes for c in a.where if isinstance(c, Through)), None):
        axis, through = axis_selection
        number = axis.where.index(through)
        before = len(table.axes)
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
            where = [_rename_dims(c, shift) for c in a.where]
            if a is axis:
                where[number] = Along(0, 0, 1) if length > 1 else At(0)
            axes.append(TableAxis(a.site, tuple(where)))
        table = merged(array, axes)
    return table


def _rename_dims(component: Any, dims: Mapping[int, int]) -> Any:
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
            axes_in_plate = [
                (axis, (axis.site, n)) for axis in table.axes for n, c in enumerate(axis.where) if d in _dims(c)
            ]
            if all(axis.full(d, table.shape, sites[axis.site]) for axis, _ in axes_in_plate):
                for _, dim in axes_in_plate[1:]:
                    first, second = sorted((find(axes_in_plate[0][1]), find(dim)))
                    root[second] = first
            else:
                separate |= {dim for _, dim in axes_in_plate}
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
    count = len(table.axes)
    shape = table.shape
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
    plate_dims = [d for d in range(len(shape)) if d in plate or d in separate]
    front = sorted(separate)
    back = sorted(plate, key=lambda d: plate[d])
    array = jnp.transpose(
        array,
        [count + plate_dims.index(d) for d in front] + [*range(count)] + [count + plate_dims.index(d) for d in back],
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
        free_columns = [n for n in range(count) if form[n] != NO_ENTRY]
        while (again := next((n for n in free_columns if form[n] != n), None)) is not None:
            first = free_columns.index(form[again]) + 1
            second = free_columns.index(again) + 1
            part = jnp.moveaxis(jnp.diagonal(part, axis1=first, axis2=second), -1, first)
            free_columns.remove(again)
        columns = [entries[n][rows] for n in free_columns]
        if not columns:  # a constant, which any variable of the site may carry
            site = table.axes[0].site
            part = jnp.repeat(part[:, None], variables.sites[site].size, axis=1)
            columns = [np.full(len(rows), variables.numbers(site).flat[0])]
        yield Family(part, np.stack(columns, 1), plates)


def _numbers(axis: TableAxis, at: Mapping[int, np.ndarray], count: int, variables: Variables) -> np.ndarray:
    """Return the number of the variable at each position; `NO_ENTRY` outside of the site."""
    site = variables.sites[axis.site]
    index = []
    inside = np.ones(count, bool)
    for n, (c, length) in enumerate(zip(axis.where, site.entries, strict=True)):
        if n not in variables.plates[axis.site]:
            here = np.full(count, c.index) if isinstance(c, At) else c.at(at[c.dim])  # pyright: ignore
            inside &= (here >= 0) & (here < length)
            index.append(np.clip(here, 0, length - 1))
    return np.where(inside, variables.numbers(axis.site)[tuple(index)], NO_ENTRY)


def _first_equal(entries: Sequence[np.ndarray], number: int) -> np.ndarray:
    """Return for each position the first axis with the same variable as axis `number`; `NO_ENTRY` without one."""
    first = np.where(entries[number] == NO_ENTRY, NO_ENTRY, number)
    for n in reversed(range(number)):
        first = np.where((entries[n] == entries[number]) & (first != NO_ENTRY), n, first)
    return first


def take(table: Array, rows: np.ndarray) -> Array:
    """Return rows of a table: all of them as they are, evenly spaced ones by a slice."""
    if len(rows) == len(table) and np.array_equal(rows, np.arange(len(rows))):
        return table
    steps = np.unique(np.diff(rows))
    if len(rows) == 1 or (len(steps) == 1 and steps[0] > 0):
        return jax.lax.slice_in_dim(table, int(rows[0]), int(rows[-1]) + 1, int(steps[0]) if len(rows) > 1 else 1)
    return table[rows]


class Incidence(NamedTuple):
    """Place of a variable in a factor: the family, the column, and the row."""

    family: int
    column: int
    row: int


@dataclass(frozen=True)
class Step:
    """Variables that were eliminated together.

    Attributes:
        numbers: their numbers.
        neighbours: numbers of the neighbours, (variables, neighbours).
        table: log weights, of shape (variables, values, values of each neighbour, ..., plates).
        plates: plates of the variables.
        in_order: true if each variable is tied to the one after it, and the table has the sum over those before.
    """

    numbers: np.ndarray
    neighbours: np.ndarray
    table: Array
    plates: tuple[Dim, ...]
    in_order: bool = False


@dataclass(frozen=True)
class EliminationResult:
    """Result of an elimination.

    Attributes:
        terms: the log of the sums: for each a variable that was summed over, the plates, and an array over them.
        steps: the tables of the eliminated variables, in order.
    """

    terms: list[tuple[int, tuple[Dim, ...], Array]]
    steps: list[Step]


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def log_sum(table: Array, axis: int) -> Array:
    """Return log sum exp along an axis; minus infinity, with a gradient of zero, where all are minus infinity."""
    largest = jnp.max(table, axis=axis, keepdims=True)
    anywhere = jnp.where(jnp.isfinite(largest), largest, 0.0)
    return jnp.log(jnp.sum(jnp.exp(table - anywhere), axis=axis)) + jnp.squeeze(anywhere, axis)


@log_sum.defjvp
def _derivative_of_log_sum(axis: int, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """Return the sum and its derivative, which has half as many operations as that of its parts."""
    (table,) = primals
    (change,) = tangents
    total = log_sum(table, axis)
    possible_total = jnp.where(jnp.isneginf(total), 0.0, total)
    shares = jnp.exp(table - jnp.expand_dims(possible_total, axis))
    return total, jnp.sum(shares * change, axis=axis)


class Elimination:
    """Sum of factors over all their variables."""

    def __init__(self, families: Sequence[Family], variables: Variables):
        self.variables = variables
        self.terms = []
        self.steps = []
        self.families: list[Family] = []
        for family in families:
            self._add(family)
        self.left = set(range(len(variables.site_of)))

    def run(self) -> EliminationResult:
        """Sum over all variables.

        Raises:
            TooManyValues: when a variable depends on too many others.
            ValueError: when variables of crossed plates depend on each other.
        """
        if jax.default_backend() == "cpu":  # rounds of all at once pay on accelerators
            self._sum_along_chains()
        while self.left:
            self.families = _join_families(self.families, self.variables)
            incidences = self._incidences()
            neighbours = {v: self._neighbours(v, incidences[v]) for v in self.left}
            next_variables = self._independent(neighbours)
            new: list[Family] = []
            for _, group in groupby(
                sorted(next_variables, key=lambda v: (self._form(v, incidences[v], neighbours[v]), v)),
                key=lambda v: self._form(v, incidences[v], neighbours[v]),
            ):
                if (family := self._summed([*group], incidences, neighbours)) is not None:
                    new.append(family)
            gone = {(i.family, i.row) for v in next_variables for i in incidences[v]}
            self.families = _without(self.families, gone)
            self.left -= set(next_variables)
            for family in new:
                self._add(family)
        return EliminationResult(self.terms, self.steps)

    def _sum_along_chains(self) -> None:
        """Sum over variables that are tied one to the next, along each such chain in order."""
        incidences = self._incidences()
        neighbours = {v: self._neighbours(v, incidences[v]) for v in self.left}
        for chain in _chains(neighbours):
            forms = {(self.variables.size(v), self.variables.plates_of(v)) for v in chain}
            if len(forms) == 1:
                self._sum_along(chain)
                self.left -= set(chain)
        gone = {(i.family, i.row) for v in incidences if v not in self.left for i in incidences[v]}
        self.families = _without(self.families, gone)

    def _sum_along(self, chain: list[int]) -> None:
        plates = self.variables.plates_of(chain[0])
        lengths = [self.variables.lengths[plate] for plate in plates]
        size = self.variables.size(chain[0])
        place = {v: n for n, v in enumerate(chain)}
        single = jnp.zeros((len(chain), size, *lengths))
        pairs = jnp.zeros((len(chain) - 1, size, size, *lengths))
        for number, family in enumerate(self.families):
            places = np.array([[place.get(v, -1) for v in entries] for entries in family.entries.tolist()])
            for column in range(family.order):
                # of a pair, the column of the variable that comes first
                here = (places >= 0).all(1) & (places.argmin(1) == column)
                if not here.any():
                    continue
                rows = np.flatnonzero(here)
                others = family.entries[rows[0]].tolist()
                del others[column]
                incidence = Incidence(number, column, int(rows[0]))
                part = self._aligned(take(family.table, rows), incidence, others, plates)
                if family.order == 1:
                    single = _added(single, places[rows, column], part)
                else:
                    pairs = _added(pairs, places[rows, column], part)

        def turn(message: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
            pair, own = row
            table = message[:, None] + pair
            return log_sum(table, 0) + own, table

        last, tables = jax.lax.scan(turn, single[0], (pairs, single[1:]))
        numbers = np.array(chain)
        self.steps.append(Step(numbers[:-1], numbers[1:, None], tables, plates, in_order=True))
        self.steps.append(Step(numbers[-1:], np.zeros((1, 0), int), last[None], plates))
        self.terms.append((chain[-1], plates, log_sum(last, 0)))

    def _add(self, family: Family) -> None:
        """Add factors; over plates that none of their variables is in, they are added up."""
        within = {plate for v in family.entries[0] for plate in self.variables.plates_of(v)}
        outside = [n for n, plate in enumerate(family.plates) if plate not in within]
        table = jnp.sum(family.table, axis=[1 + family.order + n for n in outside])
        plates = tuple(plate for plate in family.plates if plate in within)
        self.families.append(Family(table, family.entries, plates))

    def _incidences(self) -> dict[int, list[Incidence]]:
        incidences: dict[int, list[Incidence]] = {v: [] for v in self.left}
        for number, family in enumerate(self.families):
            for row, entries in enumerate(family.entries.tolist()):
                for column, v in enumerate(entries):
                    incidences[v].append(Incidence(number, column, row))
        return incidences

    def _neighbours(self, v: int, incidences: Sequence[Incidence]) -> list[int]:
        return sorted({u for i in incidences for u in self.families[i.family].entries[i.row].tolist()} - {v})

    def _independent(self, neighbours: dict[int, list[int]]) -> list[int]:
        """Return variables that are not neighbours, whose elimination is cheap."""
        plates = {v: set(self.variables.plates_of(v)) for v in self.left}
        ready = [v for v in self.left if all(plates[u] <= plates[v] for u in neighbours[v])]
        if not ready:
            raise ValueError(self._crossed(neighbours, plates))
        cost = {v: math.prod(self.variables.size(u) for u in (v, *neighbours[v])) for v in ready}
        least = min(ready, key=lambda v: (cost[v], v))
        if cost[least] > MOST_RUNS:
            entries = [self.variables.sites[self.variables.site_of[u]] for u in (least, *neighbours[least])]
            check_size(entries, f"the variable {self._name(least)!r}, with those it is tied to,")
        independent: list[int] = []
        blocked: set[int] = set()
        for v in sorted(ready, key=lambda v: (cost[v] > cost[least] and len(neighbours[v]) > FEW, v)):
            cheap = cost[v] == cost[least] or (len(neighbours[v]) <= FEW and cost[v] <= MOST_RUNS)
            if v not in blocked and cheap:
                independent.append(v)
                blocked.update(neighbours[v])
        return independent

    def _form(self, v: int, incidences: Sequence[Incidence], neighbours: Sequence[int]) -> tuple[Any, ...]:
        """Return the form of a variable's factors; those of one form are summed together."""
        return tuple((i.family, i.column, tuple(neighbours.index(u) for u in self._others(i))) for i in incidences)

    def _others(self, i: Incidence) -> list[int]:
        entries = self.families[i.family].entries[i.row].tolist()
        return entries[: i.column] + entries[i.column + 1 :]

    def _summed(
        self, group: list[int], incidences: dict[int, list[Incidence]], neighbours: dict[int, list[int]]
    ) -> Family | None:
        """Sum over variables whose factors have the same form; return the factors between their neighbours."""
        first = group[0]
        plates = self.variables.plates_of(first)
        count = len(neighbours[first])
        total: Any = 0.0
        for n, i in enumerate(incidences[first]):
            part = take(self.families[i.family].table, np.array([incidences[v][n].row for v in group]))
            total = total + self._aligned(part, i, neighbours[first], plates)
        sizes = [self.variables.size(u) for u in (first, *neighbours[first])]
        lengths = [self.variables.lengths[plate] for plate in plates]
        total = jnp.broadcast_to(total, (len(group), *sizes, *lengths))
        entries = np.array([neighbours[v] for v in group], int).reshape(len(group), count)
        self.steps.append(Step(np.array(group), entries, total, plates))
        sums = log_sum(total, 1)
        if not count:
            self.terms.extend((v, plates, sums[n]) for n, v in enumerate(group))
            return None
        return Family(sums, entries, plates)

    def _aligned(self, part: Array, i: Incidence, neighbours: Sequence[int], plates: Sequence[Dim]) -> Array:
        """Return a table with the variable first, then all its neighbours and its plates, of size one where absent."""
        family = self.families[i.family]
        others = self._others(i)
        part = jnp.moveaxis(part, 1 + i.column, 1)
        order = sorted(range(len(others)), key=lambda n: neighbours.index(others[n]))
        rest = range(2 + len(others), part.ndim)
        part = jnp.transpose(part, [0, 1, *(2 + n for n in order), *rest])
        missing = [2 + n for n, u in enumerate(neighbours) if u not in others]
        missing += [2 + len(neighbours) + n for n, plate in enumerate(plates) if plate not in family.plates]
        return jnp.expand_dims(part, missing)

    def _name(self, v: int) -> str:
        return self.variables.sites[self.variables.site_of[v]].name

    def _crossed(self, neighbours: dict[int, list[int]], plates: dict[int, set[Dim]]) -> str:
        v = min(self.left)
        u = next(u for u in neighbours[v] if not plates[u] <= plates[v])
        return (
            f"phx.marginalize: the discrete variables {self._name(v)!r} and {self._name(u)!r} depend on each other "
            f"along different dimensions, as the rows and columns of a table do: every entry of one is tied to every "
            f"entry of the other, and they cannot be summed over one by one. Make one of them continuous, or observe "
            f"it, or leave it out of names= and sum over it otherwise."
        )


def _chains(neighbours: Mapping[int, Sequence[int]]) -> Iterator[list[int]]:
    """Yield the groups of variables that are tied one to the next and to no others, each in order."""
    ends = {v for v, others in neighbours.items() if len(others) == 1}
    for first in sorted(ends):
        chain = [first]
        while following := [u for u in neighbours[chain[-1]] if u not in chain[-2:]]:
            if len(neighbours[following[0]]) > FEW:
                break
            chain.append(following[0])
        if first < chain[-1] and chain[-1] in ends:
            yield chain


def _added(total: Array, places: np.ndarray, part: Array) -> Array:
    """Return a sum of tables with others added at these places."""
    part = jnp.broadcast_to(part, (len(places), *total.shape[1:]))
    if np.array_equal(places, np.arange(len(total))):
        return total + part
    return total.at[places].add(part)


def _without(families: Sequence[Family], gone: Collection[tuple[int, int]]) -> list[Family]:
    """Return the factors that are left without those of these families and rows."""
    left = []
    for number, family in enumerate(families):
        rows = [row for row in range(len(family.entries)) if (number, row) not in gone]
        if rows:
            table = take(family.table, np.array(rows))
            left.append(replace(family, table=table, entries=family.entries[rows]))
    return left


def _join_families(families: Sequence[Family], variables: Variables) -> list[Family]:
    """Return the families with factors of the same variables added, and those of equal form in one family."""
    added: dict[Any, Family] = {}
    for family in families:
        key = family.entries.tobytes(), family.entries.shape, family.plates
        before = added.get(key)
        added[key] = family if before is None else replace(before, table=before.table + family.table)
    similar: dict[Any, list[Family]] = {}
    for family in added.values():
        columns = tuple((variables.size(v), variables.plates_of(v)) for v in family.entries[0])
        similar.setdefault((columns, family.plates), []).append(family)
    return [
        group[0]
        if len(group) == 1
        else Family(
            jnp.concatenate([f.table for f in group]), np.concatenate([f.entries for f in group]), group[0].plates
        )
        for group in similar.values()
    ]


def draw(sums: EliminationResult, variables: Variables, key: Array) -> list[Array]:
    """Draw all variables from their joint distribution given by the tables of an elimination.

    Returns:
        For each site the numbers of its entries' values, in the shape of the site.
    """
    values_by_plates: dict[tuple[Dim, ...], Array] = {}  # values of all variables with these plates, by number
    noise: dict[tuple[Dim, ...], Array] = {}  # in one call for all variables, since each call takes long to compile
    most_values = max(site.size for site in variables.sites)
    for step in reversed(sums.steps):
        lengths = [variables.lengths[plate] for plate in step.plates]
        if step.plates not in values_by_plates:
            shape = len(variables.site_of), *lengths
            values_by_plates[step.plates] = jnp.zeros(shape, jnp.int32)
            key_of_plates = jax.random.fold_in(key, len(noise))
            noise[step.plates] = jax.random.gumbel(key_of_plates, (*shape, most_values), step.table.dtype)
        count = len(step.numbers)
        if step.in_order:
            following = values_by_plates[step.plates][step.neighbours[-1, 0]]
            picked = _drawn_along(step.table, noise[step.plates][step.numbers], following)
            values_by_plates[step.plates] = values_by_plates[step.plates].at[step.numbers].set(picked)
            continue
        values = step.table.shape[1]
        inner = step.table.shape[2 : 2 + step.neighbours.shape[1]]
        table = jnp.moveaxis(step.table, [1, *(2 + n for n in range(len(inner)))], range(-1 - len(inner), 0))
        table = table.reshape(count, *lengths, values, math.prod(inner))
        index: Any = jnp.zeros((count, *lengths), int)
        for column, size in zip(step.neighbours.T, inner, strict=True):
            plates = variables.plates_of(column[0])
            missing = [1 + n for n, plate in enumerate(step.plates) if plate not in plates]
            index = index * size + jnp.expand_dims(values_by_plates[plates][column], missing)
        logits = jnp.take_along_axis(table, index[..., None, None], axis=-1)[..., 0]
        picked = jnp.argmax(logits + noise[step.plates][step.numbers, ..., :values], axis=-1)
        values_by_plates[step.plates] = values_by_plates[step.plates].at[step.numbers].set(picked.astype(jnp.int32))
    return [_site(values_by_plates, variables, s) for s in range(len(variables.sites))]


def _drawn_along(tables: Array, noise: Array, last: Array) -> Array:
    """Draw the variables of a chain in reverse order, given the last one."""

    def turn(following: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        table, noise = row
        by_following = jnp.moveaxis(table, (0, 1), (-2, -1))
        logits = jnp.take_along_axis(by_following, following[..., None, None], axis=-1)[..., 0]
        picked = jnp.argmax(logits + noise[..., : table.shape[0]], axis=-1).astype(jnp.int32)
        return picked, picked

    return jax.lax.scan(turn, last, (tables, noise), reverse=True)[1]


def _site(values_by_plates: Mapping[tuple[Dim, ...], Array], variables: Variables, site: int) -> Array:
    entries = variables.sites[site].entries
    plates = variables.plates[site]
    numbers = variables.numbers(site)
    values = values_by_plates[tuple(sorted(plates.values()))][numbers.ravel()]
    values = values.reshape(*numbers.shape, *values.shape[1:])
    separate = [d for d in range(len(entries)) if d not in plates]
    order = [*separate, *sorted(plates, key=lambda d: plates[d])]
    return jnp.transpose(values, [order.index(d) for d in range(len(entries))])[0]
