"""What operations of one lane become for all lanes, when those are the last axis of values: a table of rules.

An operation that no rule is for, or whose rule does not apply and says None, is done as `vmap` does it: right, and with
the lanes moved to where its own rule wants them and back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from phalanx.jaxprs.dependence import Axes
from phalanx.jaxprs.evaluation import Marked
from phalanx.jaxprs.walking import ELEMENTWISE

LANED: Axes = frozenset({"lanes"})
"""The mark of values whose last axis is that of the lanes; others are the same in all of them."""


class Value(Marked):
    """A value of the program, with or without an axis of lanes."""

    @property
    def laned(self) -> bool:
        """Whether its last axis is that of the lanes."""
        return bool(self.mark)

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
        equation: the equation.
        inputs: what it is applied to.
        lanes: how many there are.
    """

    equation: Any
    inputs: list[Value]
    lanes: int

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
        return [Value(array, LANED) for array in (found if primitive.multiple_results else [found])]


Rule = Callable[[Step], list[Value] | None]
"""From an equation to its results for all lanes; None where the rule does not apply."""

TERM_BY_TERM = 2**12
"""A product of two matrices that every lane has for itself is summed term by term up to so many terms in a lane."""


# -- operations on the axes of one lane -------------------------------------------------------------------------------


def _elementwise(step: Step) -> list[Value]:
    """Scalars that go with arrays, such as a bound or a condition, may stay what they are."""
    rank = len(step.shape)
    values = [(v.laned or len(v.shape) == rank, v) for v in step.inputs]
    return step.bind(*(v.broadcast(step.lanes, step.shape) if needed else v.array for needed, v in values))


def _along_other_axes(step: Step) -> list[Value]:
    """The axes that are named are the same."""
    return step.bind(*(value.broadcast(step.lanes) for value in step.inputs))


def _with_params(change: Callable[[Step], dict[str, Any]], *laned: int, indices: bool = False) -> Rule:
    """A rule for an operation whose parameters speak of every axis.

    Args:
        change: parameters that differ with an axis of lanes.
        laned: numbers of the operands that have one; the others must be shared.
        indices: whether there is an operand for the start along every axis.
    """

    def rule(step: Step) -> list[Value] | None:
        if any(value.laned and number not in laned for number, value in enumerate(step.inputs)):
            return None
        arrays = [v.broadcast(step.lanes) if number in laned else v.array for number, v in enumerate(step.inputs)]
        if indices:
            arrays.append(np.zeros((), arrays[-1].dtype if len(arrays) > len(laned) else np.int32))
        return step.bind(*arrays, **change(step))

    return rule


def _reshape(step: Step) -> list[Value] | None:
    if step.params["dimensions"] is not None:
        return None
    return step.bind(step.inputs[0].array, new_sizes=(*step.params["new_sizes"], step.lanes))


def _slice(step: Step) -> dict[str, Any]:
    p = step.params
    limits, strides = (*p["limit_indices"], step.lanes), p["strides"]
    return {
        "start_indices": (*p["start_indices"], 0),
        "limit_indices": limits,
        "strides": strides and (*strides, 1),
    }


def _gather(step: Step) -> dict[str, Any]:
    numbers = step.params["dimension_numbers"]
    numbers = numbers._replace(offset_dims=(*numbers.offset_dims, len(step.shape)))
    return {"dimension_numbers": numbers, "slice_sizes": (*step.params["slice_sizes"], step.lanes)}


def _scatter(step: Step) -> dict[str, Any]:
    numbers, updates = step.params["dimension_numbers"], step.inputs[2]
    numbers = numbers._replace(update_window_dims=(*numbers.update_window_dims, len(updates.shape)))
    return {"dimension_numbers": numbers}


# -- products ---------------------------------------------------------------------------------------------------------


