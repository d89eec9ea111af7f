"""Rules of primitives that move entries: broadcasts, reshapes, slices, padding. Few rows cross between devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import JaxprEqn
from jax.typing import ArrayLike

from phalanx.jaxprs.walking import aval_of
from phalanx.placements.mesh_axis import MeshAxis
from phalanx.placements.placement import PARTIAL, REPLICATED, PlacedValue, Placement, is_sharded
from phalanx.placements.rules.table import Plan, largest_sharded, rule, same_everywhere


@rule("broadcast_in_dim")
def broadcast(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Broadcast each device's rows; one row that becomes many is replicated."""
    dim = placements[0]
    params = equation.params
    if not is_sharded(dim):
        return Plan([dim], [dim])
    place = params["broadcast_dimensions"][dim]
    return Plan([dim], [place]) if params["shape"][place] == operands[0].shape[dim] else None


@rule("reshape")
def reshape(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Reshape each device's rows where they stay one dimension, or divide evenly before and after."""
    dim = placements[0]
    before = operands[0].shape
    after = aval_of(equation.outvars[0]).shape
    if not is_sharded(dim):
        return Plan([dim], [dim])
    leading = math.prod(before[:dim])
    for place, size in enumerate(after):
        if math.prod(after[:place]) != leading:
            continue
        if size == before[dim]:
            return Plan([dim], [place])
        divides = not axis.is_ragged(before[dim]) and not axis.is_ragged(size)
        if leading == 1 and size and divides and (size % before[dim] == 0 or before[dim] % size == 0):
            return Plan([dim], [place])
    return None


@rule("squeeze")
def squeeze(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Drop dimensions of size one, none of which has rows."""
    dim = placements[0]
    dropped = equation.params["dimensions"]
    if not is_sharded(dim):
        return Plan([dim], [dim])
    return None if dim in dropped else Plan([dim], [dim - sum(each < dim for each in dropped)])


@rule("transpose")
def transpose(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Follow the rows to their new dimension."""
    dim = placements[0]
    return Plan([dim], [equation.params["permutation"].index(dim) if is_sharded(dim) else dim])


@rule("rev")
def reverse(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Reverse other dimensions than that of the rows."""
    dim = placements[0]
    return None if dim in equation.params["dimensions"] else Plan([dim], [dim])


@rule("concatenate")
def concatenate(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Concatenate each device's rows along another dimension; partial sums along any."""
    along = equation.params["dimension"]
    dim = largest_sharded(operands, placements, lambda operand, dim: dim != along)
    if dim is not None:
        return Plan([dim] * len(operands), [dim])
    return None if any(map(is_sharded, placements)) else Plan([PARTIAL] * len(operands), [PARTIAL])


@rule("stack")
def stack(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Stack each device's rows along a new dimension."""
    dim = largest_sharded(operands, placements)
    new = equation.params["axis"]
    if dim is None:
        return Plan([PARTIAL] * len(operands), [PARTIAL])
    return Plan([dim] * len(operands), [dim + (dim >= new)])


@rule("unstack")
def unstack(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Take each device's rows apart along another dimension."""
    dim = placements[0]
    dropped = equation.params["axis"]
    if not is_sharded(dim):
        return same_everywhere(equation, dim, dim)
    return None if dim == dropped else same_everywhere(equation, dim, dim - (dim > dropped))


@rule("tile")
def tile(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Repeat each device's rows along other dimensions."""
    dim = placements[0]
    return None if is_sharded(dim) and equation.params["reps"][dim] != 1 else Plan([dim], [dim])


@rule("slice")
def slices(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Slice each device's rows; a slice of few rows is a partial sum, one of nearly all exchanges rows at the edges."""
    dim = placements[0]
    params = equation.params
    operand = operands[0]
    if not is_sharded(dim):
        return Plan([dim], [dim])
    count = operand.shape[dim]
    start = params["start_indices"][dim]
    end = params["limit_indices"][dim]
    strides = params["strides"] or (1,) * len(operand.shape)
    num_rows = aval_of(equation.outvars[0]).shape[dim]
    if num_rows == count:
        return Plan([dim], [dim])

    def others(array: Array) -> Array:
        """Slice the dimensions without rows."""
        starts = [0 if each == dim else first for each, first in enumerate(params["start_indices"])]
        steps = [1 if each == dim else step for each, step in enumerate(strides)]
        limits = own_sizes(params["limit_indices"], operand, array)
        limits[dim] = array.shape[dim]
        return lax.slice(array, starts, limits, steps)

    if 2 * num_rows <= count and operand.dtype != bool:
        numbers = np.arange(start, end, strides[dim], dtype=np.int32)
        return Plan([dim], [PARTIAL], local=lambda x: [rows_by_number(axis, others(x), dim, count, numbers)])
    if strides[dim] != 1 or operand.dtype == bool:
        return None
    shift = _Shift(axis, dim, count, num_rows, start)
    return Plan([dim], [dim], local=lambda x: [shift(others(x))]) if shift.is_short else None


def own_sizes(sizes: Sequence[int], whole: PlacedValue, array: Array) -> list[int]:
    """Return sizes of slices of a whole value as sizes on this device.

    A slice that is as long as the whole value along a dimension is as long as this device's array, which other mesh
    axes may divide.
    """
    triples = zip(sizes, whole.shape, array.shape, strict=True)
    return [local if size == everything else size for size, everything, local in triples]


def rows_by_number(axis: MeshAxis, array: Array, dim: int, count: int, numbers: ArrayLike) -> Array:
    """Return rows of a sharded array as a partial sum: each device has those that are its own, and zeros."""
    axis.note_row_numbers(array)
    rows = axis.rows(count)
    own_numbers = numbers - axis.number() * rows
    is_own = (own_numbers >= 0) & (own_numbers < rows)
    local = jnp.take(array, jnp.clip(own_numbers, 0, rows - 1), dim)
    return jnp.where(
        is_own.reshape([-1 if each == dim else 1 for each in range(local.ndim)]), local, jnp.zeros((), local.dtype)
    )


class _Shift:
    """Rows `start` to `start + num_rows` of sharded rows, sharded anew.

    Device i has rows i * `before` to (i + 1) * `before`, and gets rows `start` + i * `after` to `start` + (i + 1) *
    `after`. It takes the few rows that it lacks on either side from its neighbours: all edges are gathered.
    """

    def __init__(self, axis: MeshAxis, dim: int, count: int, num_rows: int, start: int) -> None:
        self.axis = axis
        self.dim = dim
        self.count = count
        self.kept = num_rows
        self.start = start
        self.before = axis.rows(count)
        self.after = axis.rows(num_rows)
        offsets = [start + device * (self.after - self.before) for device in (0, axis.size - 1)]
        missing_before = -min(offsets)
        missing_after = max(offsets) + self.after - self.before
        self.width = max(0, missing_before, missing_after)

    @property
    def is_short(self) -> bool:
        """True if neighbours have all that is missing, and it is less than the rows of all."""
        return self.width <= self.before and 2 * self.width * self.axis.size < self.count

    def __call__(self, array: Array) -> Array:
        self.axis.note_row_numbers(array)
        offset = self.start + self.axis.number() * (self.after - self.before)
        if self.width:
            array = with_neighbours(self.axis, array, self.dim, self.width)
        local = lax.dynamic_slice_in_dim(array, self.width + offset, self.after, self.dim)
        return self.axis.repeat_last(local, self.dim, self.kept)


def with_neighbours(axis: MeshAxis, array: Array, dim: int, width: int) -> Array:
    """Return this device's rows between the last rows of the device before it and the first of the one after it."""
    rows = array.shape[dim]
    first = axis.stack(lax.slice_in_dim(array, 0, width, axis=dim))
    last = axis.stack(lax.slice_in_dim(array, rows - width, rows, axis=dim))
    before = last[jnp.maximum(axis.number() - 1, 0)]
    after = first[jnp.minimum(axis.number() + 1, axis.size - 1)]
    return jnp.concatenate([before, array, after], dim)


@rule("pad")
def pad(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Pad other dimensions, or rows by a few: the transpose of a slice. Partial sums are padded as they are."""
    dim = placements[0]
    config = equation.params["padding_config"]
    if is_sharded(placements[1]):
        return None
    if not is_sharded(dim):
        return Plan([PARTIAL, PARTIAL], [PARTIAL])
    low, high, interior = config[dim]
    if (low, high, interior) == (0, 0, 0):
        return Plan([dim, REPLICATED], [dim])
    count = operands[0].shape[dim]
    num_rows = aval_of(equation.outvars[0]).shape[dim]
    if interior or low < 0 or high < 0 or operands[0].dtype == bool or not count:
        return None
    shift = _Shift(axis, dim, count, num_rows, -low)
    if not shift.is_short:
        return None

    def local(array: Array, fill: Array) -> list[Array]:
        array = lax.pad(array, fill, [(0, 0, 0) if each == dim else c for each, c in enumerate(config)])
        shifted_array = shift(array)
        number = axis.row_numbers(shifted_array.shape, dim, num_rows) - low
        return [axis.repeat_last(jnp.where((number >= 0) & (number < count), shifted_array, fill), dim, num_rows)]

    return Plan([dim, REPLICATED], [dim], local=local)


@rule("dynamic_slice")
def dynamic_slice(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Slice at computed numbers: all rows stay on their devices, few rows are a partial sum."""
    dim = placements[0]
    operand = operands[0]
    sizes = equation.params["slice_sizes"]
    starts = [REPLICATED] * (len(operands) - 1)
    if not is_sharded(dim):
        return Plan([dim, *starts], [dim])
    count = operand.shape[dim]
    num_rows = sizes[dim]
    if num_rows == count:  # the only start is the first row
        return Plan([dim, *starts], [dim])
    if 2 * num_rows > count or operand.dtype == bool or axis.is_in_loop:  # a loop over rows would send each by itself
        return None

    def local(array: Array, *at: Array) -> list[Array]:
        numbers = jnp.clip(at[dim], 0, count - num_rows) + jnp.arange(num_rows, dtype=at[dim].dtype)
        rows = rows_by_number(axis, array, dim, count, numbers)
        begin = [jnp.zeros_like(start) if each == dim else start for each, start in enumerate(at)]
        return [lax.dynamic_slice(rows, begin, own_sizes(sizes, operand, rows))]

    return Plan([dim, *starts], [PARTIAL], local=local)


@rule("dynamic_update_slice")
def dynamic_update_slice(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Update each device's rows: all of them, or those at computed numbers."""
    operand, update = operands[:2]
    starts = [REPLICATED] * (len(operands) - 2)

    def has_all_rows(value: PlacedValue, dim: int) -> bool:
        return operand.shape[dim] == update.shape[dim]

    dim = largest_sharded(operands[:2], placements[:2], has_all_rows)
    if dim is not None:
        return Plan([dim, dim, *starts], [dim])
    dim = placements[0]
    if not is_sharded(dim):
        return None
    count = operand.shape[dim]
    num_rows = update.shape[dim]

    def local(array: Array, new: Array, *at: Array) -> list[Array]:
        axis.note_row_numbers(array)
        begin = jnp.clip(at[dim], 0, count - num_rows)
        row = jnp.minimum(axis.row_numbers((array.shape[dim],), 0, count), count - 1) - begin
        rows = jnp.take(new, jnp.clip(row, 0, num_rows - 1), dim)
        elsewhere: list[Any] = [jnp.zeros_like(start) if each == dim else start for each, start in enumerate(at)]
        changed_rows = lax.dynamic_update_slice(array, rows, elsewhere)
        is_changed = ((row >= 0) & (row < num_rows)).reshape([-1 if each == dim else 1 for each in range(array.ndim)])
        return [jnp.where(is_changed, changed_rows, array)]

    return Plan([dim, REPLICATED, *starts], [dim], local=local)
