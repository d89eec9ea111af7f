"""Evaluation of a traced program with forced branches, some of which a run may reach in rare regions only.

If a choice depends on the position, the alternatives that are not chosen do not affect the result. Here the choice is
an argument: the number of an alternative, or a blend of all alternatives, which the result depends on at any depth.
Choices that depend on the data or on the index of a device alone are not forced: all data and devices are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from phalanx.jaxprs.dependence import Axes, Dependence
from phalanx.jaxprs.evaluation import Evaluator, Marked
from phalanx.jaxprs.walking import CUSTOM, Call, While, all_equations, aval_of, pruned

MOST_SITES = 64
"""Choices of a program that are forced one by one; further choices share the code of the last one."""

NATURAL, BLEND = -1, -2
"""Codes of a choice: as the position decides, and a blend of all alternatives. Other codes number an alternative."""

ON_POSITION: Axes = frozenset({"position"})
"""The mark of values that depend on the position."""

FIRST_WEIGHT = 1.37
"""Weight of the first of blended alternatives; each further weight is larger by one, so that all differ."""

TRIPS = (1, 3)
"""Numbers of trips that a loop is forced to make."""

_STEPS = ("floor", "ceil", "round")
_ROUGH = ("abs", "sign", *_STEPS)
"""Operations that are not blended: numbers between their alternatives may be outside of the domain of what follows."""

_CHOICES = ("select_n", "max", "min", "clamp", "cond", "while")
"""Operations that make a choice; a function with derivatives of its own is followed only if it has one of these."""


class Branches:
    """A traced program whose choices can be forced.

    Attributes:
        sites: the number of alternatives of each choice; filled in by an evaluation.
    """

    def __init__(self, program: ClosedJaxpr, depends: Sequence[bool], outputs: Sequence[int]):
        """Select some outputs of a program; `depends` is True for each input that is part of the position."""
        self._program = pruned(program, outputs)
        self._marks = [ON_POSITION if flag else frozenset() for flag in depends]
        self._numbers: dict[int, int] = {}
        self.sites: list[int] = []

    def __call__(self, inputs: Sequence[Array], codes: Array) -> list[Array]:
        """Return the outputs, given a code for each choice, `(MOST_SITES,)`."""
        found = _ForcedWalk(self, codes).run(self._program, list(map(Marked, inputs, self._marks)))
        return [value.array for value in found]

    def number(self, equation: JaxprEqn, alternatives: int) -> int:
        """Return the number of a choice."""
        if id(equation) not in self._numbers:
            self._numbers[id(equation)] = len(self.sites)
            self.sites.append(alternatives)
        return min(self._numbers[id(equation)], MOST_SITES - 1)

    def plans(self) -> list[np.ndarray]:
        """Return the codes of all evaluations: all choices blended, all by one number, and each alternative alone."""
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


class _OnPosition(Dependence):
    """Dependence on the position; the index of a device is no part of it, unlike in the analysis of mesh axes."""

    def primitive(self, equation: JaxprEqn, inputs: list[Axes]) -> list[Axes]:
        """Return the mark of the position if any operand depends on it."""
        return [mark & ON_POSITION for mark in super().primitive(equation, inputs)]


class _ForcedWalk(Evaluator[Marked]):
    """One evaluation, in which values that depend on the position are marked."""

    value = Marked
    dependence = _OnPosition()

    def __init__(self, branches: Branches, codes: Array):
        self._branches, self._codes = branches, codes
        self._makers: dict[Any, Any] = {}

    def equation(self, equation: JaxprEqn, inputs: list[Marked]) -> list[Marked]:
        """Apply an equation, unchanged if it does not depend on the position."""
        self._makers.update(dict.fromkeys(equation.outvars, equation))
        if not any(value.mark for value in inputs) or self._counts_from_the_end(equation):
            return super().primitive(equation, inputs)
        return super().equation(equation, inputs)

    def primitive(self, equation: JaxprEqn, inputs: list[Marked]) -> list[Marked]:
        """Apply a primitive, forced if it makes a choice."""
        found = super().primitive(equation, inputs)
        if len(found) != 1 or (alternatives := _alternatives(equation, inputs, found[0].array)) is None:
            return found
        blend = equation.primitive.name not in _ROUGH
        return [found[0]._replace(array=self._chosen(equation, found[0].array, alternatives, blend))]

    def call(self, equation: JaxprEqn, parts: Call, inputs: list[Marked]) -> list[Marked]:
        """Follow a call; a function with derivatives of its own only if it makes a choice."""
        chooses = any(inner.primitive.name in _CHOICES for inner in all_equations(parts.program))
        if equation.primitive.name in CUSTOM and not chooses:
            return super().primitive(equation, inputs)
        return super().call(equation, parts, inputs)

    def choose(self, equation: JaxprEqn, which: Marked, cases: Sequence[Marked]) -> Marked:
        """Return a result of a choice between branches, forced."""
        index = jnp.clip(jnp.asarray(which.array, jnp.int32), 0, len(cases) - 1)
        arrays = [case.array for case in cases]
        mark = which.mark.union(*(case.mark for case in cases))
        return Marked(self._chosen(equation, lax.select_n(index, *arrays), arrays), mark)

    def while_loop(self, equation: JaxprEqn, parts: While, inputs: list[Marked]) -> list[Marked]:
        """Evaluate a loop, with the number of turns forced if the test depends on the position."""
        of_test, of_body, carry = parts.split(inputs)
        marks, begin = self.marks(equation, inputs), tuple(value.array for value in carry)

        def test(now: tuple[Array, ...]) -> Array:
            return self.run(parts.test, [*of_test, *map(Marked, now, marks)])[0].array

        def turn(now: tuple[Array, ...]) -> tuple[Array, ...]:
            return tuple(value.array for value in self.run(parts.body, [*of_body, *map(Marked, now, marks)]))

        natural = lax.while_loop(test, turn, begin)
        if self.dependence.run(parts.test, [*(value.mark for value in of_test), *marks])[0]:
            forced = [lax.fori_loop(0, trips, lambda _, now: turn(now), begin) for trips in TRIPS]
            natural = [self._chosen(equation, n, cases) for n, *cases in zip(natural, *forced, strict=True)]
        return list(map(Marked, natural, marks))

    def _chosen(self, equation: JaxprEqn, natural: Array, alternatives: Sequence[Array], blend: bool = True) -> Array:
        code = self._codes[self._branches.number(equation, len(alternatives))]
        cases = [jnp.broadcast_to(case, natural.shape) for case in alternatives]
        # a code beyond the last alternative selects the last
        which = jnp.where(code == BLEND, len(cases) + 1, jnp.minimum(code, len(cases) - 1) + 1)
        return lax.select_n(which.astype(jnp.int32), natural, *cases, _blended(natural, cases) if blend else natural)

    def _counts_from_the_end(self, equation: JaxprEqn) -> bool:
        """Return whether an equation converts a negative index to one from the end, which is not a model's choice."""
        if (
            equation.primitive.name != "select_n"
            or len(equation.invars) != 3
            or isinstance(equation.invars[0], Literal)
        ):
            return False
        test = self._makers.get(equation.invars[0])
        return (
            test is not None
            and test.primitive.name == "lt"
            and test.invars[0] is equation.invars[1]
            and jnp.issubdtype(aval_of(equation.outvars[0]).dtype, jnp.integer)
        )


def _alternatives(equation: JaxprEqn, inputs: Sequence[Marked], natural: Array) -> list[Array] | None:
    """Return the results that a primitive may have at other positions; None if it makes no choice."""
    name, given = equation.primitive.name, [value.array for value in inputs]
    if name == "select_n":
        return given[1:] if inputs[0].mark else None
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


def _blended(natural: Array, cases: Sequence[Array]) -> Array:
    """Return a weighted mean of the cases if all are finite; for integers and flags, another case."""
    if not jnp.issubdtype(natural.dtype, jnp.inexact):
        other = cases[-1]
        return other if natural.dtype != jnp.bool_ else ~natural
    finite = jnp.stack([jnp.isfinite(case) for case in cases]).all(0)
    weights = FIRST_WEIGHT + np.arange(len(cases))
    weighted = [float(w) * jnp.where(finite, case, 0) for w, case in zip(weights / weights.sum(), cases, strict=True)]
    return jnp.where(finite, sum(weighted), natural).astype(natural.dtype)
