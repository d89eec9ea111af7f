"""A pair of equations of the two traces, and what several rules of the proof ask of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import jax.numpy as jnp

from phalanx.jaxprs.sharding_state import ONE, Kind, Partial, Replicated, Sharded
from phalanx.jaxprs.walking import parts_of, words

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """A pair of equations, the kinds of what they are given, and the proof that asks."""

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
        """What the equations call, in the whole and on a device."""
        return parts_of(self.whole), parts_of(self.local)

    @property
    def same_shapes(self) -> bool:
        """Whether inputs and outputs have the same shapes in the whole and on a device."""
        pairs = zip((*self.whole.invars, *self.whole.outvars), (*self.local.invars, *self.local.outvars), strict=True)
        return all(_shape(a) == _shape(b) for a, b in pairs)

    def shape(self, number: int) -> Shape:
        """Shape of an input on a device."""
        return _shape(self.local.invars[number])

    def shapes(self, number: int) -> tuple[Shape, Shape]:
        """Shape of an input in the whole, and on a device."""
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
        """The same kind for every output."""
        return [kind] * len(self.local.outvars)


Rule = Callable[[Step], "list[Kind] | None"]


LINEAR = words(
    """neg copy copy_p stop_gradient reshape transpose squeeze broadcast_in_dim reduce_sum slice rev cumsum real imag
    dynamic_slice expand_dims gather"""
)
"""What takes the multiple of its first operand to the multiple of the result, the others being alike."""


def keeps_factor(step: Step) -> bool:
    """Whether a multiple of the first operand, or a part of its sum, gives that of the result."""
    if not step.inputs or not isinstance(step.inputs[0], Replicated | Partial):
        return False
    name, over = step.local.primitive.name, getattr(step.inputs[0], "over", "sum")
    if name == "convert_element_type":
        return jnp.issubdtype(step.params["new_dtype"], jnp.inexact)
    if over != "sum" and name in ("neg", "reduce_sum", "cumsum"):
        return False
    return name in LINEAR and all(kind == Replicated() or is_zero(kind) for kind in step.inputs[1:])


def _shape(atom: Any) -> Shape:
    return tuple(atom.aval.shape)


def is_zero(kind: Kind) -> bool:
    """Whether it is known to be nothing but zeros."""
    return isinstance(kind, Replicated) and kind.zero


def apart(kinds: Sequence[Kind]) -> Sharded | None:
    """Where the rows of several values lie, all in one place; those that are alike have none."""
    found = [kind for kind in kinds if isinstance(kind, Sharded)]
    others = [kind for kind in kinds if not isinstance(kind, Sharded)]
    if not found or len({kind.layout for kind in found}) > 1:
        return None
    if not all(isinstance(kind, Replicated | Sharded) and kind.factor == 1 for kind in (*found, *others)):
        return None
    return replace(found[0], constant=all(kind.constant for kind in found), false=False)


def plain(kind: Sharded) -> Sharded:
    """The same rows, of whose values nothing is known."""
    return replace(kind, constant=False, false=False)


def along(param: str) -> Rule:
    """A rule for what works along one dimension, or several: it must not be that of the rows."""

    def rule(step: Step) -> list[Kind] | None:
        dims, kind = step.params[param], apart(step.inputs)
        dims = dims if isinstance(dims, tuple) else (dims,)
        return step.all_outputs(kind) if kind and kind.dim not in dims else None

    return rule


def full(step: Step, param: str, dim: int) -> bool:
    """Whether a slice has all of the rows, and the same of everything else."""
    sizes = step.whole.params[param], step.params[param]
    same = all(a == b for d, (a, b) in enumerate(zip(*sizes, strict=True)) if d != dim)
    return same and tuple(size[dim] for size in sizes) == tuple(shape[dim] for shape in step.shapes(0))


def product(a: Replicated | Sharded | Partial, b: Replicated | Sharded | Partial, factor: Fraction) -> Kind:
    """What a product is, if at most one of the two is a part."""
    for part, other in ((a, b), (b, a)):
        if isinstance(part, Partial):
            return replace(part, factor=factor) if isinstance(other, Replicated) and part.over == "sum" else None
    if isinstance(a, Replicated) and isinstance(b, Replicated):
        return Replicated(factor)
    rows = apart([replace(a, factor=ONE), replace(b, factor=ONE)])
    return replace(rows, factor=factor) if rows else None
