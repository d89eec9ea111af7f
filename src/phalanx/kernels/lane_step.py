"""What `lanes_last` works with: values with or without an axis of lanes, and equations to be applied to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr


class Value(NamedTuple):
    """A value of the program.

    Attributes:
        array: the value.
        laned: whether its last axis is that of the lanes; else it is the same in all of them.
    """

    array: Any
    laned: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape in one lane."""
        whole = np.shape(self.array)
        return whole[:-1] if self.laned else whole

    def broadcast(self, lanes: int, shape: tuple[int, ...] | None = None) -> Any:
        """The array with its axis of lanes; a scalar may be broadcast to the `shape` of others, too."""
        shape = self.shape if shape is None else shape
        rank = len(self.shape)
        if self.laned and len(shape) == rank:
            return self.array
        axes = (*range(rank), *([len(shape)] if self.laned else []))
        return lax.broadcast_in_dim(self.array, (*shape, lanes), axes)


@dataclass(frozen=True)
class Step:
    """An equation of a program of one lane, to be applied for all lanes.

    Attributes:
        program: the program it stands in.
        equation: the equation.
        inputs: what it is applied to.
        lanes: how many there are.
        evaluate: `evaluate(program, inputs, lanes)` gives the results of a program that the equation calls.
    """

    program: Jaxpr
    equation: Any
    inputs: list[Value]
    lanes: int
    evaluate: Callable[[ClosedJaxpr | Jaxpr, Sequence[Value], int], list[Value]]

    @property
    def params(self) -> dict[str, Any]:
        """What is fixed: the axes of a sum, and the like."""
        return self.equation.params

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its result in one lane."""
        return self.equation.outvars[0].aval.shape

    def bind(self, *arrays: Any, **changed: Any) -> list[Value]:
        """Results of the same primitive for arrays of all lanes."""
        primitive = self.equation.primitive
        found = primitive.bind(*arrays, **(self.params | changed))
        return [Value(array, True) for array in (found if primitive.multiple_results else [found])]

    def inside(self, program: ClosedJaxpr | Jaxpr, inputs: Sequence[Value]) -> list[Value]:
        """Results of a program that the equation calls."""
        return self.evaluate(program, inputs, self.lanes)

    def broadcast(self, values: Sequence[Value], which: Sequence[bool]) -> list[Any]:
        """Arrays of values, with lanes where `which` says so."""
        return [v.broadcast(self.lanes) if laned else v.array for v, laned in zip(values, which, strict=True)]


Rule = Callable[[Step], list[Value] | None]
"""From an equation to its results for all lanes; None where the rule does not apply."""
