"""Evaluation of a traced program with padded rows masked in its reductions.

If rows do not divide evenly over devices, the last devices hold padded rows. A term of the log density with one entry
per row is masked when it is summed. For a term that the program sums itself, the reductions over rows are masked; the
proof, which follows the rows through the program, determines which ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr

from phalanx.jaxprs.dependence import NOWHERE, Axes
from phalanx.jaxprs.evaluation import Evaluator, Marked
from phalanx.jaxprs.sharding_state import Group, Kind, ShardedRows
from phalanx.jaxprs.walking import Call, Cond, Program, Scan, equations_within, inner_programs, parts_of, pruned
from phalanx.mesh.space import RowSharding

MASKED = ("reduce_sum", "reduce_max", "reduce_min", "dot_general")
"""Primitives in which padded rows can be masked."""


class MaskPlan:
    """Masked equations of a program, with the axes of their operands' rows; filled in by the proof."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[ShardedRows | None, ...]] = {}
        self.is_consistent = True

    def note(self, equation: Any, kinds: Sequence[Kind]) -> None:
        """Record an equation that reduces rows; `kinds` is None for operands whose rows it does not reduce."""
        found = tuple(kind if isinstance(kind, ShardedRows) else None for kind in kinds)
        if self.rows.setdefault(id(equation), found) != found:  # called twice, with other row axes
            self.is_consistent = False

    def inside(self, equation: Any) -> bool:
        """Return whether a program that an equation calls has a masked equation."""
        return any(any(self.rows.get(id(inner), ())) for inner in equations_within(equation))


@dataclass(frozen=True)
class Masks:
    """Terms of a program on one device, with padded rows masked in its reductions.

    Attributes:
        program: the trace on the rows of one device.
        plan: the masked equations.
        outputs: the number of the output of each term.
        shardings: the sharding of the rows of each group.
    """

    program: ClosedJaxpr
    plan: MaskPlan
    outputs: Mapping[tuple[str, str], int]
    shardings: Mapping[Group, RowSharding] = field(default_factory=dict)

    def terms(self, position: Any, arrays: Sequence[Any]) -> dict[tuple[str, str], Array]:
        """Return the terms at a position. Call it inside `shard_map`."""
        inputs = list(map(Marked, jax.tree.leaves((position, list(arrays)))))
        found = _Masked(self).run(pruned(self.program, self.outputs.values()), inputs)
        return {term: value.array for term, value in zip(self.outputs, found, strict=True)}

    @property
    def is_supported(self) -> bool:
        """True if every reduction to be masked can be masked."""
        return self.plan.is_consistent and _is_supported(self.plan, self.program)


class _Masked(Evaluator[Marked]):
    """An evaluation on one device, with padded rows masked."""

    value = Marked

    def __init__(self, masks: Masks):
        self._masks = masks

    def equation(self, equation: Any, inputs: list[Marked]) -> list[Marked]:
        """Mask the operands of a reduction; follow only programs that contain one."""
        if rows := self._masks.plan.rows.get(id(equation)):
            name = equation.primitive.name
            inputs = [v._replace(array=self._masked(name, v.array, r)) for v, r in zip(inputs, rows, strict=True)]
        follow = super().equation if self._masks.plan.inside(equation) else self.primitive
        return follow(equation, inputs)

    def marks(self, equation: Any, inputs: Sequence[Marked]) -> list[Axes]:
        """Return empty marks, which masking does not use."""
        return [NOWHERE] * len(equation.outvars)

    def _masked(self, name: str, value: Any, kind: ShardedRows | None) -> Any:
        if kind is None:
            return value
        real = self._masks.shardings[kind.group].real_rows()
        if real is None:
            return value
        rows = jnp.arange(value.shape[kind.dim]) // kind.per % kind.group.local_rows
        real = real[rows].reshape([-1 if d == kind.dim else 1 for d in range(value.ndim)])
        fill = {"reduce_max": -jnp.inf, "reduce_min": jnp.inf}.get(name, 0.0)
        if fill and not jnp.issubdtype(value.dtype, jnp.floating):
            info = jnp.iinfo(value.dtype)
            fill = info.min if fill < 0 else info.max
        return jnp.where(real, value, jnp.asarray(fill, value.dtype))


def _is_supported(plan: MaskPlan, program: Program) -> bool:
    for equation in program.eqns:
        if plan.inside(equation):
            parts = parts_of(equation)
            if not isinstance(parts, Cond | Scan) and not (isinstance(parts, Call) and parts.known):
                return False
            if not all(_is_supported(plan, inner) for inner in inner_programs(equation)):
                return False
    return True
