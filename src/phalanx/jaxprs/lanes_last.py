"""A function of one lane, evaluated for all lanes with the lanes as the last axis of every value.

`jax.vmap` moves lanes to the front as soon as ranks differ. Sums over the few components of a mixture or the classes of
a regression then run along the trailing axis, and a CPU's vectors stay empty. With the lanes last every operation runs
along the lanes, and most operations stay as they are, because the numbers of their axes do not change.

The program of one lane is traced, and its equations are evaluated one by one. A value that all lanes share is computed
once. For other equations a rule of `RULES` is applied; if it is missing or does not apply, the rule of `vmap` is
used. Derivatives are taken first: functions with rules of their own are called as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import Jaxpr, JaxprEqn
from jax.typing import ArrayLike

from phalanx.jaxprs.dependence import NOWHERE, Axes, Dependence
from phalanx.jaxprs.walking import (
    CALLS,
    CUSTOM,
    ELEMENTWISE,
    Call,
    Cond,
    Interpreter,
    Scan,
    alone,
    aval_of,
    needed_equations,
    not_literal,
)
from phalanx.mesh.specs import PyTree

LANED: Axes = frozenset({"lanes"})
"""Mark of values whose last axis is the axis of lanes; a value without it is the same in all lanes."""


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
        return self.run(parts.program, inputs) if parts.has_rule else self.primitive(equation, inputs)

    def choose(self, equation: JaxprEqn, which: M, cases: Sequence[M]) -> M:
        """Return a result of a choice by a marked number, given the result of each branch."""
        raise NotImplementedError

    def cond(self, equation: JaxprEqn, parts: Cond, inputs: list[M]) -> list[M]:
        """Evaluate one branch; all of them if the number of the branch is marked."""
        which, *operands = inputs
        if which.mark:
            results = zip(*(self.run(branch, operands) for branch in parts.branches), strict=True)
            return [self.choose(equation, which, cases) for cases in results]
        marks = self.marks(equation, inputs)
        operand_marks = [value.mark for value in operands]
        ways = [
            lambda *arrays, branch=branch: self.arrays(self.run(branch, self.of_arrays(arrays, operand_marks)), marks)
            for branch in parts.branches
        ]
        return self.of_arrays(lax.switch(which.array, ways, *(value.array for value in operands)), marks)

    def scan(self, equation: JaxprEqn, parts: Scan, inputs: list[M]) -> list[M]:
        """Evaluate the loop row by row."""
        constants, carry, rows = parts.split(inputs)
        marks = self.marks(equation, inputs)
        count = len(carry)
        params = equation.params
        inside = [*marks[:count], *(row.mark for row in rows)]

        def turn(now: list[Array], row: list[Array]) -> tuple[list[Array], list[Array]]:
            results = self.run(parts.body, [*constants, *self.of_arrays([*now, *row], inside)])
            arrays = self.arrays(results, marks)
            return arrays[:count], arrays[count:]

        begin = self.arrays(carry, marks[:count])
        over = [row.array for row in rows]
        how = {name: params[name] for name in ("length", "reverse", "unroll")}
        carried, outputs = lax.scan(turn, begin, over, **how)
        return self.of_arrays([*carried, *outputs], marks)


class LaneValue(Marked):
    """A value of the program, with or without an axis of lanes."""

    @property
    def laned(self) -> bool:
        """True if the last axis is the axis of lanes."""
        return bool(self.mark)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in one lane."""
        whole = np.shape(self.array)
        return whole[:-1] if self.laned else whole

    def broadcast(self, lanes: int, shape: tuple[int, ...] | None = None) -> Array:
        """Return the array with an axis of lanes; a scalar may also be broadcast to the `shape` of other operands."""
        shape = self.shape if shape is None else shape
        rank = len(self.shape)
        if self.laned and len(shape) == rank:
            return self.array
        axes = (*range(rank), *([len(shape)] if self.laned else []))
        return lax.broadcast_in_dim(self.array, (*shape, lanes), axes)


