"""Rules of reductions: sums over rows become partial sums; others exchange one number per device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import JaxprEqn

from phalanx.placements.mesh_axis import MeshAxis
from phalanx.placements.placement import PARTIAL, REPLICATED, PlacedValue, Placement, is_inexact, is_sharded
from phalanx.placements.row_functions import RowFunction
from phalanx.placements.rules.table import Mask, Plan, rule


@rule(
    *("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor"),
    *("argmax", "argmin"),
)
def reduction(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Reduce each device's rows; where rows themselves are reduced, combine the devices' results."""
    name = equation.primitive.name
    axes = equation.params["axes"]
    dim = placements[0]
    if dim == PARTIAL:
        return Plan([PARTIAL], [PARTIAL]) if name == "reduce_sum" else None
    assert is_sharded(dim)
    if dim not in axes:
        return Plan([dim], [dim - sum(reduced_dim < dim for reduced_dim in axes)])
    if name == "reduce_sum":
        return Plan([dim], [PARTIAL], [Mask(0, dim)])
    return _exchange(axis, equation, operands[0], dim)


def _exchange(axis: MeshAxis, equation: JaxprEqn, operand: PlacedValue, dim: int) -> Plan | None:
    """Return the plan of a reduction whose results of all devices are stacked and reduced again."""
    name = equation.primitive.name
    dtype = operand.dtype
    is_bool = jnp.issubdtype(dtype, jnp.bool_)
    is_ordered = not is_bool and not jnp.issubdtype(dtype, jnp.complexfloating)
    if name in ("reduce_and", "reduce_or") and is_bool:
        fill = name == "reduce_and"
        combine = jnp.all if name == "reduce_and" else jnp.any
    elif name == "reduce_prod":
        fill = 1
        combine = jnp.prod
    elif name in ("reduce_max", "reduce_min") and is_ordered:  # jnp.max keeps NaN; lax.pmax drops it on CPUs
        fill = _lowest(dtype, name == "reduce_max")
        combine = jnp.max if name == "reduce_max" else jnp.min
    elif name in ("argmax", "argmin") and is_ordered and len(equation.params["axes"]) == 1:
        fill = _lowest(dtype, name == "argmax")
        return Plan([dim], [REPLICATED], [Mask(0, dim, fill)], lambda x: [_place_of_extreme(axis, equation, dim, x)])
    else:
        return None

    def local(array: Array) -> list[Array]:
        here = equation.primitive.bind(array, **equation.params)
        return [combine(axis.stack(here), 0)]

    return Plan([dim], [REPLICATED], [Mask(0, dim, fill)], local)


def _lowest(dtype: Any, is_maximum: bool) -> Any:
    """Return the number of a type that no maximum (or minimum) prefers."""
    if is_inexact(dtype):
        return -np.inf if is_maximum else np.inf
    limits = jnp.iinfo(dtype)
    return limits.min if is_maximum else limits.max


def _place_of_extreme(axis: MeshAxis, equation: JaxprEqn, dim: int, array: Array) -> Array:
    """Return the number of the first row with the extreme value among the rows of all devices."""
    find = jnp.argmax if equation.primitive.name == "argmax" else jnp.argmin
    local = find(array, dim)
    value = jnp.squeeze(jnp.take_along_axis(array, jnp.expand_dims(local, dim), dim), dim)
    first_row = axis.number() * array.shape[dim]
    values = axis.stack(value)
    rows = axis.stack(local + first_row)
    device = find(values, 0)[None]
    return jnp.squeeze(jnp.take_along_axis(rows, device, 0), 0).astype(equation.params["index_dtype"])


@rule("reduce_window_max", "reduce_window_min", "reduce_window_sum", "select_and_scatter_add", "select_and_gather_add")
def window(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Reduce windows of each device's rows if no window joins rows, as in pooling over pixels."""
    params = equation.params
    dim = next(filter(is_sharded, placements), None)
    if dim is None:
        return None
    is_single = params["window_dimensions"][dim] == 1 and params["window_strides"][dim] == 1
    if not is_single or tuple(params["padding"][dim]) != (0, 0):
        return None
    return Plan([dim] * len(operands), [dim] * len(equation.outvars))


def function_plan(function: RowFunction, equation: JaxprEqn, placements: Sequence[Placement]) -> Plan:
    """Return the plan of a function of rows along one mesh axis."""
    # `batch` is empty where calls are not batched, and no placement is None
    are_along_batch = [placement == dim for placement, dim in zip(placements, function.batch, strict=False)]
    if any(are_along_batch):
        return Plan([REPLICATED if dim is None else dim for dim in function.batch], [0] * len(equation.outvars))
    others = [REPLICATED] * (len(placements) - function.rows)
    results = len(equation.outvars)
    of_rows = placements[: function.rows]
    if function.adds_entries and any(at != REPLICATED for at in of_rows):
        needs = [PARTIAL if at == REPLICATED else at for at in of_rows]
        masks = [Mask(number, at) for number, at in enumerate(of_rows) if is_sharded(at)]
        return Plan([*needs, *others], [PARTIAL] * results, masks)
    if not function.adds_entries and 0 in of_rows:
        return Plan([*[0] * function.rows, *others], [*[PARTIAL] * function.sums, *[0] * (results - function.sums)])
    return Plan([REPLICATED] * len(placements), [REPLICATED] * results)
