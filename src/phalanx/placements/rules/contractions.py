"""Rules of products: matrix products and convolutions. Rows that are contracted make partial sums."""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.core import JaxprEqn

from phalanx.placements.mesh_axis import MeshAxis
from phalanx.placements.placement import PARTIAL, REPLICATED, PlacedValue, Placement, is_sharded
from phalanx.placements.rules.table import Mask, Plan, rule


@rule("dot_general")
def matrix_product(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Multiply each device's rows of the larger sharded operand with what matches them of the other."""
    (contracted_left, contracted_right), (batch_left, batch_right) = equation.params["dimension_numbers"]
    left_operand, right = operands
    at_left, at_right = placements
    if not is_sharded(at_left) and not is_sharded(at_right):  # a product is linear in each of its factors
        is_linear = list(placements).count(PARTIAL) == 1
        return Plan(placements if is_linear else [REPLICATED, PARTIAL], [PARTIAL])
    free_left = [dim for dim in range(len(left_operand.shape)) if dim not in (*contracted_left, *batch_left)]
    free_right = [dim for dim in range(len(right.shape)) if dim not in (*contracted_right, *batch_right)]
    if is_sharded(at_left) and (not is_sharded(at_right) or left_operand.nbytes >= right.nbytes):
        if at_left in batch_left:
            number = batch_left.index(at_left)
            return Plan([at_left, batch_right[number]], [number])
        if at_left in contracted_left:
            return _contraction(operands, at_left, contracted_right[contracted_left.index(at_left)])
        return Plan([at_left, REPLICATED], [len(batch_left) + free_left.index(at_left)])
    assert is_sharded(at_right)
    if at_right in batch_right:
        number = batch_right.index(at_right)
        return Plan([batch_left[number], at_right], [number])
    if at_right in contracted_right:
        return _contraction(operands, contracted_left[contracted_right.index(at_right)], at_right)
    return Plan([REPLICATED, at_right], [len(batch_left) + len(free_left) + free_right.index(at_right)])


def _contraction(operands: Sequence[PlacedValue], dim_left: int, dim_right: int) -> Plan:
    """Return the plan of a product over rows, with a mask on the smaller operand: the other's padding is finite."""
    left_operand, right = operands
    mask = Mask(0, dim_left) if left_operand.nbytes <= right.nbytes else Mask(1, dim_right)
    return Plan([dim_left, dim_right], [PARTIAL], [mask])


@rule("conv_general_dilated")
def convolution(
    axis: MeshAxis, equation: JaxprEqn, operands: Sequence[PlacedValue], placements: Sequence[Placement]
) -> Plan | None:
    """Convolve each device's images; in the gradient of the kernel images are contracted."""
    numbers = equation.params["dimension_numbers"]
    params = equation.params
    batch = numbers.lhs_spec[0]
    features = numbers.lhs_spec[1]
    features_of_kernel = numbers.rhs_spec[1]
    if params["batch_group_count"] != 1:
        return None
    if placements[0] == batch:
        return Plan([batch, REPLICATED], [numbers.out_spec[0]])
    if params["feature_group_count"] == 1 and (placements[0] == features or placements[1] == features_of_kernel):
        mask = Mask(0, features) if operands[0].nbytes <= operands[1].nbytes else Mask(1, features_of_kernel)
        return Plan([features, features_of_kernel], [PARTIAL], [mask])
    return None
