"""Rules of the proof for what works entry by entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import jax.numpy as jnp

from phalanx.exactness.proof.step import Rule, Step, apart, is_zero, product
from phalanx.jaxprs.sharding_state import Kind, Numbers, Partial, Replicated, Sharded
from phalanx.jaxprs.walking import ELEMENTWISE


def _elementwise(step: Step) -> list[Kind] | None:
    if step.local.primitive.name == "bitcast_convert_type" and step.shape(0) != step.out:
        return None
    kinds = step.inputs
    keeps = step.local.primitive.name in ("neg", "copy", "stop_gradient")
    if keeps and isinstance(kinds[0], Sharded):
        return [kinds[0]]
    return step.all_outputs(apart(kinds)) if apart(kinds) else None


def _convert(step: Step) -> list[Kind] | None:
    if isinstance(step.inputs[0], Numbers):
        new = jnp.dtype(step.params["new_dtype"])  # a narrow type has no room for large numbers
        return [step.inputs[0]] if new.kind in "iu" and new.itemsize >= 4 else None
    if isinstance(step.inputs[0], Sharded) and jnp.issubdtype(step.params["new_dtype"], jnp.inexact):
        return [step.inputs[0]]
    return _elementwise(step)


def _less(step: Step) -> list[Kind] | None:
    """A row's number is not below zero: `x[numbers]` asks."""
    if isinstance(step.inputs[0], Numbers) and is_zero(step.inputs[1]):
        return [Sharded(step.inputs[0].group, step.inputs[0].dim, false=True)]
    return _elementwise(step)


def _select(step: Step) -> list[Kind] | None:
    which, *cases = step.inputs
    if isinstance(which, Sharded) and which.false:
        return [cases[0]]
    if None in step.inputs:
        return None
    if which == Replicated() and all(isinstance(case, Partial | Replicated) for case in cases):
        first = next((case for case in cases if not is_zero(case)), cases[0])
        same = all(case == first or is_zero(case) for case in cases)
        return [replace(first, zero=False) if isinstance(first, Replicated) else first] if same else None
    return _elementwise(step)


def _add(step: Step) -> list[Kind] | None:
    a, b = step.inputs
    if is_zero(a) or is_zero(b):
        other = b if is_zero(a) else a
        if isinstance(other, Partial):
            return [other] if other.over == "sum" else None
        if isinstance(other, Replicated):
            return [Replicated(other.factor, zero=is_zero(a) and is_zero(b))]
    if isinstance(a, Sharded) and isinstance(b, Sharded):
        if a.layout != b.layout or a.factor != b.factor:
            return None
        return [replace(a, constant=a.constant and b.constant, false=False)]
    if isinstance(a, Replicated) and isinstance(b, Replicated):
        return [Replicated(a.factor)] if a.factor == b.factor else None
    if isinstance(a, Partial | Replicated) and isinstance(b, Partial | Replicated):
        axes = a.axes if isinstance(a, Partial) else b.axes if isinstance(b, Partial) else frozenset()
        a, b = _as_sum(step, a, axes), _as_sum(step, b, axes)
        return [a] if a == b and a.over == "sum" else None
    return _elementwise(step)


def _as_sum(step: Step, kind: Replicated | Partial, axes: frozenset[str]) -> Partial:
    """What is alike on n devices is a part of a sum: n times as much."""
    return kind if isinstance(kind, Partial) else Partial(axes, kind.factor / step.proof.groups.devices(axes))


def _multiply(step: Step) -> list[Kind] | None:
    a, b = step.inputs
    if not isinstance(a, Replicated | Sharded | Partial) or not isinstance(b, Replicated | Sharded | Partial):
        return None
    return [product(a, b, a.factor * b.factor)]


def _divide(step: Step) -> list[Kind] | None:
    a, b = step.inputs
    if not isinstance(a, Replicated | Sharded | Partial) or not isinstance(b, Replicated | Sharded):
        return None
    if not jnp.issubdtype(step.local.invars[0].aval.dtype, jnp.inexact):
        return _elementwise(step)
    return [product(a, b, a.factor / b.factor)]


ARITHMETIC: Mapping[str, Rule] = {
    **dict.fromkeys((*ELEMENTWISE, "bitcast_convert_type"), _elementwise),
    "convert_element_type": _convert,
    "lt": _less,
    "select_n": _select,
    "mul": _multiply,
    "div": _divide,
    "add": _add,
    "sub": _add,
    "add_any": _add,
}
