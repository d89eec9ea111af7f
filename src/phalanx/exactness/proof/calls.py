"""The proof goes into calls, loops and branches.

What a function's own rule of derivatives does is followed, too: the gradient must add up as the value does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal

from phalanx.exactness.proof.step import Step
from phalanx.jaxprs.dependence import uses_collective
from phalanx.jaxprs.sharding_state import Kind, Partial, Replicated, Sharded, join
from phalanx.jaxprs.walking import CALLS, CUSTOM, alone, not_literal, settled

Kinds = list[Kind]


def _call(step: Step) -> Kinds:
    whole, local = step.parts
    return step.proof.run(whole.program, local.program, step.inputs)


def _custom(step: Step) -> Kinds:
    """A function with its own derivatives."""
    found = _call(step)
    if not step.proof.once or None in found or _derivative_agrees(step, found):
        return found
    return [None] * len(found)


def _derivative_agrees(step: Step, found: Kinds) -> bool:
    """Whether the function's gradient with respect to each input is what the devices' gradients say."""
    if any(isinstance(kind, Replicated | Partial) and kind.factor != 1 for kind in (*step.inputs, *found)):
        return False
    inputs = zip(step.inputs, step.local.invars, step.whole.invars, strict=True)
    inputs = [(kind, v) for kind, v, other in inputs if not isinstance(v, Literal) and not isinstance(other, Literal)]
    which = [i for i, (_, v) in enumerate(inputs) if jnp.issubdtype(v.aval.dtype, jnp.inexact)]
    if not which:
        return True
    try:
        whole, local = (_transposed(equation, which) for equation in (step.whole, step.local))
    except Exception:  # a rule that does not run is no proof
        return False
    given = [kind for kind, _ in inputs]
    of_derivative = type(step.proof)(step.proof.groups, once=False)
    back = of_derivative.run(whole, local, [*given, *(_cotangent(kind) for kind in found)])
    return all(_is_gradient(step, kind, given[i]) for i, kind in zip(which, back, strict=True))


def _transposed(equation: Any, which: Sequence[int]) -> ClosedJaxpr:
    """The program that takes an equation's inputs and cotangents of its outputs to cotangents of some inputs."""
    run = alone(equation)
    shapes, outs = (
        [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in side]
        for side in (not_literal(equation, equation.invars), equation.outvars)
    )

    def back(*values: Any) -> Any:
        given, cotangents = list(values[: len(shapes)]), list(values[len(shapes) :])

        def of(*some: Any) -> Any:
            full = list(given)
            for i, value in zip(which, some, strict=True):
                full[i] = value
            return run(*full)

        _, pull = jax.vjp(of, *(given[i] for i in which))
        return pull(cotangents)

    return jax.make_jaxpr(back)(*shapes, *outs)


def _cotangent(kind: Kind) -> Kind:
    return replace(kind, constant=False, false=False) if isinstance(kind, Sharded) else Replicated()


def _is_gradient(step: Step, found: Kind, of: Kind) -> bool:
    """Of rows, the gradient is theirs; of what is alike, the devices' add up; of a part, it is the whole's."""
    if isinstance(found, Replicated) and found.zero:
        return True
    if isinstance(of, Partial):
        return found == Replicated()
    if isinstance(of, Sharded):
        return isinstance(found, Sharded) and found.layout == of.layout and found.factor == 1
    if isinstance(found, Partial):
        return found.over == "sum" and found.factor == 1
    replicated = (found, *step.inputs)  # a zero is as replicated as any number
    return all(isinstance(kind, Replicated) and kind.factor == 1 for kind in replicated)


def _linear_solve(step: Step) -> Kinds | None:
    lengths = step.params["const_lengths"]
    if lengths != step.whole.params["const_lengths"]:
        return None
    parts, first = {}, 0
    for name in ("matvec", "vecmat", "solve", "transpose_solve"):
        count = getattr(lengths, name)
        parts[name], first = list(step.inputs[first : first + count]), first + count
    right = list(step.inputs[first:])
    found: Kinds = []
    for name in ("transpose_solve", "vecmat", "matvec", "solve"):
        whole, local = (getattr(e.params["jaxprs"], name) for e in (step.whole, step.local))
        if whole is None or local is None:
            return None
        found = step.proof.run(whole, local, [*parts[name], *right])
        if None in found:
            return None
    return found


def _cond(step: Step) -> Kinds | None:
    which, *operands = step.inputs
    whole, local = (parts.branches for parts in step.parts)
    if not isinstance(which, Replicated) or which.factor != 1 or len(whole) != len(local):
        return None
    branches = [step.proof.run(*pair, operands) for pair in zip(whole, local, strict=True)]
    return [join(kinds) for kinds in zip(*branches, strict=True)]


def _scan(step: Step) -> Kinds | None:
    p, q = step.params, step.whole.params
    whole, local = step.parts
    constants, carry, xs = local.split(step.inputs)
    if whole[1:] != local[1:] or p["reverse"] != q["reverse"]:
        return None
    if p["length"] != q["length"] or any(isinstance(x, Sharded) and x.dim == 0 for x in xs):
        return _map(step, constants, carry, xs)
    elements = [replace(x, dim=x.dim - 1) if isinstance(x, Sharded) else _stacked(x) for x in xs]

    def turn(carry: Kinds) -> Kinds:
        return step.proof.run(whole.body, local.body, [*constants, *carry, *elements])

    carry = settled(carry, lambda now: turn(now)[: len(now)], lambda a, b: join([a, b]))
    outputs = turn(carry)[len(carry) :]
    return [*carry, *(replace(y, dim=y.dim + 1) if isinstance(y, Sharded) else _stacked(y) for y in outputs)]


def _stacked(kind: Kind) -> Kind:
    return kind if isinstance(kind, Replicated | Partial) else None


def _map(step: Step, constants: Kinds, carry: Kinds, xs: Kinds) -> Kinds | None:
    """One row after the other, each by itself: `lax.map`. With nothing carried along, a row sees only what is alike."""
    whole, local = (parts.body for parts in step.parts)
    rows = [x for x in xs if isinstance(x, Sharded)]
    plain = all(x.layout == Sharded(x.group, 0).layout and x.factor == 1 for x in rows)
    if carry or len(rows) < len(xs) or not rows or not plain or len({x.group for x in rows}) > 1:
        return None
    if any(uses_collective(local, axis) for axis in step.proof.groups.sizes):
        return None
    # to one row everything of it is alike, whatever is done to it
    inside = step.proof.run(whole, local, [*constants, *(Replicated() for _ in rows)])
    if not all(isinstance(kind, Replicated) and kind.factor == 1 for kind in inside):
        return None
    return [Sharded(rows[0].group, 0) for _ in inside]


def _while(step: Step) -> Kinds | None:
    whole, local = step.parts
    of_test, of_body, carry = local.split(step.inputs)
    if whole[2:] != local[2:]:
        return None
    body, test = (whole.body, local.body), (whole.test, local.test)
    carry = settled(carry, lambda now: step.proof.run(*body, [*of_body, *now]), lambda a, b: join([a, b]))
    stops = step.proof.run(*test, [*of_test, *carry])[0]
    return carry if isinstance(stops, Replicated) and stops.factor == 1 else None  # else at different turns


FOLLOWED: dict[str, Callable[[Step], Kinds | None]] = {
    **dict.fromkeys(CALLS, _call),
    **dict.fromkeys(CUSTOM, _custom),
    "custom_linear_solve": _linear_solve,
    "cond": _cond,
    "scan": _scan,
    "while": _while,
    "optimization_barrier": lambda step: list(step.inputs),
}
