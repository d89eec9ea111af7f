"""Rules of the proof for what takes from tables and puts into them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from phalanx.exactness.proof.step import Rule, Step, apart, full, is_zero, plain
from phalanx.jaxprs.sharding_state import Indices, Kind, Numbers, Partial, Replicated, Sharded


def _gather(step: Step) -> list[Kind] | None:
    table, indices = step.inputs
    numbers, sizes = step.params["dimension_numbers"], step.params["slice_sizes"]
    batch = [d for d in range(len(step.out)) if d not in numbers.offset_dims]
    if isinstance(indices, Numbers) and step.shape(1)[-1] == 1:
        indices = Indices(indices.group, indices.dim, 0)
    if isinstance(indices, Replicated) and isinstance(table, Sharded):
        taken = (*numbers.start_index_map, *numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
        if indices.factor != 1 or table.dim in taken or not full(step, "slice_sizes", table.dim):
            return None
        dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
        kept = [d for d in range(len(sizes)) if d not in dropped]
        return [replace(plain(table), dim=numbers.offset_dims[kept.index(table.dim)])]
    if step.whole.params["slice_sizes"] != sizes or not isinstance(indices, Sharded | Indices):
        return None
    if indices.dim == len(step.shape(1)) - 1:
        return None
    if isinstance(indices, Indices):  # each row's own entry, by the row's number
        if not isinstance(table, Sharded) or table.layout != (indices.group, table.dim, 1, 1):
            return None
        if numbers.start_index_map[indices.column] != table.dim or sizes[table.dim] != 1:
            return None
        return [replace(plain(table), dim=batch[indices.dim])]
    if indices.factor != 1:
        return None
    if isinstance(table, Replicated):
        return [replace(plain(indices), dim=batch[indices.dim], factor=table.factor)]
    operand, starts = numbers.operand_batching_dims, numbers.start_indices_batching_dims
    if not isinstance(table, Sharded) or apart([replace(table, dim=0), replace(indices, dim=0)]) is None:
        return None
    if table.dim not in operand or indices.dim not in starts or operand.index(table.dim) != starts.index(indices.dim):
        return None
    return [replace(plain(indices), dim=batch[indices.dim])]


def _scatter(step: Step) -> list[Kind] | None:
    table, indices, updates = step.inputs
    numbers = step.params["dimension_numbers"]
    if is_zero(table) and step.local.primitive.name == "scatter-add" and apart([indices, updates]):
        return _scattered_sum(step)
    rows = apart([table, updates])
    if rows is None or not isinstance(table, Sharded) or not isinstance(updates, Sharded | Replicated):
        return None
    batching = numbers.operand_batching_dims
    if isinstance(indices, Sharded) and isinstance(updates, Sharded):
        starts = numbers.scatter_indices_batching_dims
        paired = (
            table.dim in batching and indices.dim in starts and batching.index(table.dim) == starts.index(indices.dim)
        )
        outer = [d for d in range(len(step.shape(2))) if d not in numbers.update_window_dims]
        fits = replace(indices, dim=0).layout == replace(table, dim=0).layout and indices.factor == 1
        return [plain(table)] if paired and fits and outer[indices.dim] == updates.dim else None
    return None


def _scatter_columns(step: Step) -> list[Kind] | None:
    """Of some columns of each row."""
    table, indices, updates = step.inputs
    numbers = step.params["dimension_numbers"]
    if (
        not isinstance(table, Sharded)
        or (indices != Replicated() and not is_zero(indices))
        or not isinstance(updates, Sharded)
    ):
        return _scatter(step)
    if table.factor != 1 or updates.factor != 1 or table.dim in numbers.scatter_dims_to_operand_dims:
        return None
    dropped = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    kept = [d for d in range(len(step.shape(0))) if d not in dropped]
    if table.dim not in kept or numbers.update_window_dims[kept.index(table.dim)] != updates.dim:
        return None
    full = all(a[table.dim] == b[updates.dim] for a, b in zip(step.shapes(0), step.shapes(2), strict=True))
    return [plain(table)] if full and replace(updates, dim=table.dim).layout == table.layout else None


def _scattered_sum(step: Step) -> list[Kind] | None:
    """Sums over the rows of each level of a code."""
    _, indices, updates = step.inputs
    outer = [d for d in range(len(step.shape(2))) if d not in step.params["dimension_numbers"].update_window_dims]
    if not isinstance(indices, Sharded) or not isinstance(updates, Sharded) or updates.group.padded:
        return None
    if indices.dim >= len(outer) or outer[indices.dim] != updates.dim or indices.dim == len(step.shape(1)) - 1:
        return None
    return [Partial(updates.group.axes, updates.factor)]


TABLES: Mapping[str, Rule] = {
    "gather": _gather,
    **dict.fromkeys(
        ("scatter", "scatter-add", "scatter_add", "scatter-mul", "scatter_mul", "scatter-min", "scatter-max",
         "scatter_min", "scatter_max"), _scatter_columns),
}  # fmt: skip