@dataclass(frozen=True)
class LaneEquation:
    """An equation of a program of one lane, to be applied for all lanes.

    Attributes:
        equation: the equation.
        inputs: values of its operands.
        lanes: number of lanes.
    """

    equation: Any
    inputs: list[LaneValue]
    lanes: int

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the primitive, such as the axes of a sum."""
        return self.equation.params

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first result in one lane."""
        return aval_of(self.equation.outvars[0]).shape

    def bind(self, *arrays: Array, **new_params: Any) -> list[LaneValue]:
        """Return the results of the same primitive for arrays of all lanes."""
        primitive = self.equation.primitive
        results = primitive.bind(*arrays, **(self.params | new_params))
        return [LaneValue(array, LANED) for array in (results if primitive.multiple_results else [results])]


Rule = Callable[[LaneEquation], list[LaneValue] | None]
"""Function from an equation to its results for all lanes; None if the rule does not apply."""

TERM_BY_TERM = 2**12
"""Terms per lane up to which a product of two matrices that both differ between lanes is summed term by term."""


# -- operations on the axes of one lane -------------------------------------------------------------------------------


def _elementwise(eqn: LaneEquation) -> list[LaneValue]:
    """Apply an elementwise operation; scalars beside arrays, such as a bound or a condition, stay scalars."""
    rank = len(eqn.shape)
    values = [(v.laned or len(v.shape) == rank, v) for v in eqn.inputs]
    return eqn.bind(*(v.broadcast(eqn.lanes, eqn.shape) if is_broadcast else v.array for is_broadcast, v in values))


def _along_other_axes(eqn: LaneEquation) -> list[LaneValue]:
    """Apply an operation along named axes, whose numbers are the same with lanes last."""
    return eqn.bind(*(value.broadcast(eqn.lanes) for value in eqn.inputs))


def _with_params(change: Callable[[LaneEquation], dict[str, Any]], *laned: int, indices: bool = False) -> Rule:
    """Return a rule for an operation whose parameters have an entry for every axis.

    Args:
        change: function that returns the parameters that differ with an axis of lanes.
        laned: numbers of the operands that may have that axis; the others must be shared by all lanes.
        indices: True if there is an operand for the start along every axis.
    """

    def rule(eqn: LaneEquation) -> list[LaneValue] | None:
        if any(value.laned and number not in laned for number, value in enumerate(eqn.inputs)):
            return None
        arrays = [v.broadcast(eqn.lanes) if number in laned else v.array for number, v in enumerate(eqn.inputs)]
        if indices:
            arrays.append(np.zeros((), arrays[-1].dtype if len(arrays) > len(laned) else np.int32))
        return eqn.bind(*arrays, **change(eqn))

    return rule


def _reshape(eqn: LaneEquation) -> list[LaneValue] | None:
    if eqn.params["dimensions"] is not None:
        return None
    return eqn.bind(eqn.inputs[0].array, new_sizes=(*eqn.params["new_sizes"], eqn.lanes))


def _slice(eqn: LaneEquation) -> dict[str, Any]:
    p = eqn.params
    limits = (*p["limit_indices"], eqn.lanes)
    strides = p["strides"]
    return {
        "start_indices": (*p["start_indices"], 0),
        "limit_indices": limits,
        "strides": strides and (*strides, 1),
    }


def _gather(eqn: LaneEquation) -> dict[str, Any]:
    numbers = eqn.params["dimension_numbers"]
    numbers = numbers._replace(offset_dims=(*numbers.offset_dims, len(eqn.shape)))
    return {"dimension_numbers": numbers, "slice_sizes": (*eqn.params["slice_sizes"], eqn.lanes)}


def _scatter(eqn: LaneEquation) -> dict[str, Any]:
    numbers = eqn.params["dimension_numbers"]
    updates = eqn.inputs[2]
    numbers = numbers._replace(update_window_dims=(*numbers.update_window_dims, len(updates.shape)))
    return {"dimension_numbers": numbers}