def _dot_general(step: Step) -> list[Value] | None:
    a, b = step.inputs
    if a.laned and b.laned:
        return _product_in_each(step)
    if b.laned:  # the lanes are the last of the axes that remain
        return step.bind(a.array, b.array)
    (of_a, of_b), (batch_a, batch_b) = step.params["dimension_numbers"]
    precision = step.params["precision"]
    precision = precision[::-1] if isinstance(precision, tuple) else precision
    numbers = (of_b, of_a), (batch_b, batch_a)
    (found,) = step.bind(b.array, a.array, dimension_numbers=numbers, precision=precision)
    batch = len(batch_a)
    from_a, last = len(a.shape) - batch - len(of_a), len(step.shape)
    order = [*range(batch), *range(last - from_a, last), *range(batch, last - from_a), last]
    return [Value(lax.transpose(found.array, order), LANED)]


def _product_in_each(step: Step) -> list[Value] | None:
    """Of matrices that differ from lane to lane: as sums along the lanes, unless the matrices are large."""
    a, b = step.inputs
    (of_a, of_b), (batch_a, batch_b) = step.params["dimension_numbers"]
    dtype = step.equation.outvars[0].aval.dtype
    plain = a.array.dtype == b.array.dtype == dtype and jnp.issubdtype(dtype, np.number)
    if not plain or math.prod(step.shape) * math.prod(a.shape[axis] for axis in of_a) > TERM_BY_TERM:
        return None
    batch, rank = len(batch_a), len(step.shape)
    between = len(a.shape) - len(of_a)  # where what remains of the left side ends, and what remains of the right begins
    left = lax.expand_dims(_ordered(a, batch_a, of_a), range(between, rank))
    right = lax.expand_dims(_ordered(b, batch_b, of_b), range(batch, between))
    return [Value(jnp.sum(left * right, axis=tuple(range(rank, rank + len(of_a))), dtype=dtype), LANED)]


def _ordered(value: Value, batch: Sequence[int], contracted: Sequence[int]) -> Any:
    """Axes of a batch, those that remain, those summed over, the lanes."""
    rank = len(value.shape)
    remain = [axis for axis in range(rank) if axis not in (*batch, *contracted)]
    return lax.transpose(value.array, [*batch, *remain, *contracted, rank])


# -- sums over devices ------------------------------------------------------------------------------------------------


def is_of_devices(equation: Any) -> bool:
    """Return whether a collective names axes of the mesh alone, and none of an array."""
    return not any(isinstance(axis, int) for axis in equation.params.get("axes", ()))


def _each_by_itself(step: Step) -> list[Value] | None:
    """Several values handled at once, each where it lies: a sum over devices stays one message."""
    if not is_of_devices(step.equation):
        return None
    found = step.bind(*(value.array for value in step.inputs))
    return [Value(made.array, value.mark) for made, value in zip(found, step.inputs, strict=True)]


# -- the table --------------------------------------------------------------------------------------------------------

ALONG_OTHER_AXES = [
    "argmax", "argmin", "concatenate", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "reduce_and",
    "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum", "reduce_xor", "rev", "sort", "split",
    "squeeze", "stack", "unstack",
]  # fmt: skip

EACH_BY_ITSELF = ("optimization_barrier", "psum", "pmax", "pmin", "pvary")

RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(ALONG_OTHER_AXES, _along_other_axes),
    "reshape": _reshape,
    "transpose": _with_params(lambda s: {"permutation": (*s.params["permutation"], len(s.shape))}, 0),
    "broadcast_in_dim": _with_params(
        lambda s: {
            "shape": (*s.shape, s.lanes),
            "broadcast_dimensions": (*s.params["broadcast_dimensions"], len(s.shape)),
        },
        0,
    ),
    "tile": _with_params(lambda s: {"reps": (*s.params["reps"], 1)}, 0),
    "pad": _with_params(lambda s: {"padding_config": (*s.params["padding_config"], (0, 0, 0))}, 0),
    "slice": _with_params(_slice, 0),
    "dynamic_slice": _with_params(lambda s: {"slice_sizes": (*s.params["slice_sizes"], s.lanes)}, 0, indices=True),
    "dynamic_update_slice": _with_params(lambda s: {}, 0, 1, indices=True),
    "gather": _with_params(_gather, 0),
    **dict.fromkeys(
        ("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max"), _with_params(_scatter, 0, 2)
    ),
    "dot_general": _dot_general,
    **dict.fromkeys(EACH_BY_ITSELF, _each_by_itself),
}
