"""Rules of lookups and sums by index: `effects[group]`, `segment_sum`, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import JaxprEqn

from phalanx.jaxprs.walking import aval_of
from phalanx.placements.mesh_axis import MeshAxis
from phalanx.placements.placement import PARTIAL, REPLICATED, PlacedValue, Placement, is_inexact, is_sharded
from phalanx.placements.rules.shapes import own_sizes
from phalanx.placements.rules.table import Mask, Plan, rule


@rule("gather")
def lookup(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Plan `table[indices]`: which operands each device needs whole, and how the result is placed.

    Sharded indices are looked up in the whole table. A few replicated indices are looked up in each device's rows of
    the table, and the results added.
    """
    numbers = equation.params["dimension_numbers"]
    sizes = equation.params["slice_sizes"]
    table, indices = operands
    at_table, at_indices = placements
    result = aval_of(equation.outvars[0])
    batch = [dim for dim in range(result.ndim) if dim not in numbers.offset_dims]
    paired = tuple(numbers.operand_batching_dims)
    paired_indices = tuple(numbers.start_indices_batching_dims)
    sliced = [dim for dim in range(len(table.shape)) if dim not in (*numbers.collapsed_slice_dims, *paired)]
    if is_sharded(at_table) and at_table in paired:
        dim = paired_indices[paired.index(at_table)]
        return Plan([at_table, dim], [batch[dim]])
    if is_sharded(at_table) and at_table in sliced and sizes[at_table] == table.shape[at_table]:
        return Plan([at_table, REPLICATED], [numbers.offset_dims[sliced.index(at_table)]])
    if is_sharded(at_indices) and at_indices < len(indices.shape) - 1:
        if at_indices in paired_indices:
            return Plan([paired[paired_indices.index(at_indices)], at_indices], [batch[at_indices]])
        return Plan([REPLICATED, at_indices], [batch[at_indices]])
    if at_indices != REPLICATED:
        return None
    if at_table == PARTIAL:
        return Plan([PARTIAL, REPLICATED], [PARTIAL])
    looks_up_rows = list(numbers.start_index_map) == [at_table] and at_table in numbers.collapsed_slice_dims
    is_small = 2 * math.prod(result.shape) <= math.prod(table.shape)
    if not looks_up_rows or paired or not is_small or table.dtype == bool or axis.is_in_loop:
        return None
    return Plan(placements, [PARTIAL], local=_LookupInOwnRows(axis, equation, table, batch))


class _LookupInOwnRows:
    """Lookup of a few rows in a sharded table, on one device: zeros for indices of other devices' rows.

    The sum over devices is the whole result.
    """

    def __init__(self, axis: MeshAxis, equation: JaxprEqn, table: PlacedValue, batch: Sequence[int]) -> None:
        self.axis = axis
        self.equation = equation
        self.table = table
        self.batch = batch

    def __call__(self, table: Array, indices: Array) -> list[Array]:
        axis = self.axis
        params = self.equation.params
        axis.note_row_numbers(indices)
        dim = params["dimension_numbers"].start_index_map[0]
        count = self.table.shape[dim]
        rows = axis.rows(count)
        is_inside = (indices >= 0) & (indices < count)
        local = jnp.clip(indices, 0, count - 1) - axis.number().astype(indices.dtype) * rows
        is_own = (local >= 0) & (local < rows)
        fills = params["mode"] == lax.GatherScatterMode.FILL_OR_DROP
        if fills:
            is_own &= is_inside
        sizes = tuple(own_sizes(params["slice_sizes"], self.table, table))
        values = self.equation.primitive.bind(table, jnp.clip(local, 0, rows - 1), **{**params, "slice_sizes": sizes})
        values = jnp.where(self._by_result(is_own), values, jnp.zeros((), values.dtype))
        if fills:
            fill = axis.only_first(jnp.asarray(_fill_of(params["fill_value"], values.dtype), values.dtype))
            values = jnp.where(self._by_result(~is_inside), fill, values)
        return [values]

    def _by_result(self, of_indices: Array) -> Array:
        """Return a truth value of each index in the shape of the result."""
        ndim = aval_of(self.equation.outvars[0]).ndim
        values = of_indices[..., 0]
        shape = [values.shape[self.batch.index(dim)] if dim in self.batch else 1 for dim in range(ndim)]
        return values.reshape(shape)


def _fill_of(fill_value: Any, dtype: Any) -> Any:
    """Return the number that JAX fills in for indices outside of a table."""
    if fill_value is not None:
        return fill_value
    if is_inexact(dtype):
        return jnp.nan
    limits = jnp.iinfo(dtype)
    return limits.min if jnp.issubdtype(dtype, jnp.signedinteger) else limits.max


@rule("scatter-add", "scatter_add", "scatter", "scatter_sub", "scatter_mul", "scatter_min", "scatter_max")
def scatter(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Plan `table.at[indices].set(updates)` and the like.

    Devices update their own rows where rows of table and updates correspond. `.add` of sharded updates gives each
    device a partial sum for the whole table.
    """
    numbers = equation.params["dimension_numbers"]
    table, indices, updates = operands
    at_table, at_indices, at_updates = placements
    paired = tuple(numbers.operand_batching_dims)
    paired_indices = tuple(numbers.scatter_indices_batching_dims)
    batch = [dim for dim in range(len(updates.shape)) if dim not in numbers.update_window_dims]
    sliced = [dim for dim in range(len(table.shape)) if dim not in (*numbers.inserted_window_dims, *paired)]
    for dim, of_indices in zip(paired, paired_indices, strict=True):  # the transpose of `take_along_axis`
        needs = [dim, of_indices, batch[of_indices]]
        if any(placement == need for placement, need in zip(placements, needs, strict=True)):
            return Plan(needs, [dim])
    for dim, of_updates in zip(sliced, numbers.update_window_dims, strict=True):  # rows that no index selects
        is_whole = updates.shape[of_updates] == table.shape[dim]
        if (at_table == dim or at_updates == of_updates) and is_whole and not is_sharded(at_indices):
            return Plan([dim, REPLICATED, of_updates], [dim])
    if equation.primitive.name not in ("scatter-add", "scatter_add") or is_sharded(at_table):
        return None
    if is_sharded(at_indices) and at_indices < len(indices.shape) - 1:
        dim = at_indices
    elif is_sharded(at_updates) and at_updates in batch:
        dim = batch.index(at_updates)
    else:
        is_linear = at_indices == REPLICATED and not is_sharded(at_updates)
        return Plan([PARTIAL, REPLICATED, PARTIAL], [PARTIAL]) if is_linear else None
    return Plan([PARTIAL, dim, batch[dim]], [PARTIAL], [Mask(2, batch[dim])])
