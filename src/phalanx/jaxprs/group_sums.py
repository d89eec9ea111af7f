"""Sums by group on GPUs without contended atomics: a rewrite of the scatter-adds of a jaxpr.

The gradient of a lookup `w[group]`, and `jax.ops.segment_sum`, are scatter-adds. A GPU adds one update after the other
to a cell with atomics, so that few groups make many threads wait; where XLA emits compare-and-swap loops for them
(jaxlib 0.10.2 and 0.11.0, openxla/xla#46225) they take 450 to 2,000 times as long. Atomics also add in no fixed order,
so that two runs differ by rounding. Few cells are summed under a one-hot mask instead, which XLA fuses into one
reduction. Updates of many cells are sorted by cell first where each cell gets many: XLA then adds a run of equal cells
in registers and writes it once. CPUs add up in order and keep their scatter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun
from jax.lax import GatherScatterMode

from phalanx.jaxprs.walking import aval_of
from phalanx.mesh.compatibility.workarounds import Workaround
from phalanx.mesh.specs import PyTree

if TYPE_CHECKING:
    from jaxtyping import Int32, Shaped

FEW_CELLS = 64
"""Number of cells up to which each is summed under its own mask; the updates are read once per cell."""

CROWDED = 64
"""Mean number of updates per cell from which updates of many cells are sorted. Neither number is measured on a GPU."""

F = TypeVar("F", bound=Callable[..., Any])


def with_group_sums(f: F) -> F:
    """Return `f` with its scatter-adds rewritten on a GPU, and `f` itself elsewhere.

    Args:
        f: a function of trees of arrays. Take derivatives inside it: later derivatives are right, but may contain
            scatter-adds.
    """
    if not (Workaround.GROUP_SUMS.is_on and on_gpu()):
        return f

    @wraps(f)
    def rewritten_f(*args: PyTree) -> PyTree:
        program, shapes = jax.make_jaxpr(f, return_shape=True)(*args)
        results = jaxpr_as_fun(rewritten(program))(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return rewritten_f  # pyright: ignore[reportReturnType]


def on_gpu() -> bool:
    """Return whether JAX computes on a GPU, NVIDIA's or AMD's."""
    return jax.default_backend() in ("gpu", "cuda", "rocm")


def rewritten(program: Any) -> Any:
    """Return a jaxpr, closed or not, with its scatter-adds rewritten, also in the programs that it calls."""
    if isinstance(program, ClosedJaxpr) and program.jaxpr is not program:  # from JAX 0.12 on both are one class
        inner = rewritten(program.jaxpr)
        return program if inner is program.jaxpr else ClosedJaxpr(inner, program.consts)
    equations = [_equation(eqn) for eqn in program.eqns]
    if all(new is old for new, old in zip(equations, program.eqns, strict=True)):
        return program
    return program.replace(eqns=equations)  # pyright: ignore[reportCallIssue]  (narrowed to a closed one)


def _equation(eqn: JaxprEqn) -> JaxprEqn:
    if eqn.primitive.name == "scatter-add":
        sum_groups = _sum_of(eqn)
        if sum_groups is None:
            return eqn
        call = jax.make_jaxpr(jax.jit(sum_groups))(*(atom.aval for atom in eqn.invars)).jaxpr.eqns[0]
        return call.replace(invars=eqn.invars, outvars=eqn.outvars)
    params = {name: _param(value) for name, value in eqn.params.items()}
    same = all(params[name] is value for name, value in eqn.params.items())
    return eqn if same else eqn.replace(params=params)


def _param(value: object) -> object:
    if isinstance(value, ClosedJaxpr | Jaxpr):
        return rewritten(value)
    if type(value) is tuple and any(isinstance(item, ClosedJaxpr | Jaxpr) for item in value):
        items = tuple(map(_param, value))
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value


def _sum_of(eqn: JaxprEqn) -> Callable[[Array, Array, Array], Array] | None:
    """Return the replacement of a scatter-add of whole rows; None if the scatter-add is kept."""
    operand, _, updates = map(aval_of, eqn.invars)
    numbers = eqn.params["dimension_numbers"]
    indexed = numbers.scatter_dims_to_operand_dims
    inserted = numbers.inserted_window_dims
    if numbers.operand_batching_dims or not set(inserted) <= set(indexed):
        return None
    windowed = [axis for axis in range(operand.ndim) if axis not in inserted]
    window = dict(zip(windowed, numbers.update_window_dims, strict=True))
    whole = {axis for axis, dim in window.items() if updates.shape[dim] == operand.shape[axis]}
    # a window as long as its axis begins at 0, unless updates with indices outside are dropped
    free = whole if eqn.params["mode"] != GatherScatterMode.FILL_OR_DROP else whole.difference(indexed)
    columns = [column for column, axis in enumerate(indexed) if axis not in free]
    axes = [indexed[column] for column in columns]
    others = [axis for axis in range(operand.ndim) if axis not in axes]
    if any(updates.shape[dim] != 1 for axis, dim in window.items() if axis in axes) or not whole.issuperset(others):
        return None
    if not jnp.issubdtype(operand.dtype, jnp.inexact) or eqn.params["unique_indices"]:
        return None
    cells = math.prod(operand.shape[axis] for axis in axes)
    rows = [dim for dim in range(updates.ndim) if dim not in numbers.update_window_dims]
    ones = [dim for axis, dim in window.items() if axis in axes]  # an indexed axis may stay, with one entry
    count = math.prod(updates.shape[axis] for axis in rows)
    if cells <= FEW_CELLS:
        add = _add_under_masks
    elif count >= CROWDED * cells and not eqn.params["indices_are_sorted"]:
        add = _add_sorted
    else:
        return None
    clips = eqn.params["mode"] == GatherScatterMode.CLIP
    sizes = [operand.shape[axis] for axis in axes]
    row_shape = [operand.shape[axis] for axis in others]

    def summed(operand: Array, indices: Array, updates: Array) -> Array:
        table = lax.transpose(operand, [*axes, *others]).reshape(cells, *row_shape)
        values = lax.transpose(updates, [*rows, *(window[axis] for axis in others), *ones]).reshape(count, *row_shape)
        sums = add(
            table, _cells_of(indices.reshape(count, len(indexed))[:, np.array(columns, int)], sizes, clips), values
        )
        order = [*axes, *others]
        return lax.transpose(
            sums.reshape(*sizes, *row_shape), [order.index(axis) for axis in range(operand.ndim)]
        )  # the inverse of the first transpose

    return summed


def _cells_of(indices: Shaped[Array, "rows axes"], sizes: list[int], clips: bool) -> Int32[Array, "rows"]:
    """Return the number of the cell that each row of indices names; -1 if it is outside."""
    cell = jnp.zeros(len(indices), jnp.int32)
    inside = jnp.ones(len(indices), bool)
    for column, size in enumerate(sizes):
        index = indices[:, column]
        if clips:
            index = jnp.clip(index, 0, size - 1)
        inside &= (index >= 0) & (index < size)
        cell = cell * size + index.astype(jnp.int32)
    return jnp.where(inside, cell, -1)


def _add_under_masks(
    table: Shaped[Array, "cells ..."], cell: Int32[Array, "rows"], values: Shaped[Array, "rows ..."]
) -> Shaped[Array, "cells ..."]:
    """Add rows of values to the cells, each with its own mask.

    A product with one-hot rows would carry an infinity of one group into the others: 0 * inf is NaN.
    """
    mask = cell[None] == lax.iota(jnp.int32, len(table))[:, None]
    mask = mask.reshape(*mask.shape, *[1] * (values.ndim - 1))
    return table + jnp.sum(jnp.where(mask, values[None], 0), axis=1, dtype=values.dtype)


def _add_sorted(
    table: Shaped[Array, "cells ..."], cell: Int32[Array, "rows"], values: Shaped[Array, "rows ..."]
) -> Shaped[Array, "cells ..."]:
    """Add rows of values to the cells in the order of the cells; rows without a cell come last and are dropped."""
    cell = jnp.where(cell < 0, len(table), cell)
    cell, order = lax.sort_key_val(cell, lax.iota(jnp.int32, len(cell)))
    return table.at[cell].add(values[order], mode="drop", indices_are_sorted=True)
