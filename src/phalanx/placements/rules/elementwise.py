"""Rules of elementwise primitives: rows stay rows; a partial sum passes what is linear in it."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from phalanx.jaxprs.walking import ELEMENTWISE, aval_of
from phalanx.placements.mesh_axis import MeshAxis
from phalanx.placements.placement import PARTIAL, REPLICATED, PlacedValue, Placement, is_inexact, is_sharded
from phalanx.placements.rules.table import Plan, largest_sharded, rule, same_everywhere

LINEAR = {"neg", "copy", "copy_p", "real", "imag", "conj", "stop_gradient"}
"""Primitives of one operand that are linear."""


@rule(*ELEMENTWISE, "bitcast_convert_type", "threefry2x32", "random_fold_in", "random_seed", "optimization_barrier")
def elementwise(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Compute each device's rows; scalars, and operands that one row broadcasts, are replicated."""
    if equation.primitive.name == "optimization_barrier":
        return Plan(placements, placements)
    shape = aval_of(equation.outvars[0]).shape

    def has_all_rows(operand: PlacedValue, dim: int) -> bool:
        return len(operand.shape) == len(shape) and operand.shape[dim] == shape[dim]

    dim = largest_sharded(operands, placements, has_all_rows)
    if dim is not None:
        needs = [dim if has_all_rows(operand, dim) else REPLICATED for operand in operands]
        return Plan(needs, [dim] * len(equation.outvars))
    if any(map(is_sharded, placements)):
        return None
    return _of_partial_sums(equation, operands, placements)


def _of_partial_sums(
    equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Return the plan of what is linear in partial sums; None for what is not, which needs the sum first."""
    name = equation.primitive.name
    result_type = aval_of(equation.outvars[0]).dtype
    if name in LINEAR:
        return Plan([PARTIAL], [PARTIAL])
    if name == "convert_element_type":
        is_signed = jnp.issubdtype(operands[0].dtype, jnp.signedinteger)
        keeps_sums = is_inexact(result_type) and (is_inexact(operands[0].dtype) or is_signed)
        return Plan([PARTIAL], [PARTIAL]) if keeps_sums else None
    if name in ("add", "sub", "add_any"):
        return same_everywhere(equation, PARTIAL, PARTIAL)
    if name == "mul" and list(placements).count(PARTIAL) == 1:
        return Plan(placements, [PARTIAL])
    if name == "div" and placements[1] == REPLICATED and is_inexact(result_type):  # integer division rounds
        return Plan(placements, [PARTIAL])
    if name == "select_n" and placements[0] == REPLICATED:
        return Plan([REPLICATED] + [PARTIAL] * (len(operands) - 1), [PARTIAL])
    return None


@rule("random_wrap", "random_unwrap", "random_bits", "random_split")
def keys(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Draw bits for each device's own keys; the dimensions of the keys come first in results."""
    name = equation.primitive.name
    dim = placements[0]
    if not is_sharded(dim):
        return None
    count = len(operands[0].shape) - (name == "random_wrap")
    return Plan([dim], [dim]) if dim < count else None
