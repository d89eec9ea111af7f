"""Entries of discrete variables that the elements of an array depend on, by position.

An array of a program may depend on a discrete variable `z` entry by entry: element `i` of `mean[z]` depends on `z[i]`
alone. A `TableAxis` states this for all elements at once, so that a table needs one axis for the values of `z[i]`, and
not one for each entry of `z`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from numpyro.distributions import Distribution

from phalanx.distributions.supports import entrywise, kind_of

NO_ENTRY = -1
"""Index or number outside of a variable."""


class Site(NamedTuple):
    """A discrete variable: its name, the values of an entry, and the shape of its entries."""

    name: str
    values: np.ndarray
    shape: tuple[int, ...]

    @property
    def entries(self) -> tuple[int, ...]:
        """Shape of the entries with a first dimension of length 1: the single position of the whole variable.

        Along that dimension, variables that an array joins, such as the steps of a chain, each have one position.
        """
        return (1, *self.shape)

    @property
    def size(self) -> int:
        """Number of values."""
        return len(self.values)


class At(NamedTuple):
    """The same index for all elements."""

    index: int


class Along(NamedTuple):
    """Index `start + step * (p // every)` of the entry that elements at position `p` along a dimension depend on.

    An index outside of the variable stands for no entry. `every` is 1, or the number of elements of a row after rows
    were flattened: all elements of a row depend on the same entry.
    """

    dim: int
    start: int
    step: int
    every: int = 1

    def at(self, position: Any) -> Any:
        """Return the index at a position, or an array of them."""
        return self.start + self.step * (position // self.every)

    def sliced(self, move: Move) -> Along | None:
        """Return the index along the dimension of a result; None if it is not of this form."""
        start = self.at(move.offset)
        if move.stride % self.every == 0:
            return Along(move.dim, start, self.step * (move.stride // self.every))
        if move.stride == 1 and move.offset % self.every == 0:
            return Along(move.dim, start, self.step, self.every)
        return None


class Through(NamedTuple):
    """Index read from an array of the program, along some dimensions; `array` is its number."""

    dims: tuple[int, ...]
    array: int


Component = At | Along | Through


class TableAxis(NamedTuple):
    """An axis of a table: values of the entry of site number `site` that each element depends on.

    `where` has an index for each dimension of `Site.entries`.
    """

    site: int
    where: tuple[Component, ...]

    def runs_along(self, dim: int) -> bool:
        """Return whether the entry differs along a dimension."""
        return any(dim in dims_of(component) for component in self.where)

    def full(self, dim: int, shape: tuple[int, ...], site: Site) -> bool:
        """Return whether position and index are equal along a dimension, for all entries of the site."""
        free = [i for i, c in enumerate(self.where) if dim in dims_of(c)]
        return all(self.where[i] == Along(dim, 0, 1) and site.entries[i] == shape[dim] for i in free)


class Move(NamedTuple):
    """Destination of a dimension: position `p` of the result is position `offset + stride * p` of the operand."""

    dim: int
    offset: int = 0
    stride: int = 1


def dims_of(component: Component) -> tuple[int, ...]:
    """Return the dimensions along which an index differs."""
    if isinstance(component, At):
        return ()
    return (component.dim,) if isinstance(component, Along) else component.dims


def entry_at(axis: TableAxis, dim: int, position: int, site: Site) -> tuple[Component, ...]:
    """Return the entry at one position along a dimension; an index is `NO_ENTRY` outside of the site."""
    where: list[Component] = []
    for c, n in zip(axis.where, site.entries, strict=True):
        at = At(c.at(position)) if isinstance(c, Along) and c.dim == dim else c
        where.append(At(NO_ENTRY) if isinstance(at, At) and not 0 <= at.index < n else at)
    return tuple(where)


def moved(axis: TableAxis, moves: dict[int, Move], shape: tuple[int, ...]) -> TableAxis | None:
    """Return the axis of a result of this shape; None if an index runs along a dimension that it cannot follow."""
    where: list[Component] = []
    for component in axis.where:
        if any(dim not in moves for dim in dims_of(component)):
            return None
        if isinstance(component, Along):
            if (along := component.sliced(moves[component.dim])) is None:
                return None
            component = At(along.start) if shape[along.dim] == 1 else along
        elif isinstance(component, Through):
            to = [moves[dim] for dim in component.dims]
            if any((move.offset, move.stride) != (0, 1) for move in to):
                return None
            component = Through(tuple(move.dim for move in to), component.array)
        where.append(component)
    return TableAxis(axis.site, tuple(where))


def reshaped(axis: TableAxis, before: tuple[int, ...], after: tuple[int, ...]) -> TableAxis | None:
    """Return the axis of an array after a reshape; None if an index then runs along several dimensions."""
    where: list[Component] = []
    for component in axis.where:
        if isinstance(component, Through):
            return None
        if isinstance(component, Along):
            dims = [d for d in range(len(before)) if d != component.dim]
            index = np.expand_dims(component.at(np.arange(before[component.dim])), dims)
            component = _component_of(np.broadcast_to(index, before).reshape(after))
        if component is None:
            return None
        where.append(component)
    return TableAxis(axis.site, tuple(where))


def _component_of(index: np.ndarray) -> At | Along | None:
    """Return the form of an array of indices; None if it differs along several dimensions."""
    first = index[(0,) * index.ndim]
    along = [d for d in range(index.ndim) if np.any(index != index.take([0], axis=d))]
    if not along:
        return At(int(first))
    (dim, *others) = along
    line = np.moveaxis(index, dim, 0).reshape(index.shape[dim], -1)[:, 0]
    every = int(np.argmax(line != first))
    component = Along(dim, int(first), int(line[every] - first), every)
    return component if not others and np.array_equal(line, component.at(np.arange(len(line)))) else None


def values_of(name: str, distribution: Distribution) -> np.ndarray:
    """Return the values of an entry of a discrete variable.

    Raises:
        ValueError: when they are infinitely many, or not known before the program runs.
    """
    single = entrywise(distribution)
    kind = kind_of(distribution)
    if single.event_shape:
        raise ValueError(
            f"phx.marginalize: a value of the discrete variable {name!r} ({kind}) is an array of numbers that depend "
            f"on each other, and is not summed over. Write it by a Categorical variable: the number of the value."
        )
    try:
        with jax.ensure_compile_time_eval():
            return np.asarray(single.enumerate_support(expand=False)).ravel()
    except NotImplementedError as error:
        reason = f" ({error})" if str(error) else ""
        raise ValueError(
            f"phx.marginalize: the discrete variable {name!r} ({kind}) has no finite list of values{reason}, and only "
            f"a finite sum can be computed. Use a Categorical variable over the values that are possible, or name the "
            f"variables to sum out, names=[...]."
        ) from None
    except (jax.errors.JAXTypeError, TypeError):
        raise ValueError(
            f"phx.marginalize: the values of the discrete variable {name!r} ({kind}) depend on other values of the "
            f"program, and their number must be known before it runs. Give the bounds of its support as Python "
            f"numbers, and its shape by .expand(...)."
        ) from None
