"""Rules of the proof for gathers and scatters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from phalanx.exactness.proof.equation_pair import EquationPair, Rule, aligned, has_all_rows, is_zero, plain
from phalanx.jaxprs.sharding_state import Indices, Kind, Numbers, Partial, Replicated, ShardedRows


def _gather(pair: EquationPair) -> list[Kind] | None:
    table, indices = pair.inputs
    numbers, sizes = pair.params["dimension_numbers"], pair.params["slice_sizes"]
    batch = [d for d in range(len(pair.out)) if d not in numbers.offset_dims]
    if isinstance(indices, Numbers) and pair.shape(1)[-1] == 1:
        indices = Indices(indices.group, indices.dim, 0)
    if isinstance(indices, Replicated) and isinstance(table, ShardedRows):
        taken = (*numbers.start_index_map, *numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
        if indices.factor != 1 or table.dim in taken or not has_all_rows(pair, "slice_sizes", table.dim):
            return None
        dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
        kept = [d for d in range(len(sizes)) if d not in dropped]
        return [replace(plain(table), dim=numbers.offset_dims[kept.index(table.dim)])]
    if pair.whole.params["slice_sizes"] != sizes or not isinstance(indices, ShardedRows | Indices):
        return None
    if indices.dim == len(pair.shape(1)) - 1:
        return None
    if isinstance(indices, Indices):  # each row's own entry, by the row's number
        if not isinstance(table, ShardedRows) or table.layout != (indices.group, table.dim, 1, 1):
            return None
        if numbers.start_index_map[indices.column] != table.dim or sizes[table.dim] != 1:
            return None
        return [replace(plain(table), dim=batch[indices.dim])]
    if indices.factor != 1:
        return None
    if isinstance(table, Replicated):
        return [replace(plain(indices), dim=batch[indices.dim], factor=table.factor)]
    operand, starts = numbers.operand_batching_dims, numbers.start_indices_batching_dims
    if not isinstance(table, ShardedRows) or aligned([replace(table, dim=0), replace(indices, dim=0)]) is None:
        return None
    if table.dim not in operand or indices.dim not in starts or operand.index(table.dim) != starts.index(indices.dim):
        return None
    return [replace(plain(indices), dim=batch[indices.dim])]


def _scatter(pair: EquationPair) -> list[Kind] | None:
    table, indices, updates = pair.inputs
    numbers = pair.params["dimension_numbers"]
    if is_zero(table) and pair.local.primitive.name == "scatter-add" and aligned([indices, updates]):
        return _scattered_sum(pair)
    rows = aligned([table, updates])
    if rows is None or not isinstance(table, ShardedRows) or not isinstance(updates, ShardedRows | Replicated):
        return None
    batching = numbers.operand_batching_dims
    if isinstance(indices, ShardedRows) and isinstance(updates, ShardedRows):
        starts = numbers.scatter_indices_batching_dims
        paired = (
            table.dim in batching and indices.dim in starts and batching.index(table.dim) == starts.index(indices.dim)
        )
        outer = [d for d in range(len(pair.shape(2))) if d not in numbers.update_window_dims]
        fits = replace(indices, dim=0).layout == replace(table, dim=0).layout and indices.factor == 1
        return [plain(table)] if paired and fits and outer[indices.dim] == updates.dim else None
    return None


def _scatter_columns(pair: EquationPair) -> list[Kind] | None:
    """Return the kind of a scatter into some columns of each row."""
    table, indices, updates = pair.inputs
    numbers = pair.params["dimension_numbers"]
    if (
        not isinstance(table, ShardedRows)
        or (indices != Replicated() and not is_zero(indices))
        or not isinstance(updates, ShardedRows)
    ):
        return _scatter(pair)
    if table.factor != 1 or updates.factor != 1 or table.dim in numbers.scatter_dims_to_operand_dims:
        return None
    dropped = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    kept = [d for d in range(len(pair.shape(0))) if d not in dropped]
    if table.dim not in kept or numbers.update_window_dims[kept.index(table.dim)] != updates.dim:
        return None
    full = all(a[table.dim] == b[updates.dim] for a, b in zip(pair.shapes(0), pair.shapes(2), strict=True))
    return [plain(table)] if full and replace(updates, dim=table.dim).layout == table.layout else None


def _scattered_sum(pair: EquationPair) -> list[Kind] | None:
    """Return the kind of sums over the rows of each level of a code."""
    _, indices, updates = pair.inputs
    outer = [d for d in range(len(pair.shape(2))) if d not in pair.params["dimension_numbers"].update_window_dims]
    if not isinstance(indices, ShardedRows) or not isinstance(updates, ShardedRows) or updates.group.padded:
        return None
    if indices.dim >= len(outer) or outer[indices.dim] != updates.dim or indices.dim == len(pair.shape(1)) - 1:
        return None
    return [Partial(updates.group.axes, updates.factor)]


TABLES: Mapping[str, Rule] = {
    "gather": _gather,
    **dict.fromkeys(
        ("scatter", "scatter-add", "scatter_add", "scatter-mul", "scatter_mul", "scatter-min", "scatter-max",
         "scatter_min", "scatter_max"), _scatter_columns),
}  # fmt: skip
