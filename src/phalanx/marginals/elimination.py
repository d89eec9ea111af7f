r"""Sums over discrete variables, one independent set of them at a time.

A variable $v$ is eliminated by adding all factors that contain it and summing over its values, which gives a factor
between its neighbours: $\log \sum_v \exp(f_1 + f_2 + \dots)$. Variables that are not neighbours are eliminated in one
round, all of equal form at once. Of a chain of $T$ variables every second one is eliminated in a round, so that
$\log_2 T$ rounds suffice; of a tree all leaves. The tables are kept: in reverse order, each variable is drawn from its
table given its neighbours.

Source: D. Koller, N. Friedman (2009), Probabilistic Graphical Models, chapter 9; S. Särkkä, Á. García-Fernández (2021),
Temporal parallelization of Bayesian smoothers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx.marginals.factors import Dim, Family, Variables, take
from phalanx.marginals.tables import MOST_RUNS, check_size

FEW = 2
"""Number of neighbours up to which variables are eliminated in parallel; more are eliminated cheapest first."""


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
    """

    numbers: np.ndarray
    neighbours: np.ndarray
    table: Array
    plates: tuple[Dim, ...]


@dataclass(frozen=True)
class EliminationResult:
    """Result of an elimination.

    Attributes:
        terms: the log of the sums: for each a variable that was summed over, the plates, and an array over them.
        steps: the tables of the eliminated variables, in order.
    """

    terms: list[tuple[int, tuple[Dim, ...], Array]]
    steps: list[Step]


def log_sum(table: Array, axis: int) -> Array:
    """Return log sum exp along an axis; minus infinity, with a gradient of zero, where all are minus infinity."""
    largest = jax.lax.stop_gradient(jnp.max(table, axis=axis, keepdims=True))
    anywhere = jnp.where(jnp.isfinite(largest), largest, 0.0)
    total = jnp.sum(jnp.exp(table - anywhere), axis=axis)
    possible = total > 0  # true for NaN, too, below
    log = jnp.log(jnp.where(possible | jnp.isnan(total), total, 1.0)) + jnp.squeeze(anywhere, axis)
    return jnp.where(possible | jnp.isnan(total), log, -jnp.inf)


def eliminate(families: Sequence[Family], variables: Variables) -> EliminationResult:
    """Sum over all variables.

    Raises:
        TooManyValues: when a variable depends on too many others.
        ValueError: when variables of crossed plates depend on each other.
    """
    return _Elimination(families, variables).run()


