"""Rules of cumulative primitives: each device accumulates its rows and combines them with the totals of the others."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import JaxprEqn

from phalanx.placements.mesh_axis import MeshAxis
from phalanx.placements.placement import PARTIAL, PlacedValue, Placement, is_inexact, is_sharded
from phalanx.placements.rules.table import Plan, rule

COMBINATIONS = {
    "cumsum": (0, lambda stacked: jnp.sum(stacked, 0, dtype=stacked.dtype), jnp.add),
    "cumprod": (1, lambda stacked: jnp.prod(stacked, 0, dtype=stacked.dtype), jnp.multiply),
    "cummax": (-np.inf, lambda stacked: jnp.max(stacked, 0), jnp.maximum),
    "cummin": (np.inf, lambda stacked: jnp.min(stacked, 0), jnp.minimum),
    "cumlogsumexp": (-np.inf, lambda stacked: jax.nn.logsumexp(stacked, 0), jnp.logaddexp),
}
"""For each primitive: the number that changes nothing, the combination of many arrays, that of two."""


@rule(*COMBINATIONS)
def cumulative(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Accumulate each device's rows; one number per device is exchanged where the rows are accumulated."""
    name = equation.primitive.name
    dim = placements[0]
    params = equation.params
    if dim == PARTIAL:
        return Plan([PARTIAL], [PARTIAL]) if name == "cumsum" else None
    assert is_sharded(dim)
    if dim != params["axis"]:
        return Plan([dim], [dim])
    neutral, combine_all, combine = COMBINATIONS[name]
    if not np.isfinite(neutral) and not is_inexact(operands[0].dtype):
        return None
    count = operands[0].shape[dim]

    def local(array: Array) -> list[Array]:
        here = equation.primitive.bind(axis.mask(array, dim, count, neutral), **params)
        end = 0 if params["reverse"] else here.shape[dim] - 1
        totals = axis.stack(lax.slice_in_dim(here, end, end + 1, axis=dim))
        device = jnp.arange(axis.size).reshape(-1, *[1] * here.ndim)
        is_before = device > axis.number() if params["reverse"] else device < axis.number()
        before = combine_all(jnp.where(is_before, totals, jnp.asarray(neutral, here.dtype)))
        result = combine(before, here)
        if not (params["reverse"] and axis.is_ragged(count)):
            return [result]
        # In reverse, the last row accumulates itself alone. Padded rows are copies of it, before and after.
        return [jnp.where(axis.row_numbers(array.shape, dim, count) < count, result, array)]

    return Plan([dim], [dim], local=local)
