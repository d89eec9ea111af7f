"""Evaluation of a traced program with padded rows masked in its reductions.

If rows do not divide evenly over devices, the last devices hold padded rows. A term of the log density with one entry
per row is masked when it is summed. For a term that the program sums itself, the reductions over rows are masked, and
numbers such as that of the rows, which are others on a device, are scaled to those of the whole. The proof, which
follows the rows through the program, determines which ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from phalanx.jaxprs.dependence import NOWHERE, Axes
from phalanx.jaxprs.evaluation import Evaluator, Marked
from phalanx.jaxprs.sharding_state import Group, ShardedRows
from phalanx.jaxprs.walking import Call, Cond, Program, Scan, equations_within, inner_programs, parts_of, pruned
from phalanx.mesh.space import RowSharding
from phalanx.mesh.specs import PyTree

MASKED = ("reduce_sum", "reduce_max", "reduce_min", "dot_general")
"""Primitives in which padded rows can be masked."""


Change = ShardedRows | Fraction | None
"""Rows of an operand that are masked, a factor that it is multiplied by, or None if it is unchanged."""


class MaskPlan:
    """Equations of a program that are evaluated with changed operands; filled in by the proof."""

    def __init__(self) -> None:
        self.changes: dict[int, tuple[Change, ...]] = {}
        self.is_consistent = True

    def note(self, equation: JaxprEqn, changes: Sequence[Change]) -> None:
        """Record the change of each operand of an equation."""
        found = tuple(changes)
        if self.changes.setdefault(id(equation), found) != found:  # called twice, with other operands
            self.is_consistent = False

    def inside(self, equation: JaxprEqn) -> bool:
        """Return whether a program that an equation calls has an equation with changed operands."""
        return any(any(self.changes.get(id(inner), ())) for inner in equations_within(equation))


@dataclass(frozen=True)
class Masks:
    """Terms of a program on one device, with padded rows masked in its reductions.

    Attributes:
        program: the trace on the rows of one device.
        plan: the masked equations.
        outputs: the number of the output of each term.
        factors: the factor that makes a replicated term that of the whole.
        shardings: the sharding of the rows of each group.
    """

    program: ClosedJaxpr
    plan: MaskPlan
    outputs: Mapping[tuple[str, str], int]
    factors: Mapping[tuple[str, str], Fraction] = field(default_factory=dict)
    shardings: Mapping[Group, RowSharding] = field(default_factory=dict)

    def terms(self, position: PyTree, arrays: Sequence[Array]) -> dict[tuple[str, str], Array]:
        """Return the terms at a position. Call it inside `shard_map`."""
        inputs = list(map(Marked, jax.tree.leaves((position, list(arrays)))))
        found = _Masked(self).run(pruned(self.program, self.outputs.values()), inputs)
        values = {term: value.array for term, value in zip(self.outputs, found, strict=True)}
        return {term: _scaled(value, self.factors.get(term)) for term, value in values.items()}

    @property
    def is_supported(self) -> bool:
        """True if every reduction to be masked can be masked."""
        return self.plan.is_consistent and _is_supported(self.plan, self.program)


class _Masked(Evaluator[Marked]):
    """An evaluation on one device, with padded rows masked."""

    value = Marked

    def __init__(self, masks: Masks):
        self._masks = masks

    def equation(self, equation: JaxprEqn, inputs: list[Marked]) -> list[Marked]:
        """Change the operands of an equation as planned; follow only programs that contain one to change."""
        if changes := self._masks.plan.changes.get(id(equation)):
            name = equation.primitive.name
            inputs = [v._replace(array=self._changed(name, v.array, c)) for v, c in zip(inputs, changes, strict=True)]
            equation = _with_literals(equation, changes)
        follow = super().equation if self._masks.plan.inside(equation) else self.primitive
        return follow(equation, inputs)

    def marks(self, equation: JaxprEqn, inputs: Sequence[Marked]) -> list[Axes]:
        """Return empty marks, which masking does not use."""
        return [NOWHERE] * len(equation.outvars)

    def _changed(self, name: str, value: Array, kind: Change) -> Array:
        if not isinstance(kind, ShardedRows):
            return _scaled(value, kind)
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


def _with_literals(equation: JaxprEqn, changes: Sequence[Change]) -> JaxprEqn:
    """Return an equation with its literals scaled as planned: its evaluation reads them from the equation itself."""
    atoms = [
        Literal(np.asarray(atom.val * float(factor), np.result_type(atom.val))[()], atom.aval)
        if isinstance(factor, Fraction) and isinstance(atom, Literal)
        else atom
        for atom, factor in zip(equation.invars, changes, strict=True)
    ]
    return equation.replace(invars=atoms)


def _scaled(value: Array, factor: Fraction | None) -> Array:
    return value if factor is None or factor == 1 else value * jnp.asarray(float(factor), jnp.result_type(value))


def _is_supported(plan: MaskPlan, program: Program) -> bool:
    for equation in program.eqns:
        if plan.inside(equation):
            parts = parts_of(equation)
            if not isinstance(parts, Cond | Scan) and not (isinstance(parts, Call) and parts.known):
                return False
            if not all(_is_supported(plan, inner) for inner in inner_programs(equation)):
                return False
    return True
