"""Relation of a value on one device to the same value in the whole: replicated, rows, a part of a sum, or unknown.

Two traces of a program are followed side by side, one on the whole data and one on the rows of a device. The kind of a
pair of values, one from each, determines how to compute the value in the whole from those on the devices. The `factor`
is rational: the mean over all rows is 1/n of the sum over n devices of the means over their rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from jax.typing import ArrayLike

from phalanx.mesh.space import RowSharding

ONE = Fraction(1)


@dataclass(frozen=True)
class Group:
    """Rows that are sharded in the same way.

    Attributes:
        axes: mesh axes that the rows are sharded over.
        rows: number of rows in the whole.
        local_rows: number of rows on one device.
        devices: number of devices that hold different rows.
    """

    axes: frozenset[str]
    rows: int
    local_rows: int
    devices: int

    @property
    def padded(self) -> bool:
        """True if the last device holds padded rows."""
        return self.rows != self.local_rows * self.devices


@dataclass(frozen=True)
class Replicated:
    """A value equal on all devices; the whole is `factor` times it. `zero`: it is known to be zero."""

    factor: Fraction = ONE
    zero: bool = False


@dataclass(frozen=True)
class ShardedRows:
    """Rows of `group` along `dim`; the whole is `factor` times the devices' rows, one after the other.

    `reshape` may merge other dimensions with that of the rows, which is then (before, rows, per) in row-major order.

    Attributes:
        constant: True if all rows are equal, on all devices.
        false: True if all entries are known to be False.
    """

    group: Group
    dim: int
    before: int = 1
    per: int = 1
    factor: Fraction = ONE
    constant: bool = False
    false: bool = False

    @property
    def layout(self) -> tuple[Any, ...]:
        """Group and position of the rows."""
        return self.group, self.dim, self.before, self.per


@dataclass(frozen=True)
class Partial:
    """A part of a sum: the whole is `factor` times the sum (or maximum, minimum) of the devices' values."""

    axes: frozenset[str]
    factor: Fraction = ONE
    over: str = "sum"


@dataclass(frozen=True)
class Numbers:
    """Row indices along `dim`, usable only to gather each row's own entry."""

    group: Group
    dim: int


@dataclass(frozen=True)
class Indices:
    """Index vectors along `dim`, one for each row, whose entry `column` is the index of the row."""

    group: Group
    dim: int
    column: int


Kind = Replicated | ShardedRows | Partial | Numbers | Indices | None
"""Kind of a pair of values; None if unknown: the rows may be mixed."""


class Groups:
    """The groups of rows of a program on a mesh."""

    def __init__(self, shardings: Iterable[RowSharding], sizes: Mapping[str, int]):
        self.sizes = {axis: size for axis, size in sizes.items() if size > 1}
        self._all = {self.of(sharding) for sharding in shardings if sharding.axes}

    def of(self, sharding: RowSharding) -> Group:
        """Return the group of a sharded leaf."""
        return Group(frozenset(sharding.axes), sharding.rows, sharding.local_rows, self.devices(sharding.axes))

    def devices(self, axes: Iterable[str]) -> int:
        """Return the number of devices along these axes."""
        return math.prod(self.sizes.get(axis, 1) for axis in axes)

    def rows_of(self, whole: tuple[int, ...], local: tuple[int, ...]) -> ShardedRows | None:
        """Return the only rows that a value of these shapes can have; None unless there is exactly one answer."""
        if len(whole) != len(local):
            return None
        dims = [d for d, (a, b) in enumerate(zip(whole, local, strict=True)) if a != b]
        if len(dims) != 1:
            return None
        a, b = whole[dims[0]], local[dims[0]]
        fits = [g for g in self._all if b % g.local_rows == 0 and a == b // g.local_rows * g.rows]
        return ShardedRows(fits[0], dims[0], per=b // fits[0].local_rows) if len(fits) == 1 else None

    def compare(self, whole: ArrayLike, local: ArrayLike) -> Kind:
        """Return the kind of a pair of literals or constants of the two programs."""
        if whole is local:
            return Replicated(zero=not np.shape(whole) and _is_zero(whole))
        try:
            whole, local = np.asarray(whole), np.asarray(local)
        except TypeError:  # random keys
            return None
        if whole.dtype != local.dtype:
            return None
        if whole.shape == local.shape and np.array_equal(whole, local, equal_nan=whole.dtype.kind in "fc"):
            return Replicated(zero=bool(np.all(whole == 0)))
        if whole.shape == () == local.shape:
            return self._multiple(float(whole), float(local))
        rows = self.rows_of(whole.shape, local.shape)
        if (
            rows is not None
            and np.all(whole == np.take(local, [0], rows.dim))
            and np.all(local == local.take([0], rows.dim))
        ):
            return replace(rows, constant=True)
        return None

    def _multiple(self, whole: float, local: float) -> Kind:
        """Return the kind of a pair of numbers whose ratio is that of rows or of devices."""
        for group in self._all:
            of_rows = Fraction(group.rows, group.local_rows)
            for factor in (of_rows, Fraction(group.devices), of_rows / group.devices):
                for f in (factor, 1 / factor):
                    if local and math.isclose(whole / local, f, rel_tol=1e-6):
                        return Replicated(f)
        for size in self.sizes.values():
            if local and whole / local in (size, 1 / size):
                return Replicated(Fraction(whole / local).limit_denominator(size))
        return None


def join(kinds: Sequence[Kind]) -> Kind:
    """Return the kind that covers all of these: of a branch's result, or of a loop's carry."""
    found = kinds[0]
    for kind in kinds[1:]:
        found = _join(found, kind)
    return found


def _join(a: Kind, b: Kind) -> Kind:
    if a == b:
        return a
    if isinstance(a, Replicated) and isinstance(b, Replicated):
        if a.factor == b.factor or a.zero or b.zero:
            return Replicated(b.factor if a.zero else a.factor, zero=a.zero and b.zero)
        return None
    if isinstance(a, ShardedRows) and isinstance(b, ShardedRows) and (a.layout, a.factor) == (b.layout, b.factor):
        return replace(a, constant=False, false=False)
    for zero, other in ((a, b), (b, a)):
        if isinstance(zero, Replicated) and zero.zero and isinstance(other, Partial) and other.over == "sum":
            return other
    return None


def fits(kind: Kind, whole: tuple[int, ...], local: tuple[int, ...]) -> bool:
    """Return whether values of these shapes, in the whole and on a device, can be of this kind."""
    if kind is None:
        return True
    if isinstance(kind, Replicated | Partial):
        return whole == local
    if len(whole) != len(local) or not 0 <= kind.dim < len(local):
        return False
    each = kind.before * kind.per if isinstance(kind, ShardedRows) else 1
    same = all(a == b for d, (a, b) in enumerate(zip(whole, local, strict=True)) if d != kind.dim)
    return same and (whole[kind.dim], local[kind.dim]) == (each * kind.group.rows, each * kind.group.local_rows)


def _is_zero(value: object) -> bool:
    try:
        return bool(np.asarray(value) == 0)
    except TypeError:
        return False