# -- products ---------------------------------------------------------------------------------------------------------


def _dot_general(eqn: LaneEquation) -> list[LaneValue] | None:
    a, b = eqn.inputs
    if a.laned and b.laned:
        return _product_in_each(eqn)
    if b.laned:  # lanes are the last of the remaining axes
        return eqn.bind(a.array, b.array)
    (of_a, of_b), (batch_a, batch_b) = eqn.params["dimension_numbers"]
    precision = eqn.params["precision"]
    precision = precision[::-1] if isinstance(precision, tuple) else precision
    numbers = (of_b, of_a), (batch_b, batch_a)
    (product,) = eqn.bind(b.array, a.array, dimension_numbers=numbers, precision=precision)
    batch = len(batch_a)
    from_a = len(a.shape) - batch - len(of_a)
    last = len(eqn.shape)
    order = [*range(batch), *range(last - from_a, last), *range(batch, last - from_a), last]
    return [LaneValue(lax.transpose(product.array, order), LANED)]


def _product_in_each(eqn: LaneEquation) -> list[LaneValue] | None:
    """Multiply matrices that differ between lanes, as sums along the lanes; large ones are left to `vmap`."""
    a, b = eqn.inputs
    (of_a, of_b), (batch_a, batch_b) = eqn.params["dimension_numbers"]
    dtype = aval_of(eqn.equation.outvars[0]).dtype
    plain = a.array.dtype == b.array.dtype == dtype and jnp.issubdtype(dtype, np.number)
    if not plain or math.prod(eqn.shape) * math.prod(a.shape[axis] for axis in of_a) > TERM_BY_TERM:
        return None
    batch = len(batch_a)
    rank = len(eqn.shape)
    between = len(a.shape) - len(of_a)  # first axis of the result that comes from b
    left_operand = lax.expand_dims(_order_axes(a, batch_a, of_a), range(between, rank))
    right = lax.expand_dims(_order_axes(b, batch_b, of_b), range(batch, between))
    return [LaneValue(jnp.sum(left_operand * right, axis=tuple(range(rank, rank + len(of_a))), dtype=dtype), LANED)]


def _order_axes(value: LaneValue, batch: Sequence[int], contracted: Sequence[int]) -> Array:
    """Return the array with axes in this order: batch, remaining, contracted, lanes."""
    rank = len(value.shape)
    remain = [axis for axis in range(rank) if axis not in (*batch, *contracted)]
    return lax.transpose(value.array, [*batch, *remain, *contracted, rank])


# -- sums over devices ------------------------------------------------------------------------------------------------


def is_of_devices(equation: JaxprEqn) -> bool:
    """Return whether a collective names mesh axes only, and no axis of an array."""
    return not any(isinstance(axis, int) for axis in equation.params.get("axes", ()))


def _each_by_itself(eqn: LaneEquation) -> list[LaneValue] | None:
    """Apply an operation on several values at once, each in its own form: a sum over devices stays one message."""
    if not is_of_devices(eqn.equation):
        return None
    results = eqn.bind(*(value.array for value in eqn.inputs))
    return [LaneValue(result.array, value.mark) for result, value in zip(results, eqn.inputs, strict=True)]


# -- the table --------------------------------------------------------------------------------------------------------

ALONG_OTHER_AXES = [
    "argmax",
    "argmin",
    "concatenate",
    "cumlogsumexp",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "reduce_and",
    "reduce_max",
    "reduce_min",
    "reduce_or",
    "reduce_prod",
    "reduce_sum",
    "reduce_xor",
    "rev",
    "sort",
    "split",
    "squeeze",
    "stack",
    "unstack",
]

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


