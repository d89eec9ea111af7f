"""What operations of one lane become for all lanes, when those are the last axis of values: a table of rules.

An operation that no rule is for, or whose rule does not apply and says None, is done as `vmap` does it: right, and with
the lanes moved to where its own rule wants them and back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr

from phalanx.kernels.lane_step import Rule, Step, Value
from phalanx.mesh.dependence import scan_sizes

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
        which = [number in laned for number in range(len(step.inputs))]
        if any(value.laned and not has for value, has in zip(step.inputs, which, strict=True)):
            return None
        arrays = step.broadcast(step.inputs, which)
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
    return [Value(lax.transpose(found.array, order), True)]


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
    return [Value(jnp.sum(left * right, axis=tuple(range(rank, rank + len(of_a))), dtype=dtype), True)]


def _ordered(value: Value, batch: Sequence[int], contracted: Sequence[int]) -> Any:
    """Axes of a batch, those that remain, those summed over, the lanes."""
    rank = len(value.shape)
    remain = [axis for axis in range(rank) if axis not in (*batch, *contracted)]
    return lax.transpose(value.array, [*batch, *remain, *contracted, rank])


# -- calls, branches and loops ----------------------------------------------------------------------------------------


def _call(step: Step) -> list[Value]:
    program = step.params["call_jaxpr"] if "call_jaxpr" in step.params else step.params["jaxpr"]
    return step.inside(program, step.inputs)


def _remat(step: Step) -> list[Value]:
    """What is to be computed again must not be taken for what was computed before."""
    inputs, params = step.inputs, step.params
    if params["differentiated"] and params["prevent_cse"]:
        arrays = lax.optimization_barrier([value.array for value in inputs])
        inputs = [Value(array, value.laned) for array, value in zip(arrays, inputs, strict=True)]
    return step.inside(params["jaxpr"], inputs)


def _cond(step: Step) -> list[Value] | None:
    which, *operands = step.inputs
    branches = step.params["branches"]
    if any(branch.effects for branch in branches) or "branches_platforms" in step.params:
        return None
    if which.laned:  # lanes go different ways: all ways are computed, and each lane takes its own
        ways = zip(*(step.inside(branch, operands) for branch in branches), strict=True)
        cases = [[way.broadcast(step.lanes) for way in result] for result in ways]
        return [Value(lax.select_n(which.broadcast(step.lanes, case[0].shape[:-1]), *case), True) for case in cases]
    laned = [any(result) for result in zip(*(_laned_after(step, b, operands) for b in branches), strict=True)]
    ways = [lambda *arrays, b=b: step.broadcast(step.inside(b, _like(operands, arrays)), laned) for b in branches]
    found = lax.switch(which.array, ways, *(value.array for value in operands))
    return [Value(array, has) for array, has in zip(found, laned, strict=True)]


def _scan(step: Step) -> list[Value]:
    p = step.params
    first, many = scan_sizes(p)
    consts, carry, xs = step.inputs[:first], step.inputs[first : first + many], step.inputs[first + many :]
    elements = [Value(jax.ShapeDtypeStruct(x.array.shape[1:], x.array.dtype), x.laned) for x in xs]
    laned = [value.laned for value in carry]
    while True:  # what is carried along is every lane's own from the turn on in which something of the lane's enters
        start = [Value(*pair) for pair in zip(step.broadcast(carry, laned), laned, strict=True)]
        after = _laned_after(step, p["jaxpr"], [*consts, *start, *elements])
        grown = [a or b for a, b in zip(laned, after[: len(laned)], strict=True)]
        if grown == laned:
            break
        laned = grown

    def turn(carry: list[Any], arrays: list[Any]) -> tuple[list[Any], list[Any]]:
        found = step.inside(p["jaxpr"], [*consts, *_like(start, carry), *_like(xs, arrays)])
        arrays = step.broadcast(found, [*laned, *after[len(laned) :]])
        return arrays[: len(laned)], arrays[len(laned) :]

    begin, over = [v.array for v in start], [v.array for v in xs]
    carried, ys = lax.scan(turn, begin, over, length=p["length"], reverse=p["reverse"], unroll=p["unroll"])
    return [Value(a, has) for a, has in zip([*carried, *ys], [*laned, *after[len(laned) :]], strict=True)]


def _laned_after(step: Step, program: ClosedJaxpr, inputs: Sequence[Value]) -> list[bool]:
    """Which results of a program differ from lane to lane."""
    laned: list[bool] = []

    def look(arrays: list[Any]) -> list[Any]:
        found = step.inside(program, _like(inputs, arrays))
        laned.extend(value.laned for value in found)
        return [value.array for value in found]

    jax.eval_shape(look, [value.array for value in inputs])
    return laned


def _like(values: Sequence[Value], arrays: Sequence[Any]) -> list[Value]:
    return [Value(array, value.laned) for array, value in zip(arrays, values, strict=True)]


def _each_by_itself(step: Step) -> list[Value] | None:
    """Several values handled at once, each where it lies: a sum over devices stays one message."""
    if any(isinstance(axis, int) for axis in step.params.get("axes", ())):
        return None
    return _like(step.inputs, [value.array for value in step.bind(*(value.array for value in step.inputs))])


# -- the table --------------------------------------------------------------------------------------------------------

ELEMENTWISE = [
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e",
    "bessel_i1e", "cbrt", "ceil", "clamp", "clz", "complex", "conj", "convert_element_type", "copy", "cos", "cosh",
    "digamma", "div", "eq", "eq_to", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "igamma",
    "igamma_grad_a", "igammac", "imag", "integer_pow", "is_finite", "le", "le_to", "lgamma", "log", "log1p",
    "logistic", "lt", "lt_to", "max", "min", "mul", "mulhi", "ne", "neg", "nextafter", "not", "or", "polygamma",
    "population_count", "pow", "real", "reduce_precision", "regularized_incomplete_beta", "rem",
    "round", "rsqrt", "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin",
    "sinh", "sqrt", "square", "sub", "tan", "tanh", "xor", "zeta",
]  # fmt: skip

ALONG_OTHER_AXES = [
    "argmax", "argmin", "concatenate", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "reduce_and",
    "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum", "reduce_xor", "rev", "sort", "split",
    "squeeze", "stack", "unstack",
]  # fmt: skip

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
    **dict.fromkeys(("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"), _call),
    **dict.fromkeys(("remat", "remat2", "checkpoint"), _remat),
    "cond": _cond,
    "scan": _scan,
    **dict.fromkeys(("optimization_barrier", "psum", "pmax", "pmin", "pvary"), _each_by_itself),
}
