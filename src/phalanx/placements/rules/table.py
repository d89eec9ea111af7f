"""Table of rules: for each primitive, the placements that it needs and those of its results.

A rule is a pure function of one mesh axis, an equation, and its operands with their placements along that axis. It is
applied axis by axis, if an operand is sharded along the axis or a partial sum. It returns a plan, or None if all
operands must be replicated. Operands are converted to the placements that the plan needs; a replicated operand becomes
a partial sum by zeros on all devices but the first. A matrix product `X @ w` of sharded rows X, (203, 3), and
replicated weights w, (3,), meets `dot_general`:

    placements (0, REPLICATED)  ->  Plan(needs=(0, REPLICATED), results=(0,)): each device multiplies its rows

and its gradient `X.T @ r`, which contracts rows:

    placements (0, 0)  ->  Plan(needs=(0, 0), results=(PARTIAL,), masks=(Mask(1, 0),)): padded rows of r are zeros
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jax import Array
from jax.extend.core import JaxprEqn

from phalanx.placements.mesh_axis import MeshAxis
from phalanx.placements.placement import PlacedValue, Placement, is_sharded


class Mask(NamedTuple):
    """Padded rows of an operand, along a dimension, that are replaced by a number."""

    operand: int
    dim: int
    fill: Any = 0


class Plan(NamedTuple):
    """Placements of operands and results of an equation along one mesh axis.

    Attributes:
        needs: one placement for each operand.
        results: one placement for each result.
        masks: padded rows to fill.
        local: a function of the operands' local arrays that computes the results, in place of the primitive.
    """

    needs: Sequence[Placement]
    results: Sequence[Placement]
    masks: Sequence[Mask] = ()
    local: Callable[..., list[Array]] | None = None


Rule = Callable[[MeshAxis, JaxprEqn, Sequence[PlacedValue], Sequence[Placement]], Plan | None]

RULES: dict[str, Rule] = {}
"""Rules by name of the primitive. A primitive that is not listed gets replicated operands."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Return a decorator that enters a rule for some primitives into the table."""

    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return enter


def largest_sharded(
    operands: Sequence[PlacedValue],
    placements: Sequence[Placement],
    is_usable: Callable[[PlacedValue, int], bool] = lambda operand, dim: True,
) -> int | None:
    """Return the dimension along which the largest operand is sharded, of those with a usable one; else None.

    The smaller operands are moved to it.
    """
    usable = [
        (operand.nbytes, placement)
        for operand, placement in zip(operands, placements, strict=True)
        if is_sharded(placement) and is_usable(operand, placement)
    ]
    return max(usable, key=lambda pair: pair[0])[1] if usable else None


def same_everywhere(equation: JaxprEqn, operand: Placement, result: Placement) -> Plan:
    """Return a plan with one placement for all operands and one for all results."""
    return Plan([operand] * len(equation.invars), [result] * len(equation.outvars))
