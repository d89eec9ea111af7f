"""Evaluation of a traced program with its branches forced, which a run may reach in rare regions only.

Where a choice depends on the position, whatever is not chosen there is not computed, or multiplied by zero. Here the
choice is an argument: an alternative by its number, or a blend of all of them, which shows what any of them does at any
depth. Choices that depend on the data alone are left as they are: all data are in hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from phalanx.mesh.dependence import Axes, equation_axes, inner_programs, scan_sizes, varying_axes
from phalanx.programs.equations import CALLS, CUSTOM, evaluate, needed_equations

MOST_SITES = 64
"""Choices of a program that are made one by one; those beyond are made as the last one is."""

NATURAL, BLEND = -1, -2
"""Codes of a choice: as the position says; and all alternatives at once. Others are numbers of alternatives."""

ON_POSITION: Axes = frozenset({"position"})
"""The mark of values that depend on the position."""

FIRST_WEIGHT = 1.37
"""Weights of blended alternatives are this, one more, two more...: no two are equal."""

TRIPS = (1, 3)
"""Trips that a loop is forced to make."""

_STEPS = ("floor", "ceil", "round")
_ROUGH = ("abs", "sign", *_STEPS)
"""Operations that never return the numbers between their alternatives, of which a logarithm may not exist."""


class Branches:
    """Evaluates a traced program with forced choices.

    Attributes:
        program: the program.
        depends: by input, whether it is part of the position.
        outputs: numbers of the outputs that are evaluated.
        sites: the number of alternatives of each choice, known once the program was evaluated.
    """

    def __init__(self, program: ClosedJaxpr, depends: Sequence[bool], outputs: Sequence[int]):
        self.program, self.outputs = program, tuple(outputs)
        self._inputs = [ON_POSITION if flag else frozenset() for flag in depends]
        self._numbers: dict[int, int] = {}
        self.sites: list[int] = []

    def __call__(self, inputs: Sequence[Any], codes: Array) -> list[Array]:
        """Return the outputs, given a code for each choice, `(MOST_SITES,)`."""
        walk = _Walk(self, codes)
        return walk.run(self.program.jaxpr, self.program.consts, inputs, self._inputs, self.outputs)

    def number(self, equation: Any, alternatives: int) -> int:
        """Return the number of a choice."""
        if id(equation) not in self._numbers:
            self._numbers[id(equation)] = len(self.sites)
            self.sites.append(alternatives)
        return min(self._numbers[id(equation)], MOST_SITES - 1)

    def plans(self) -> list[np.ndarray]:
        """Return codes to evaluate the program with: all blended, all by one number, and each alternative by itself."""
        if not self.sites:
            return []
        everywhere = [np.full(MOST_SITES, code) for code in (BLEND, *range(max(self.sites)))]
        alone = []
        for number, alternatives in enumerate(self.sites[:MOST_SITES]):
            for alternative in range(alternatives):
                codes = np.full(MOST_SITES, NATURAL)
                codes[number] = alternative
                alone.append(codes)
        return [codes.astype(np.int32) for codes in (*everywhere, *alone)]


class _Walk:
    """One evaluation, equation by equation, with what depends on the position."""

    def __init__(self, branches: Branches, codes: Array):
        self.branches, self.codes = branches, codes

    def run(
        self, jaxpr: Jaxpr, constants: Sequence[Any], inputs: Sequence[Any], marks: Sequence[Axes],
        outputs: Sequence[int] | None = None,
    ) -> list[Any]:  # fmt: skip
        """Return the outputs, or some of them."""
        values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *inputs), strict=True))
        known = dict(zip(jaxpr.invars, marks, strict=True))
        wanted = [jaxpr.outvars[i] for i in (range(len(jaxpr.outvars)) if outputs is None else outputs)]

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else values[atom]

        def mark(atom: Any) -> Axes:
            return frozenset() if isinstance(atom, Literal) else known.get(atom, frozenset())

        equations = needed_equations(jaxpr, wanted)
        makers = {id(v): e for e in equations for v in e.outvars}
        for equation in equations:
            given, on = [read(a) for a in equation.invars], [mark(a) for a in equation.invars]
            made = equation_axes(equation, on)
            if any(on) and not _counts_from_the_end(equation, makers):
                found = self._equation(jaxpr, equation, given, on, made)
            else:
                found = evaluate(jaxpr, equation, given)
            values.update(zip(equation.outvars, found, strict=True))
            known.update(zip(equation.outvars, made, strict=True))
        return [read(a) for a in wanted]

    def _inside(self, program: ClosedJaxpr | Jaxpr, inputs: Sequence[Any], marks: Sequence[Axes]) -> list[Any]:
        if isinstance(program, ClosedJaxpr):
            return self.run(program.jaxpr, program.consts, inputs, marks)
        return self.run(program, (), inputs, marks)

    def _equation(self, host: Jaxpr, equation: Any, given: list[Any], on: list[Axes], made: list[Axes]) -> list[Any]:
        name, params = equation.primitive.name, equation.params
        if name in CALLS or (name in CUSTOM and _has_choice(equation)):
            return self._inside(inner_programs(equation)[0], given, on)
        if name == "cond":
            return self._cond(equation, given, on)
        if name == "scan":
            return self._scan(params, given, on, made)
        if name == "while":
            return self._while(equation, given, on, made)
        found = evaluate(host, equation, given)
        if len(found) != 1 or (alternatives := _alternatives(equation, given, on, found[0])) is None:
            return found
        return [self._chosen(equation, found[0], alternatives, blend=name not in _ROUGH)]

    def _chosen(self, equation: Any, natural: Any, alternatives: Sequence[Any], blend: bool = True) -> Any:
        code = self.codes[self.branches.number(equation, len(alternatives))]
        cases = [jnp.broadcast_to(case, natural.shape) for case in alternatives]
        # where there are fewer alternatives than the code says, the last
        which = jnp.where(code == BLEND, len(cases) + 1, jnp.minimum(code, len(cases) - 1) + 1)
        return lax.select_n(which.astype(jnp.int32), natural, *cases, _blended(natural, cases) if blend else natural)

    def _cond(self, equation: Any, given: list[Any], on: list[Axes]) -> list[Any]:
        which, *operands = given
        branches = equation.params["branches"]
        if not on[0]:
            run = [lambda *args, b=b: self._inside(b, args, on[1:]) for b in branches]
            return list(lax.switch(which, run, *operands))
        outputs = [self._inside(branch, operands, on[1:]) for branch in branches]
        index = jnp.clip(jnp.asarray(which, jnp.int32), 0, len(branches) - 1)
        return [self._chosen(equation, lax.select_n(index, *cases), cases) for cases in zip(*outputs, strict=True)]

    def _scan(self, params: Any, given: list[Any], on: list[Axes], made: list[Axes]) -> list[Any]:
        first, second = scan_sizes(params)
        marks = [*on[:first], *made[:second], *on[first + second :]]

        def turn(carry: Any, xs: Any) -> tuple[Any, Any]:
            out = self._inside(params["jaxpr"], [*given[:first], *carry, *xs], marks)
            return tuple(out[:second]), tuple(out[second:])

        carry, rows = tuple(given[first : first + second]), tuple(given[first + second :])
        carry, outputs = lax.scan(turn, carry, rows, length=params["length"], reverse=params["reverse"])
        return [*carry, *outputs]

    def _while(self, equation: Any, given: list[Any], on: list[Axes], made: list[Axes]) -> list[Any]:
        params = equation.params
        first, second = params["cond_nconsts"], params["body_nconsts"]
        of_test, of_body, carry = given[:first], given[first : first + second], tuple(given[first + second :])

        def test(carry: Any) -> Any:
            return self._inside(params["cond_jaxpr"], [*of_test, *carry], [*on[:first], *made])[0]

        def turn(carry: Any) -> Any:
            return tuple(self._inside(params["body_jaxpr"], [*of_body, *carry], [*on[first : first + second], *made]))

        natural = lax.while_loop(test, turn, carry)
        if not varying_axes(params["cond_jaxpr"], [*on[:first], *made])[0]:
            return list(natural)
        forced = [lax.fori_loop(0, trips, lambda _, c: turn(c), carry) for trips in TRIPS]
        return [self._chosen(equation, n, cases) for n, *cases in zip(natural, *forced, strict=True)]


def _alternatives(equation: Any, given: list[Any], on: list[Axes], natural: Any) -> list[Any] | None:
    """Return what a primitive might have given where the position lies elsewhere; None where it makes no choice."""
    name = equation.primitive.name
    if name == "select_n":
        return given[1:] if on[0] else None
    if name in ("max", "min") and jnp.issubdtype(natural.dtype, jnp.inexact):
        return given
    if name == "clamp":
        return given
    if name == "sign":
        return [-jnp.ones_like(natural), jnp.ones_like(natural)]
    if name == "abs":
        return [given[0], -given[0]] if jnp.issubdtype(natural.dtype, jnp.floating) else None
    if name in _STEPS:
        return [natural - 1, natural + 1]
    if name == "convert_element_type":
        before = jnp.result_type(given[0])
        if before == jnp.bool_:
            return [jnp.zeros_like(natural), jnp.ones_like(natural)]
        if jnp.issubdtype(before, jnp.floating) and jnp.issubdtype(natural.dtype, jnp.integer):
            return [natural - 1, natural + 1]
    return None


def _blended(natural: Any, cases: Sequence[Any]) -> Any:
    """Return a weighted mean, where all cases are finite; of integers and flags, another case."""
    if not jnp.issubdtype(natural.dtype, jnp.inexact):
        other = cases[-1]
        return other if natural.dtype != jnp.bool_ else ~natural
    finite = jnp.stack([jnp.isfinite(case) for case in cases]).all(0)
    weights = FIRST_WEIGHT + np.arange(len(cases))
    weighed = [float(w) * jnp.where(finite, case, 0) for w, case in zip(weights / weights.sum(), cases, strict=True)]
    return jnp.where(finite, sum(weighed), natural).astype(natural.dtype)


def _counts_from_the_end(equation: Any, makers: dict[int, Any]) -> bool:
    """Return whether it makes of a negative index one from the end, which is no choice of the model's."""
    if equation.primitive.name != "select_n" or len(equation.invars) != 3:
        return False
    test = makers.get(id(equation.invars[0]))
    return (
        test is not None
        and test.primitive.name == "lt"
        and test.invars[0] is equation.invars[1]
        and jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.integer)
    )


def _has_choice(equation: Any) -> bool:
    """Return whether a function with derivatives of its own chooses anything."""
    names = ("select_n", "max", "min", "clamp", "cond", "while")
    return any(
        inner.primitive.name in names or _has_choice(inner)
        for program in inner_programs(equation)[:1]
        for inner in program.eqns
    )