def lanes_last(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return `f` for all lanes at once: from arrays with a trailing axis of lanes to a tree of such arrays.

    Args:
        f: function from arrays of one lane to a tree of arrays.
    """

    def of_all(*arrays: PyTree) -> PyTree:
        lanes = arrays[0].shape[-1]
        one = [jax.ShapeDtypeStruct(array.shape[:-1], array.dtype) for array in arrays]
        program, shapes = jax.make_jaxpr(f, return_shape=True)(*one)
        outputs = _Lanes(lanes).run(program, [LaneValue(array, LANED) for array in arrays])
        return jax.tree.unflatten(jax.tree.structure(shapes), [value.broadcast(lanes) for value in outputs])

    return of_all


class _Laned(Dependence):
    """Analysis of which values have an axis of lanes, consistent with `_Lanes`."""

    def equation(self, equation: JaxprEqn, inputs: list[Axes]) -> list[Axes]:
        """Return the marks of results: with `vmap` or a rule, all have lanes if any operand has."""
        if not any(inputs):
            return [NOWHERE] * len(equation.outvars)
        if _follows(equation):
            return super().equation(equation, inputs)
        if equation.primitive.name in EACH_BY_ITSELF and is_of_devices(equation):
            return inputs
        return [NOWHERE.union(*inputs)] * len(equation.outvars)


class _Lanes(Evaluator[LaneValue]):
    """An evaluation for all lanes."""

    value = LaneValue
    dependence = _Laned()

    def __init__(self, lanes: int):
        self._lanes = lanes

    def equation(self, equation: JaxprEqn, inputs: list[LaneValue]) -> list[LaneValue]:
        """Apply an equation to all lanes at once; values that all lanes share are computed once."""
        if not any(value.laned for value in inputs):
            return self.primitive(equation, inputs)
        if _follows(equation):
            return super().equation(equation, inputs)
        rule = RULES.get(equation.primitive.name)
        outputs = None if rule is None else rule(LaneEquation(equation, inputs, self._lanes))
        if outputs is not None:
            return outputs
        operands = not_literal(equation, inputs)
        axes = [len(value.shape) if value.laned else None for value in operands]
        arrays = jax.vmap(alone(equation), in_axes=axes, out_axes=-1)(*(value.array for value in operands))
        return [LaneValue(array, LANED) for array in arrays]

    def equations(self, jaxpr: Jaxpr) -> Sequence[JaxprEqn]:
        """Return all equations: some may have effects."""
        return jaxpr.eqns

    def call(self, equation: JaxprEqn, parts: Call, inputs: list[LaneValue]) -> list[LaneValue]:
        """Follow a call; a barrier keeps XLA from merging rematerialised values with the first computation."""
        if equation.params.get("differentiated") and equation.params["prevent_cse"]:  # of `jax.checkpoint`
            arrays = lax.optimization_barrier([value.array for value in inputs])
            inputs = self.of_arrays(arrays, [value.mark for value in inputs])
        return super().call(equation, parts, inputs)

    def choose(self, equation: JaxprEqn, which: LaneValue, cases: Sequence[LaneValue]) -> LaneValue:
        """Return for each lane the result of its own branch; all branches are computed."""
        arrays = [case.broadcast(self._lanes) for case in cases]
        return LaneValue(lax.select_n(which.broadcast(self._lanes, arrays[0].shape[:-1]), *arrays), LANED)

    def arrays(self, values: Sequence[LaneValue], marks: Sequence[Axes]) -> list[Array]:
        """Return arrays, with lanes where the results of other turns or branches have them."""
        return [v.broadcast(self._lanes) if mark else v.array for v, mark in zip(values, marks, strict=True)]


def _follows(equation: JaxprEqn) -> bool:
    """Return whether an equation is followed inside; a choice with effects or by platform is left to `vmap`."""
    if equation.primitive.name == "cond":
        effects = any(branch.effects for branch in equation.params["branches"])
        return not effects and "branches_platforms" not in equation.params
    return equation.primitive.name in CALLS | CUSTOM | {"scan"}
