"""Evaluation of traced programs with some equations changed: calls are followed, loops and branches are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from jax import Array, lax
from jax.extend.core import Jaxpr, JaxprEqn
from jax.typing import ArrayLike

from phalanx.jaxprs.dependence import NOWHERE, Axes, Dependence
from phalanx.jaxprs.walking import Call, Cond, Interpreter, Scan, alone, needed_equations, not_literal


class Marked(NamedTuple):
    """An array with a mark that is known while tracing: the inputs it depends on, as `Dependence` follows them."""

    array: Any
    mark: Axes = NOWHERE


M = TypeVar("M", bound=Marked)


class Evaluator(Interpreter[M], Generic[M]):
    """Evaluation of a program; a subclass changes the results of some equations.

    `dependence` finds the marks of loop carries and of branch results beforehand.
    """

    value: type[M]
    dependence = Dependence()

    def constant(self, value: ArrayLike) -> M:
        """Return the value of a constant, without a mark."""
        return self.value(value)

    def primitive(self, equation: JaxprEqn, inputs: list[M]) -> list[M]:
        """Return the results of the unchanged primitive."""
        arrays = [value.array for value in not_literal(equation, inputs)]
        return self.of_arrays(alone(equation)(*arrays), self.marks(equation, inputs))

    def marks(self, equation: JaxprEqn, inputs: Sequence[M]) -> list[Axes]:
        """Return the marks of the results of an equation."""
        return self.dependence.equation(equation, [value.mark for value in inputs])

    def of_arrays(self, arrays: Sequence[Array], marks: Sequence[Axes]) -> list[M]:
        """Return values of arrays that have these marks."""
        return list(map(self.value, arrays, marks))

    def arrays(self, values: Sequence[M], marks: Sequence[Axes]) -> list[Array]:
        """Return the arrays of values, in the form that arrays with these marks have."""
        return [value.array for value in values]

    def equations(self, jaxpr: Jaxpr) -> Sequence[JaxprEqn]:
        """Return the equations that the outputs need."""
        return needed_equations(jaxpr, jaxpr.outvars)

    def call(self, equation: JaxprEqn, parts: Call, inputs: list[M]) -> list[M]:
        """Follow a primitive that only calls a program; bind any other."""
        return self.run(parts.program, inputs) if parts.known else self.primitive(equation, inputs)

    def choose(self, equation: JaxprEqn, which: M, cases: Sequence[M]) -> M:
        """Return a result of a choice by a marked number, given the result of each branch."""
        raise NotImplementedError

    def cond(self, equation: JaxprEqn, parts: Cond, inputs: list[M]) -> list[M]:
        """Evaluate one branch; all of them if the number of the branch is marked."""
        which, *operands = inputs
        if which.mark:
            results = zip(*(self.run(branch, operands) for branch in parts.branches), strict=True)
            return [self.choose(equation, which, cases) for cases in results]
        marks, given = self.marks(equation, inputs), [value.mark for value in operands]
        ways = [
            lambda *arrays, branch=branch: self.arrays(self.run(branch, self.of_arrays(arrays, given)), marks)
            for branch in parts.branches
        ]
        return self.of_arrays(lax.switch(which.array, ways, *(value.array for value in operands)), marks)

    def scan(self, equation: JaxprEqn, parts: Scan, inputs: list[M]) -> list[M]:
        """Evaluate the loop row by row."""
        constants, carry, rows = parts.split(inputs)
        marks, count, params = self.marks(equation, inputs), len(carry), equation.params
        inside = [*marks[:count], *(row.mark for row in rows)]

        def turn(now: list[Array], row: list[Array]) -> tuple[list[Array], list[Array]]:
            found = self.run(parts.body, [*constants, *self.of_arrays([*now, *row], inside)])
            arrays = self.arrays(found, marks)
            return arrays[:count], arrays[count:]

        begin, over = self.arrays(carry, marks[:count]), [row.array for row in rows]
        how = {name: params[name] for name in ("length", "reverse", "unroll")}
        carried, made = lax.scan(turn, begin, over, **how)
        return self.of_arrays([*carried, *made], marks)
