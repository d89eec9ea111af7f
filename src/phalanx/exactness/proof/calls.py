"""Rules of the proof for calls, loops and branches.

A derivative that a function defines itself is followed, too: the gradient must add up as the value does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from phalanx.exactness.proof.equation_pair import EquationPair
from phalanx.jaxprs.dependence import uses_collective
from phalanx.jaxprs.sharding_state import Kind, Partial, Replicated, ShardedRows, join
from phalanx.jaxprs.walking import CALLS, CUSTOM, alone, aval_of, not_literal, settled
from phalanx.mesh.specs import PyTree

Kinds = list[Kind]


def _call(pair: EquationPair) -> Kinds:
    whole, local = pair.parts
    return pair.proof.run(whole.program, local.program, pair.inputs)


def _custom(pair: EquationPair) -> Kinds:
    """Return the kinds of the results of a function with derivatives of its own."""
    found = _call(pair)
    if not pair.proof.once or None in found or _derivative_agrees(pair, found):
        return found
    return [None] * len(found)


def _derivative_agrees(pair: EquationPair, found: Kinds) -> bool:
    """Return whether the devices' gradients with respect to each input make up the whole's."""
    if any(isinstance(kind, Replicated | Partial) and kind.factor != 1 for kind in (*pair.inputs, *found)):
        return False
    inputs = zip(pair.inputs, pair.local.invars, pair.whole.invars, strict=True)
    inputs = [(kind, v) for kind, v, other in inputs if not isinstance(v, Literal) and not isinstance(other, Literal)]
    which = [i for i, (_, v) in enumerate(inputs) if jnp.issubdtype(aval_of(v).dtype, jnp.inexact)]
    if not which:
        return True
    try:
        whole, local = (_transposed(equation, which) for equation in (pair.whole, pair.local))
    except Exception:  # a derivative that cannot be traced is not proved
        return False
    given = [kind for kind, _ in inputs]
    of_derivative = type(pair.proof)(pair.proof.groups, once=False)
    back = of_derivative.run(whole, local, [*given, *(_cotangent(kind) for kind in found)])
    return all(_is_gradient(pair, kind, given[i]) for i, kind in zip(which, back, strict=True))


def _transposed(equation: JaxprEqn, which: Sequence[int]) -> ClosedJaxpr:
    """Return the program from an equation's inputs and cotangents of its outputs to cotangents of some inputs."""
    run = alone(equation)
    shapes, outs = (
        [jax.ShapeDtypeStruct(aval_of(v).shape, aval_of(v).dtype) for v in side]
        for side in (not_literal(equation, equation.invars), equation.outvars)
    )

    def back(*values: Array) -> PyTree:
        given, cotangents = list(values[: len(shapes)]), list(values[len(shapes) :])

        def of(*some: Array) -> PyTree:
            full = list(given)
            for i, value in zip(which, some, strict=True):
                full[i] = value
            return run(*full)

        _, pull = jax.vjp(of, *(given[i] for i in which))
        return pull(cotangents)

    return jax.make_jaxpr(back)(*shapes, *outs)


def _cotangent(kind: Kind) -> Kind:
    return replace(kind, constant=False, false=False) if isinstance(kind, ShardedRows) else Replicated()


def _is_gradient(pair: EquationPair, found: Kind, of: Kind) -> bool:
    """Return whether a gradient fits its variable: rows for rows, sums for replicated values, the whole's for parts."""
    if isinstance(found, Replicated) and found.zero:
        return True
    if isinstance(of, Partial):
        return found == Replicated()
    if isinstance(of, ShardedRows):
        return isinstance(found, ShardedRows) and found.layout == of.layout and found.factor == 1
    if isinstance(found, Partial):
        return found.over == "sum" and found.factor == 1
    replicated = (found, *pair.inputs)
    return all(isinstance(kind, Replicated) and kind.factor == 1 for kind in replicated)


