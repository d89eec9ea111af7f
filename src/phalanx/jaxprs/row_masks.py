"""Sums over rows that leave padded rows out: a traced program evaluated with masks within its reductions.

Where rows do not divide evenly over devices, the last ones hold rows that are none. A term of the log density with one
entry per row is masked when it is added up. Of a term that the program adds up itself, the reductions over rows are
masked: which they are the proof says, which follows where rows lie.
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
from phalanx.jaxprs.sharding_state import Group, Kind, Sharded
from phalanx.jaxprs.walking import Call, Cond, Program, Scan, equations_within, inner_programs, parts_of, pruned
from phalanx.mesh.space import RowSharding

MASKED = ("reduce_sum", "reduce_max", "reduce_min", "dot_general")
"""Primitives that may have padded rows masked."""


class Plan:
    """Masked equations of a program, with the axes of their operands' rows; filled in by the proof."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[Sharded | None, ...]] = {}
        self.is_consistent = True

    def note(self, equation: Any, kinds: Sequence[Kind]) -> None:
        """Note an equation that reduces rows; `kinds` of those operands whose rows it does not reduce are None."""
        found = tuple(kind if isinstance(kind, Sharded) else None for kind in kinds)
        if self.rows.setdefault(id(equation), found) != found:  # one function is called with rows in other places
            self.is_consistent = False

    def inside(self, equation: Any) -> bool:
        """Return whether something that an equation calls is masked."""
        return any(any(self.rows.get(id(inner), ())) for inner in equations_within(equation))


@dataclass(frozen=True)
class Masks:
    """Terms of a program on one device, with padded rows masked in its reductions.

    Attributes:
        program: the trace on the rows of a device.
        plan: what is masked.
        outputs: the terms, with the numbers of their outputs.
        shardings: how rows are sharded, by group.
    """

    program: ClosedJaxpr
    plan: Plan
    outputs: Mapping[tuple[str, str], int]
    shardings: Mapping[Group, RowSharding] = field(default_factory=dict)

    def terms(self, position: Any, arrays: Sequence[Any]) -> dict[tuple[str, str], Array]:
        """Return the terms at a position; to be called on a device of the mesh."""
        inputs = list(map(Marked, jax.tree.leaves((position, list(arrays)))))
        found = _Masked(self).run(pruned(self.program, self.outputs.values()), inputs)
        return {term: value.array for term, value in zip(self.outputs, found, strict=True)}

    @property
    def is_supported(self) -> bool:
        """Return whether every reduction to be masked is where it can be."""
        return self.plan.is_consistent and _is_supported(self.plan, self.program)


class _Masked(Evaluator[Marked]):
    """An evaluation on one device, with padded rows masked."""

    value = Marked

    def __init__(self, masks: Masks):
        self._masks = masks

    def equation(self, equation: Any, inputs: list[Marked]) -> list[Marked]:
        """Follow what something masked is in."""
        if rows := self._masks.plan.rows.get(id(equation)):
            name = equation.primitive.name
            inputs = [v._replace(array=self._masked(name, v.array, r)) for v, r in zip(inputs, rows, strict=True)]
        follow = super().equation if self._masks.plan.inside(equation) else self.primitive
        return follow(equation, inputs)

    def marks(self, equation: Any, inputs: Sequence[Marked]) -> list[Axes]:
        """No value needs a mark."""
        return [NOWHERE] * len(equation.outvars)

    def _masked(self, name: str, value: Any, kind: Sharded | None) -> Any:
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


def _is_supported(plan: Plan, program: Program) -> bool:
    for equation in program.eqns:
        if plan.inside(equation):
            parts = parts_of(equation)
            if not isinstance(parts, Cond | Scan) and not (isinstance(parts, Call) and parts.known):
                return False
            if not all(_is_supported(plan, inner) for inner in inner_programs(equation)):
                return False
    return True
