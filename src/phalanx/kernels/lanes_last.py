"""A function of one lane, evaluated for all lanes with the lanes as the last axis of every value.

`jax.vmap` moves lanes to the front as soon as ranks differ. Sums over the few components of a mixture or the classes of
a regression then run along the trailing axis, and a CPU's vectors stay empty. With the lanes last every operation runs
along the lanes, and most operations stay as they are, for the numbers of their axes do not change.

The program of one lane is traced, and its equations are evaluated one by one. What no lane has for itself is computed
once for all. Else a rule of `lane_rules` says what an equation becomes; where there is none, or it does not apply,
`vmap`'s own is used. Derivatives are taken first: functions with rules of their own are called as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

from phalanx.kernels.lane_rules import RULES
from phalanx.kernels.lane_step import Step, Value


def lanes_last(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` for all lanes at once: from arrays with a trailing axis of lanes to a tree of such arrays.

    Args:
        f: from arrays of one lane to a tree of arrays.
    """

    def of_all(*arrays: Any) -> Any:
        lanes = arrays[0].shape[-1]
        one = [jax.ShapeDtypeStruct(array.shape[:-1], array.dtype) for array in arrays]
        program, shapes = jax.make_jaxpr(f, return_shape=True)(*one)
        found = _evaluate(program, [Value(array, True) for array in arrays], lanes)
        return jax.tree.unflatten(jax.tree.structure(shapes), [value.broadcast(lanes) for value in found])

    return of_all


def _evaluate(program: ClosedJaxpr | Jaxpr, inputs: Sequence[Value], lanes: int) -> list[Value]:
    closed = program if isinstance(program, ClosedJaxpr) else ClosedJaxpr(program, [])
    jaxpr, consts = closed.jaxpr, [Value(array, False) for array in closed.consts]
    values: dict[Any, Value] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))

    def read(atom: Any) -> Value:
        return Value(atom.val, False) if isinstance(atom, Literal) else values[atom]

    for equation in jaxpr.eqns:
        step = Step(jaxpr, equation, [read(atom) for atom in equation.invars], lanes, _evaluate)
        values.update(zip(equation.outvars, _results(step), strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _results(step: Step) -> list[Value]:
    if not any(value.laned for value in step.inputs):
        return _as_it_is(step)
    rule = RULES.get(step.equation.primitive.name)
    found = None if rule is None else rule(step)
    return _as_vmap_does(step) if found is None else found


def _as_it_is(step: Step) -> list[Value]:
    run, operands = _alone(step)
    return [Value(array, False) for array in run(*(value.array for value in operands))]


def _as_vmap_does(step: Step) -> list[Value]:
    run, operands = _alone(step)
    axes = [len(value.shape) if value.laned else None for value in operands]
    found = jax.vmap(run, in_axes=axes, out_axes=-1)(*(value.array for value in operands))
    return [Value(array, True) for array in found]


def _alone(step: Step) -> tuple[Callable[..., list[Any]], list[Value]]:
    """The equation as a function of one lane, and its arguments."""
    given = [i for i, atom in enumerate(step.equation.invars) if not isinstance(atom, Literal)]
    atoms, outputs = [step.equation.invars[i] for i in given], list(step.equation.outvars)
    alone = step.program.replace(constvars=[], invars=atoms, outvars=outputs, eqns=[step.equation])
    return jaxpr_as_fun(ClosedJaxpr(alone, [])), [step.inputs[i] for i in given]
