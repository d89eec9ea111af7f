"""A function of one lane, evaluated for all lanes with the lanes as the last axis of every value.

`jax.vmap` moves lanes to the front as soon as ranks differ. Sums over the few components of a mixture or the classes of
a regression then run along the trailing axis, and a CPU's vectors stay empty. With the lanes last every operation runs
along the lanes, and most operations stay as they are, because the numbers of their axes do not change.

The program of one lane is traced, and its equations are evaluated one by one. A value that all lanes share is computed
once. For other equations a rule of `lane_rules` is applied; if it is missing or does not apply, the rule of `vmap` is
used. Derivatives are taken first: functions with rules of their own are called as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import Array, lax
from jax.extend.core import Jaxpr, JaxprEqn

from phalanx.jaxprs.dependence import NOWHERE, Axes, Dependence
from phalanx.jaxprs.evaluation import Evaluator
from phalanx.jaxprs.lane_rules import EACH_BY_ITSELF, LANED, RULES, LaneEquation, LaneValue, is_of_devices
from phalanx.jaxprs.walking import CALLS, CUSTOM, Call, alone, not_literal
from phalanx.mesh.specs import PyTree


def lanes_last(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return `f` for all lanes at once: from arrays with a trailing axis of lanes to a tree of such arrays.

    Args:
        f: function from arrays of one lane to a tree of arrays.
    """

    def of_all(*arrays: PyTree) -> PyTree:
        lanes = arrays[0].shape[-1]
        one = [jax.ShapeDtypeStruct(array.shape[:-1], array.dtype) for array in arrays]
        program, shapes = jax.make_jaxpr(f, return_shape=True)(*one)
        found = _Lanes(lanes).run(program, [LaneValue(array, LANED) for array in arrays])
        return jax.tree.unflatten(jax.tree.structure(shapes), [value.broadcast(lanes) for value in found])

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

    value, dependence = LaneValue, _Laned()

    def __init__(self, lanes: int):
        self._lanes = lanes

    def equation(self, equation: JaxprEqn, inputs: list[LaneValue]) -> list[LaneValue]:
        """Apply an equation to all lanes at once; values that all lanes share are computed once."""
        if not any(value.laned for value in inputs):
            return self.primitive(equation, inputs)
        if _follows(equation):
            return super().equation(equation, inputs)
        rule = RULES.get(equation.primitive.name)
        found = None if rule is None else rule(LaneEquation(equation, inputs, self._lanes))
        return self._as_vmap_does(equation, inputs) if found is None else found

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

    def _as_vmap_does(self, equation: JaxprEqn, inputs: list[LaneValue]) -> list[LaneValue]:
        operands = not_literal(equation, inputs)
        axes = [len(value.shape) if value.laned else None for value in operands]
        found = jax.vmap(alone(equation), in_axes=axes, out_axes=-1)(*(value.array for value in operands))
        return [LaneValue(array, LANED) for array in found]


def _follows(equation: JaxprEqn) -> bool:
    """Return whether an equation is followed inside; a choice with effects or by platform is left to `vmap`."""
    if equation.primitive.name == "cond":
        effects = any(branch.effects for branch in equation.params["branches"])
        return not effects and "branches_platforms" not in equation.params
    return equation.primitive.name in CALLS | CUSTOM | {"scan"}
