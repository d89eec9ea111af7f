"""Rules of the proof for elementwise primitives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import jax.numpy as jnp

from phalanx.exactness.proof.equation_pair import EquationPair, Rule, aligned, is_zero, product
from phalanx.jaxprs.sharding_state import Kind, Numbers, Partial, Replicated, ShardedRows
from phalanx.jaxprs.walking import ELEMENTWISE, aval_of


def _elementwise(pair: EquationPair) -> list[Kind] | None:
    if pair.local.primitive.name == "bitcast_convert_type" and pair.shape(0) != pair.out:
        return None
    kinds = pair.inputs
    keeps = pair.local.primitive.name in ("neg", "copy", "stop_gradient")
    if keeps and isinstance(kinds[0], ShardedRows):
        return [kinds[0]]
    return pair.all_outputs(aligned(kinds)) if aligned(kinds) else None


def _convert(pair: EquationPair) -> list[Kind] | None:
    if isinstance(pair.inputs[0], Numbers):
        new = jnp.dtype(pair.params["new_dtype"])  # a narrow type cannot hold large numbers
        return [pair.inputs[0]] if new.kind in "iu" and new.itemsize >= 4 else None
    if isinstance(pair.inputs[0], ShardedRows) and jnp.issubdtype(pair.params["new_dtype"], jnp.inexact):
        return [pair.inputs[0]]
    return _elementwise(pair)


def _less(pair: EquationPair) -> list[Kind] | None:
    """Return the kind of a comparison; row indices are never below zero, which `x[indices]` tests."""
    if isinstance(pair.inputs[0], Numbers) and is_zero(pair.inputs[1]):
        return [ShardedRows(pair.inputs[0].group, pair.inputs[0].dim, false=True)]
    return _elementwise(pair)


def _select(pair: EquationPair) -> list[Kind] | None:
    which, *cases = pair.inputs
    if isinstance(which, ShardedRows) and which.false:
        return [cases[0]]
    if None in pair.inputs:
        return None
    if which == Replicated() and all(isinstance(case, Partial | Replicated) for case in cases):
        first = next((case for case in cases if not is_zero(case)), cases[0])
        same = all(case == first or is_zero(case) for case in cases)
        return [replace(first, zero=False) if isinstance(first, Replicated) else first] if same else None
    return _elementwise(pair)


def _add(pair: EquationPair) -> list[Kind] | None:
    a, b = pair.inputs
    if is_zero(a) or is_zero(b):
        other = b if is_zero(a) else a
        if isinstance(other, Partial):
            return [other] if other.over == "sum" else None
        if isinstance(other, Replicated):
            return [Replicated(other.factor, zero=is_zero(a) and is_zero(b))]
    if isinstance(a, ShardedRows) and isinstance(b, ShardedRows):
        if a.layout != b.layout or a.factor != b.factor:
            return None
        return [replace(a, constant=a.constant and b.constant, false=False)]
    if isinstance(a, Replicated) and isinstance(b, Replicated):
        return [Replicated(a.factor)] if a.factor == b.factor else None
    if isinstance(a, Partial | Replicated) and isinstance(b, Partial | Replicated):
        axes = a.axes if isinstance(a, Partial) else b.axes if isinstance(b, Partial) else frozenset()
        a, b = _as_sum(pair, a, axes), _as_sum(pair, b, axes)
        return [a] if a == b and a.over == "sum" else None
    return _elementwise(pair)


def _as_sum(pair: EquationPair, kind: Replicated | Partial, axes: frozenset[str]) -> Partial:
    """Return a replicated value as a part of a sum, which is n times as large on n devices."""
    return kind if isinstance(kind, Partial) else Partial(axes, kind.factor / pair.proof.groups.devices(axes))


def _multiply(pair: EquationPair) -> list[Kind] | None:
    a, b = pair.inputs
    if not isinstance(a, Replicated | ShardedRows | Partial) or not isinstance(b, Replicated | ShardedRows | Partial):
        return None
    return [product(a, b, a.factor * b.factor)]


def _divide(pair: EquationPair) -> list[Kind] | None:
    a, b = pair.inputs
    if not isinstance(a, Replicated | ShardedRows | Partial) or not isinstance(b, Replicated | ShardedRows):
        return None
    if not jnp.issubdtype(aval_of(pair.local.invars[0]).dtype, jnp.inexact):
        return _elementwise(pair)
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
