"""Pair of equations of the two traces, and functions of it that several rules of the proof use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import jax.numpy as jnp

from phalanx.jaxprs.sharding_state import ONE, Kind, Partial, Replicated, ShardedRows
from phalanx.jaxprs.walking import Atom, aval_of, parts_of, words

Shape = tuple[int, ...]


@dataclass(frozen=True)
class EquationPair:
    """A pair of equations, the kinds of their inputs, and the proof that they are part of."""

    whole: Any
    local: Any
    inputs: Sequence[Kind]
    proof: Any

    @property
    def params(self) -> Mapping[str, Any]:
        """Parameters of the equation on a device."""
        return self.local.params

    @property
    def parts(self) -> tuple[Any, Any]:
        """Programs that the equations call, in the whole and on a device."""
        return parts_of(self.whole), parts_of(self.local)

    @property
    def same_shapes(self) -> bool:
        """True if inputs and outputs have the same shapes in the whole and on a device."""
        pairs = zip((*self.whole.invars, *self.whole.outvars), (*self.local.invars, *self.local.outvars), strict=True)
        return all(_shape(a) == _shape(b) for a, b in pairs)

    def shape(self, number: int) -> Shape:
        """Return the shape of an input on a device."""
        return _shape(self.local.invars[number])

    def shapes(self, number: int) -> tuple[Shape, Shape]:
        """Return the shape of an input in the whole, and on a device."""
        return _shape(self.whole.invars[number]), self.shape(number)

    @property
    def out(self) -> Shape:
        """Shape of the first output on a device."""
        return _shape(self.local.outvars[0])

    @property
    def outs(self) -> tuple[Shape, Shape]:
        """Shape of the first output in the whole, and on a device."""
        return _shape(self.whole.outvars[0]), self.out

    def all_outputs(self, kind: Kind) -> list[Kind]:
        """Return the same kind for every output."""
        return [kind] * len(self.local.outvars)


Rule = Callable[[EquationPair], "list[Kind] | None"]


LINEAR = words(
    """neg copy copy_p stop_gradient reshape transpose squeeze broadcast_in_dim reduce_sum slice rev cumsum real imag
    dynamic_slice expand_dims gather"""
)
"""Primitives that are linear in their first operand if the others are replicated."""


def keeps_factor(pair: EquationPair) -> bool:
    """Return whether the result has the kind of the first operand, because the primitive is linear in it."""
    if not pair.inputs or not isinstance(pair.inputs[0], Replicated | Partial):
        return False
    name, over = pair.local.primitive.name, getattr(pair.inputs[0], "over", "sum")
    if name == "convert_element_type":
        return jnp.issubdtype(pair.params["new_dtype"], jnp.inexact)
    if over != "sum" and name in ("neg", "reduce_sum", "cumsum"):
        return False
    return name in LINEAR and all(kind == Replicated() or is_zero(kind) for kind in pair.inputs[1:])


def _shape(atom: Atom) -> Shape:
    return tuple(aval_of(atom).shape)


def is_zero(kind: Kind) -> bool:
    """Return whether a value is known to be zero."""
    return isinstance(kind, Replicated) and kind.zero


def aligned(kinds: Sequence[Kind]) -> ShardedRows | None:
    """Return the common rows of several values, some of which may be replicated; None if rows differ in place."""
    found = [kind for kind in kinds if isinstance(kind, ShardedRows)]
    others = [kind for kind in kinds if not isinstance(kind, ShardedRows)]
    if not found or len({kind.layout for kind in found}) > 1:
        return None
    if not all(isinstance(kind, Replicated | ShardedRows) and kind.factor == 1 for kind in (*found, *others)):
        return None
    return replace(found[0], constant=all(kind.constant for kind in found), false=False)


def plain(kind: ShardedRows) -> ShardedRows:
    """Return the same rows with unknown values."""
    return replace(kind, constant=False, false=False)


def along(param: str) -> Rule:
    """Return a rule for primitives along one or more dimensions, which must not contain the rows."""

    def rule(pair: EquationPair) -> list[Kind] | None:
        dims, kind = pair.params[param], aligned(pair.inputs)
        dims = dims if isinstance(dims, tuple) else (dims,)
        return pair.all_outputs(kind) if kind and kind.dim not in dims else None

    return rule


def has_all_rows(pair: EquationPair, param: str, dim: int) -> bool:
    """Return whether slices have all rows along `dim`, and equal sizes along other dimensions."""
    sizes = pair.whole.params[param], pair.params[param]
    same = all(a == b for d, (a, b) in enumerate(zip(*sizes, strict=True)) if d != dim)
    return same and tuple(size[dim] for size in sizes) == tuple(shape[dim] for shape in pair.shapes(0))


def product(a: Replicated | ShardedRows | Partial, b: Replicated | ShardedRows | Partial, factor: Fraction) -> Kind:
    """Return the kind of a product, at most one factor of which is a part of a sum."""
    for part, other in ((a, b), (b, a)):
        if isinstance(part, Partial):
            return replace(part, factor=factor) if isinstance(other, Replicated) and part.over == "sum" else None
    if isinstance(a, Replicated) and isinstance(b, Replicated):
        return Replicated(factor)
    rows = aligned([replace(a, factor=ONE), replace(b, factor=ONE)])
    return replace(rows, factor=factor) if rows else None