class _Elimination:
    def __init__(self, families: Sequence[Family], variables: Variables):
        self.variables, self.terms, self.steps = variables, [], []
        self.families: list[Family] = []
        for family in families:
            self._add(family)
        self.left = set(range(len(variables.site_of)))

    def run(self) -> EliminationResult:
        while self.left:
            self.families = _joined(self.families, self.variables)
            met = self._incidences()
            neighbours = {v: self._neighbours(v, met[v]) for v in self.left}
            chosen = self._independent(neighbours)
            new: list[Family] = []
            for _, group in groupby(
                sorted(chosen, key=lambda v: (self._form(v, met[v], neighbours[v]), v)),
                key=lambda v: self._form(v, met[v], neighbours[v]),
            ):
                if (family := self._summed([*group], met, neighbours)) is not None:
                    new.append(family)
            gone = {incidence[:3:2] for v in chosen for incidence in met[v]}
            kept = [
                _rows(family, [row for row in range(len(family.entries)) if (number, row) not in gone])
                for number, family in enumerate(self.families)
            ]
            self.families = [family for family in kept if len(family.entries)]
            self.left -= set(chosen)
            for family in new:
                self._add(family)
        return EliminationResult(self.terms, self.steps)

    def _add(self, family: Family) -> None:
        """Add factors; over plates that none of their variables is in, they are added up."""
        within = {plate for v in family.entries[0] for plate in self.variables.plates_of(v)}
        outside = [n for n, plate in enumerate(family.plates) if plate not in within]
        table = jnp.sum(family.table, axis=[1 + family.order + n for n in outside])
        plates = tuple(plate for plate in family.plates if plate in within)
        self.families.append(Family(table, family.entries, plates))

    def _incidences(self) -> dict[int, list[Incidence]]:
        met: dict[int, list[Incidence]] = {v: [] for v in self.left}
        for number, family in enumerate(self.families):
            for row, entries in enumerate(family.entries.tolist()):
                for column, v in enumerate(entries):
                    met[v].append(Incidence(number, column, row))
        return met

    def _neighbours(self, v: int, met: Sequence[Incidence]) -> list[int]:
        return sorted({u for i in met for u in self.families[i.family].entries[i.row].tolist()} - {v})

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
        chosen: list[int] = []
        blocked: set[int] = set()
        for v in sorted(ready, key=lambda v: (cost[v] > cost[least] and len(neighbours[v]) > FEW, v)):
            cheap = cost[v] == cost[least] or (len(neighbours[v]) <= FEW and cost[v] <= MOST_RUNS)
            if v not in blocked and cheap:
                chosen.append(v)
                blocked.update(neighbours[v])
        return chosen

    def _form(self, v: int, met: Sequence[Incidence], neighbours: Sequence[int]) -> tuple[Any, ...]:
        """Return the form of a variable's factors; those of one form are summed together."""
        return tuple((i.family, i.column, tuple(neighbours.index(u) for u in self._others(i))) for i in met)

    def _others(self, i: Incidence) -> list[int]:
        entries = self.families[i.family].entries[i.row].tolist()
        return entries[: i.column] + entries[i.column + 1 :]

    def _summed(
        self, group: list[int], met: dict[int, list[Incidence]], neighbours: dict[int, list[int]]
    ) -> Family | None:
        """Sum over variables whose factors have the same form; return the factors between their neighbours."""
        first = group[0]
        plates, count = self.variables.plates_of(first), len(neighbours[first])
        total: Any = 0.0
        for n, i in enumerate(met[first]):
            part = take(self.families[i.family].table, np.array([met[v][n].row for v in group]))
            total = total + self._aligned(part, i, neighbours[first], plates)
        sizes = [self.variables.size(u) for u in (first, *neighbours[first])]
        lengths = [self.variables.lengths[plate] for plate in plates]
        total = jnp.broadcast_to(total, (len(group), *sizes, *lengths))
        entries = np.array([neighbours[v] for v in group], int).reshape(len(group), count)
        self.steps.append(Step(np.array(group), entries, total, plates))
        found = log_sum(total, 1)
        if not count:
            self.terms.extend((v, plates, found[n]) for n, v in enumerate(group))
            return None
        return Family(found, entries, plates)

    def _aligned(self, part: Array, i: Incidence, neighbours: Sequence[int], plates: Sequence[Dim]) -> Array:
        """Return a table with the variable first, then all its neighbours and its plates, of size one where absent."""
        family, others = self.families[i.family], self._others(i)
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


def _rows(family: Family, rows: list[int]) -> Family:
    return replace(family, table=take(family.table, np.array(rows, int)), entries=family.entries[rows])


def _joined(families: Sequence[Family], variables: Variables) -> list[Family]:
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
    drawn: dict[int, Array] = {}
    for number, step in enumerate(reversed(sums.steps)):
        key_of_step = jax.random.fold_in(key, number)
        lengths = [variables.lengths[plate] for plate in step.plates]
        count, values = len(step.numbers), step.table.shape[1]
        inner = step.table.shape[2 : 2 + step.neighbours.shape[1]]
        table = jnp.moveaxis(step.table, [1, *(2 + n for n in range(len(inner)))], range(-1 - len(inner), 0))
        table = table.reshape(count, *lengths, values, math.prod(inner))
        index: Any = jnp.zeros((count, *lengths), int)
        for column, size in zip(step.neighbours.T, inner, strict=True):
            plates = variables.plates_of(column[0])
            found = jnp.stack([drawn[int(u)] for u in column])
            missing = [1 + n for n, plate in enumerate(step.plates) if plate not in plates]
            index = index * size + jnp.expand_dims(found, missing)
        logits = jnp.take_along_axis(table, index[..., None, None], axis=-1)[..., 0]
        picked = jax.random.categorical(key_of_step, logits, axis=-1)
        drawn |= {int(v): picked[n] for n, v in enumerate(step.numbers)}
    return [_site(drawn, variables, s) for s in range(len(variables.sites))]


def _site(drawn: dict[int, Array], variables: Variables, site: int) -> Array:
    entries, plates = variables.sites[site].entries, variables.plates[site]
    numbers = variables.numbers(site)
    found = jnp.stack([drawn[int(v)] for v in numbers.ravel()])
    found = found.reshape(*numbers.shape, *found.shape[1:])
    separate = [d for d in range(len(entries)) if d not in plates]
    order = [*separate, *sorted(plates, key=lambda d: plates[d])]
    return jnp.transpose(found, [order.index(d) for d in range(len(entries))])[0]
