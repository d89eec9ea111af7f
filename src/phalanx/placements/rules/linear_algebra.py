"""Rules of linear algebra, sorting and Fourier transforms: rows are independent problems, or right-hand sides."""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.core import JaxprEqn

from phalanx.placements.mesh_axis import MeshAxis
from phalanx.placements.placement import PARTIAL, REPLICATED, PlacedValue, Placement, is_sharded
from phalanx.placements.rules.table import Plan, largest_sharded, rule

CORE_DIMENSIONS = {
    **dict.fromkeys(("cholesky", "lu", "eigh", "eig", "svd", "qr", "geqrf", "schur", "tridiagonal"), (2,)),
    "householder_product": (2, 1),
    "lu_pivots_to_permutation": (1,),
    "triangular_solve": (2, 2),
    "tridiagonal_solve": (1, 1, 1, 2),
}
"""Number of trailing dimensions that make one problem, for each operand; the leading ones number the problems."""


@rule(*CORE_DIMENSIONS)
def problems(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Solve each device's problems; a triangular matrix of all devices solves each device's right-hand sides."""
    name = equation.primitive.name
    counts = CORE_DIMENSIONS[name]
    leading = [len(operand.shape) - core for operand, core in zip(operands, counts, strict=True)]
    for dim in filter(is_sharded, placements):
        if dim < min(leading):
            return Plan([dim] * len(operands), [dim] * len(equation.outvars))
    if name != "triangular_solve":
        return None
    matrix, sides = placements
    if matrix == REPLICATED and sides == PARTIAL:
        return Plan(placements, [PARTIAL])
    dim_of_sides = len(operands[1].shape) - (1 if equation.params["left_side"] else 2)
    if sides == dim_of_sides and not is_sharded(matrix):
        return Plan([REPLICATED, dim_of_sides], [dim_of_sides])
    return None


@rule("sort", "top_k", "fft", "split")
def along_others(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Sort, transform or split each device's rows, unless along the rows themselves."""
    name = equation.primitive.name
    params = equation.params
    last = len(operands[0].shape) - 1
    if name == "fft":
        worked = range(last + 1 - len(params["fft_lengths"]), last + 1)
    else:
        worked = (params["dimension"] if name == "sort" else params.get("axis", last),)
    dim = largest_sharded(operands, placements)
    if dim is not None:
        return None if dim in worked else Plan([dim] * len(operands), [dim] * len(equation.outvars))
    return Plan([PARTIAL], [PARTIAL] * len(equation.outvars)) if name == "split" else None
