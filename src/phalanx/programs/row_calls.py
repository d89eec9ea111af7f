"""The proof goes into calls, loops and branches.

What a function's own rule of derivatives does is followed, too: the gradient must add up as the value does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

from phalanx.mesh.dependence import scan_sizes, uses_collective
from phalanx.programs.row_step import Step
from phalanx.programs.row_values import Kind, Partial, Replicated, Sharded, join

Kinds = list[Kind]

TURNS = 8
"""Kinds of what goes round in a loop are settled after a few turns, or not at all."""


def _call(param: str) -> Callable[[Step], Kinds | None]:
    def rule(step: Step) -> Kinds | None:
        return _inside(step, step.whole.params[param], step.local.params[param], step.inputs)

    return rule


def _inside(step: Step, whole: ClosedJaxpr | Jaxpr, local: ClosedJaxpr | Jaxpr, inputs: Sequence[Kind]) -> Kinds:
    if isinstance(whole, ClosedJaxpr) and isinstance(local, ClosedJaxpr):
        return step.proof.closed(whole, local, inputs)
    return step.proof.open(whole, local, inputs)


def _custom(step: Step) -> Kinds | None:
    """A function with its own derivatives."""
    found = _call("call_jaxpr")(step)
    if not step.proof.once or found is None or None in found:
        return found
    return found if _derivative_agrees(step, found) else None


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
        whole, local = (_transposed(*pair, which) for pair in zip(step.hosts, (step.whole, step.local), strict=True))
    except Exception:  # a rule that does not run is no proof
        return False
    given = [kind for kind, _ in inputs]
    back = step.proof.of_derivative.closed(whole, local, [*given, *(_cotangent(kind) for kind in found)])
    return all(_is_gradient(step, kind, given[i]) for i, kind in zip(which, back, strict=True))


def _transposed(host: Jaxpr, equation: Any, which: Sequence[int]) -> ClosedJaxpr:
    """The program that takes an equation's inputs and cotangents of its outputs to cotangents of some inputs."""
    atoms = [v for v in equation.invars if not isinstance(v, Literal)]
    alone = host.replace(constvars=[], invars=atoms, outvars=list(equation.outvars), eqns=[equation])
    run = jaxpr_as_fun(ClosedJaxpr(alone, []))
    shapes, outs = (
        [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in side] for side in (atoms, equation.outvars)
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


def _shapes(atoms: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in atoms]


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
    found: Kinds | None = None
    for name in ("transpose_solve", "vecmat", "matvec", "solve"):
        whole, local = (getattr(e.params["jaxprs"], name) for e in (step.whole, step.local))
        if whole is None or local is None:
            return None
        found = _inside(step, whole, local, [*parts[name], *right])
        if any(kind is None for kind in found):
            return None
    return found


def _cond(step: Step) -> Kinds | None:
    which, *operands = step.inputs
    pairs = list(zip(step.whole.params["branches"], step.local.params["branches"], strict=False))
    if not isinstance(which, Replicated) or which.factor != 1 or len(pairs) != len(step.whole.params["branches"]):
        return None
    return [join(kinds) for kinds in zip(*(_inside(step, *pair, operands) for pair in pairs), strict=True)]


def _scan(step: Step) -> Kinds | None:
    p, q = step.params, step.whole.params
    if scan_sizes(p) != scan_sizes(q) or p["reverse"] != q["reverse"]:
        return None
    constants, carry, xs = _cut(step.inputs, *scan_sizes(p))
    bodies = q["jaxpr"], p["jaxpr"]
    if p["length"] != q["length"] or any(isinstance(x, Sharded) and x.dim == 0 for x in xs):
        return _map(step, constants, carry, xs)
    elements = [replace(x, dim=x.dim - 1) if isinstance(x, Sharded) else _stacked(x) for x in xs]

    def turn(carry: Kinds) -> Kinds:
        return _inside(step, *bodies, [*constants, *carry, *elements])

    settled = _settle(carry, lambda now: turn(now)[: len(now)])
    outputs = turn(settled)[len(settled) :]
    return [*settled, *(replace(y, dim=y.dim + 1) if isinstance(y, Sharded) else _stacked(y) for y in outputs)]


def _stacked(kind: Kind) -> Kind:
    return kind if isinstance(kind, Replicated | Partial) else None


def _map(step: Step, constants: Kinds, carry: Kinds, xs: Kinds) -> Kinds | None:
    """One row after the other, each by itself: `lax.map`. With nothing carried along, a row sees only what is alike."""
    whole, local = step.whole.params["jaxpr"], step.params["jaxpr"]
    rows = [x for x in xs if isinstance(x, Sharded)]
    plain = all(x is not None and x.layout == Sharded(x.group, 0).layout and x.factor == 1 for x in rows)
    if carry or len(rows) < len(xs) or not rows or not plain or len({x.group for x in rows}) > 1:
        return None
    if any(uses_collective(local, axis) for axis in step.proof.groups.sizes):
        return None
    # to one row everything of it is alike, whatever is done to it
    inside = step.proof.closed(whole, local, [*constants, *(Replicated() for _ in rows)])
    if not all(isinstance(kind, Replicated) and kind.factor == 1 for kind in inside):
        return None
    return [Sharded(rows[0].group, 0) for _ in inside]


def _while(step: Step) -> Kinds | None:
    p, q = step.params, step.whole.params
    if any(p[name] != q[name] for name in ("cond_nconsts", "body_nconsts")):
        return None
    of_test, of_body, carry = _cut(step.inputs, p["cond_nconsts"], p["body_nconsts"])
    bodies, tests = (q["body_jaxpr"], p["body_jaxpr"]), (q["cond_jaxpr"], p["cond_jaxpr"])
    settled = _settle(carry, lambda now: _inside(step, *bodies, [*of_body, *now]))
    test = _inside(step, *tests, [*of_test, *settled])[0]
    return (
        settled if isinstance(test, Replicated) and test.factor == 1 else None
    )  # else devices stop at different turns


def _settle(carry: Kinds, turn: Callable[[Kinds], Kinds]) -> Kinds:
    for _ in range(TURNS):
        after = [join([a, b]) for a, b in zip(carry, turn(carry), strict=True)]
        if after == carry:
            return carry
        carry = after
    return [None] * len(carry)


def _cut(kinds: Sequence[Kind], first: int, second: int) -> tuple[Kinds, Kinds, Kinds]:
    return list(kinds[:first]), list(kinds[first : first + second]), list(kinds[first + second :])


def _eye(step: Step) -> Kinds | None:
    return list(step.inputs)


CALLS: dict[str, Callable[[Step], Kinds | None]] = {
    **dict.fromkeys(("jit", "pjit", "remat", "remat2", "checkpoint"), _call("jaxpr")),
    **dict.fromkeys(("closed_call", "core_call"), _call("call_jaxpr")),
    **dict.fromkeys(("custom_jvp_call", "custom_vjp_call"), _custom),
    "custom_linear_solve": _linear_solve,
    "cond": _cond,
    "scan": _scan,
    "while": _while,
    "optimization_barrier": _eye,
}