def _linear_solve(pair: EquationPair) -> Kinds | None:
    lengths = pair.params["const_lengths"]
    if lengths != pair.whole.params["const_lengths"]:
        return None
    parts, first = {}, 0
    for name in ("matvec", "vecmat", "solve", "transpose_solve"):
        count = getattr(lengths, name)
        parts[name], first = list(pair.inputs[first : first + count]), first + count
    right = list(pair.inputs[first:])
    found: Kinds = []
    for name in ("transpose_solve", "vecmat", "matvec", "solve"):
        whole, local = (getattr(e.params["jaxprs"], name) for e in (pair.whole, pair.local))
        if whole is None or local is None:
            return None
        found = pair.proof.run(whole, local, [*parts[name], *right])
        if None in found:
            return None
    return found


def _cond(pair: EquationPair) -> Kinds | None:
    which, *operands = pair.inputs
    whole, local = (parts.branches for parts in pair.parts)
    if not isinstance(which, Replicated) or which.factor != 1 or len(whole) != len(local):
        return None
    branches = [pair.proof.run(*both, operands) for both in zip(whole, local, strict=True)]
    return [join(kinds) for kinds in zip(*branches, strict=True)]


def _scan(pair: EquationPair) -> Kinds | None:
    p, q = pair.params, pair.whole.params
    whole, local = pair.parts
    constants, carry, xs = local.split(pair.inputs)
    if whole[1:] != local[1:] or p["reverse"] != q["reverse"]:
        return None
    if p["length"] != q["length"] or any(isinstance(x, ShardedRows) and x.dim == 0 for x in xs):
        return _map(pair, constants, carry, xs)
    elements = [replace(x, dim=x.dim - 1) if isinstance(x, ShardedRows) else _stacked(x) for x in xs]

    def turn(carry: Kinds) -> Kinds:
        return pair.proof.run(whole.body, local.body, [*constants, *carry, *elements])

    carry = settled(carry, lambda now: turn(now)[: len(now)], lambda a, b: join([a, b]))
    outputs = turn(carry)[len(carry) :]
    return [*carry, *(replace(y, dim=y.dim + 1) if isinstance(y, ShardedRows) else _stacked(y) for y in outputs)]


def _stacked(kind: Kind) -> Kind:
    return kind if isinstance(kind, Replicated | Partial) else None


def _map(pair: EquationPair, constants: Kinds, carry: Kinds, xs: Kinds) -> Kinds | None:
    """Return the kinds of a scan over the rows without a carry, as in `lax.map`: rows see only replicated values."""
    whole, local = (parts.body for parts in pair.parts)
    rows = [x for x in xs if isinstance(x, ShardedRows)]
    plain = all(x.layout == ShardedRows(x.group, 0).layout and x.factor == 1 for x in rows)
    if carry or len(rows) < len(xs) or not rows or not plain or len({x.group for x in rows}) > 1:
        return None
    if any(uses_collective(local, axis) for axis in pair.proof.groups.sizes):
        return None
    # inside of the body the values of one row are as replicated values
    inside = pair.proof.run(whole, local, [*constants, *(Replicated() for _ in rows)])
    if not all(isinstance(kind, Replicated) and kind.factor == 1 for kind in inside):
        return None
    return [ShardedRows(rows[0].group, 0) for _ in inside]


def _while(pair: EquationPair) -> Kinds | None:
    whole, local = pair.parts
    of_test, of_body, carry = local.split(pair.inputs)
    if whole[2:] != local[2:]:
        return None
    body, test = (whole.body, local.body), (whole.test, local.test)
    carry = settled(carry, lambda now: pair.proof.run(*body, [*of_body, *now]), lambda a, b: join([a, b]))
    stops = pair.proof.run(*test, [*of_test, *carry])[0]
    return carry if isinstance(stops, Replicated) and stops.factor == 1 else None  # else trips may differ


# `Interpreter` follows one program forwards. The proof follows two back from the outputs: only `parts_of` is shared.
FOLLOWED: dict[str, Callable[[EquationPair], Kinds | None]] = {
    **dict.fromkeys(CALLS, _call),
    **dict.fromkeys(CUSTOM, _custom),
    "custom_linear_solve": _linear_solve,
    "cond": _cond,
    "scan": _scan,
    "while": _while,
    "optimization_barrier": lambda pair: list(pair.inputs),
}
