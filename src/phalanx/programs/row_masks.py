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
from jax import Array, lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from phalanx.mesh.dependence import inner_programs, scan_sizes
from phalanx.mesh.space import RowSharding
from phalanx.programs.equations import CALLS, CUSTOM, evaluate, needed_equations
from phalanx.programs.row_values import Group, Kind, Sharded

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
        return any(
            any(self.rows.get(id(inner), ())) or self.inside(inner)
            for program in inner_programs(equation)
            for inner in program.eqns
        )


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
        jaxpr = self.program.jaxpr
        found = self._run(
            jaxpr, self.program.consts, jax.tree.leaves((position, list(arrays))), list(self.outputs.values())
        )
        return dict(zip(self.outputs, found, strict=True))

    def _run(
        self, jaxpr: Jaxpr, constants: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[int] | None = None
    ) -> list[Any]:
        values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *inputs), strict=True))
        wanted = [jaxpr.outvars[i] for i in (range(len(jaxpr.outvars)) if outputs is None else outputs)]

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else values[atom]

        for equation in needed_equations(jaxpr, wanted):
            made = self._equation(jaxpr, equation, [read(a) for a in equation.invars])
            values.update(zip(equation.outvars, made, strict=True))
        return [read(a) for a in wanted]

    def _inside(self, program: ClosedJaxpr | Jaxpr, inputs: Sequence[Any]) -> list[Any]:
        closed = isinstance(program, ClosedJaxpr)
        return self._run(program.jaxpr if closed else program, program.consts if closed else (), inputs)

    def _equation(self, host: Jaxpr, equation: Any, given: list[Any]) -> list[Any]:
        name, params = equation.primitive.name, equation.params
        if rows := self.plan.rows.get(id(equation)):
            given = [self._masked(name, value, kind) for value, kind in zip(given, rows, strict=True)]
        if not self.plan.inside(equation):
            return evaluate(host, equation, given)
        if name in (*CALLS, *CUSTOM):
            return self._inside(inner_programs(equation)[0], given)
        if name == "cond":
            run = [lambda *args, b=branch: self._inside(b, args) for branch in params["branches"]]
            return list(lax.switch(given[0], run, *given[1:]))
        if name == "scan":
            first, second = scan_sizes(params)

            def turn(carry: Any, xs: Any) -> tuple[Any, Any]:
                out = self._inside(params["jaxpr"], [*given[:first], *carry, *xs])
                return tuple(out[:second]), tuple(out[second:])

            carry, xs = tuple(given[first : first + second]), tuple(given[first + second :])
            carry, ys = lax.scan(turn, carry, xs, length=params["length"], reverse=params["reverse"])
            return [*carry, *ys]
        raise NotImplementedError(f"masks within {name}")  # `is_supported` says so before

    def _masked(self, name: str, value: Any, kind: Sharded | None) -> Any:
        if kind is None:
            return value
        real = self.shardings[kind.group].real_rows()
        if real is None:
            return value
        rows = jnp.arange(value.shape[kind.dim]) // kind.per % kind.group.local_rows
        real = real[rows].reshape([-1 if d == kind.dim else 1 for d in range(value.ndim)])
        fill = {"reduce_max": -jnp.inf, "reduce_min": jnp.inf}.get(name, 0.0)
        if fill and not jnp.issubdtype(value.dtype, jnp.floating):
            info = jnp.iinfo(value.dtype)
            fill = info.min if fill < 0 else info.max
        return jnp.where(real, value, jnp.asarray(fill, value.dtype))

    @property
    def is_supported(self) -> bool:
        """Return whether every reduction to be masked is where it can be."""
        return self.plan.is_consistent and _is_supported(self.plan, self.program.jaxpr)


def _is_supported(plan: Plan, jaxpr: Jaxpr) -> bool:
    for equation in jaxpr.eqns:
        if plan.inside(equation):
            if equation.primitive.name not in (*CALLS, *CUSTOM, "cond", "scan"):
                return False
            opened = (p.jaxpr if isinstance(p, ClosedJaxpr) else p for p in inner_programs(equation))
            if not all(_is_supported(plan, inner) for inner in opened):
                return False
    return True
