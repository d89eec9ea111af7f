"""Which outputs of a program differ from device to device, read off its jaxpr.

A value *varies* over a mesh axis when devices along that axis may hold different values of it. Sharded inputs and
`axis_index` vary; a `psum` over the axis no longer does; everything else varies if anything it is computed from does.
Calls and control flow are followed inside, output by output.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, primitives

Axes = frozenset[str]

NOWHERE: Axes = frozenset()

_ALIKE_AFTER = {"psum", "pmax", "pmin", "all_gather", "psum_invariant", "all_gather_invariant"}
_STILL_VARYING = {"reduce_scatter", "all_to_all", "ppermute", "pshuffle", "pbroadcast", "pvary"}


def varying_axes(jaxpr: ClosedJaxpr | Jaxpr, inputs: Sequence[Axes]) -> list[Axes]:
    """The mesh axes each output of `jaxpr` varies over, given those each input varies over.

    Args:
        jaxpr: a program, as `jax.make_jaxpr(f, axis_env=...)` gives it.
        inputs: one set of axes per (flattened) input.

    Returns:
        One set of axes per (flattened) output.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> program = jax.make_jaxpr(lambda x, y: (x * y, y + 1))(1.0, 2.0)
        >>> [sorted(axes) for axes in varying_axes(program, [frozenset({"data"}), frozenset()])]
        [['data'], []]
    """
    jaxpr = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    varies = dict(zip(jaxpr.invars, inputs, strict=True))

    def of(atom) -> Axes:
        return NOWHERE if isinstance(atom, Literal) else varies.get(atom, NOWHERE)

    for eqn in jaxpr.eqns:
        outputs = equation_axes(eqn, [of(atom) for atom in eqn.invars])
        varies.update(zip(eqn.outvars, outputs, strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def uses_collective(jaxpr: ClosedJaxpr | Jaxpr, axis: str) -> bool:
    """Whether the program itself adds, gathers or compares values along `axis`."""
    jaxpr = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    return any(
        (eqn.primitive.name in _ALIKE_AFTER | _STILL_VARYING and axis in _named_axes(eqn))
        or any(uses_collective(inner, axis) for inner in inner_programs(eqn))
        for eqn in jaxpr.eqns
    )


def live_equations(jaxpr: ClosedJaxpr) -> str:
    """The program without what its outputs do not need, as text: two programs that compute alike print alike."""
    needed = {atom for atom in jaxpr.jaxpr.outvars if not isinstance(atom, Literal)}
    kept = []
    for eqn in reversed(jaxpr.jaxpr.eqns):
        if needed.intersection(eqn.outvars):
            needed.update(atom for atom in eqn.invars if not isinstance(atom, Literal))
            kept.append(eqn)
    names: dict = {}
    closed_over = [c for atom, c in zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True) if atom in needed]
    closed_over += [c for eqn in kept for inner in inner_programs(eqn) for c in constants_within(inner)]

    def label(atom) -> str:
        return str(atom) if isinstance(atom, Literal) else f"v{names.setdefault(atom, len(names))}:{atom.aval}"

    lines = [
        f"{[label(a) for a in eqn.outvars]} = {eqn.primitive}[{eqn.params}] {[label(a) for a in eqn.invars]}"
        for eqn in reversed(kept)
    ]
    text = "\n".join([*lines, str([label(atom) for atom in jaxpr.jaxpr.outvars]), *map(_contents, closed_over)])
    return re.sub(r"0x[0-9a-f]+", "", text)  # where a callable lives in memory is not part of the program


def inner_programs(eqn) -> list[ClosedJaxpr | Jaxpr]:
    """The programs that an equation calls, those that are closed with their constants.

    `jax.extend.core.jaxprs_in_params` opens them: it leaves out what they close over.
    """
    values = [v for value in eqn.params.values() for v in (value if isinstance(value, tuple | list) else (value,))]
    return [value for value in values if isinstance(value, ClosedJaxpr | Jaxpr)]


def scan_sizes(params: Mapping[str, Any]) -> tuple[int, int]:
    """Of a scan's inputs, how many are the same in each turn, and how many the first is handed; the rest has rows."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carry, _ = params["ft_in"].unpack()  # from JAX 0.11 on
    return len(constants), len(carry)


def _contents(constant: Any) -> str:
    try:
        array = np.asarray(constant)
    except Exception:  # a key, or a value that is being traced: of its contents nothing is known
        return str(id(constant))
    return f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"


def constants_within(jaxpr: ClosedJaxpr | Jaxpr) -> list[Any]:
    """What a program closes over, and what all those do that it calls."""
    closed = isinstance(jaxpr, ClosedJaxpr)
    programs = (inner for eqn in jaxpr.eqns for inner in inner_programs(eqn))
    return [*(jaxpr.consts if closed else ()), *(c for inner in programs for c in constants_within(inner))]


def equation_axes(eqn, inputs: list[Axes]) -> list[Axes]:
    """Return the mesh axes each output of an equation varies over; of loops, after as many turns as there may be."""
    name, params = eqn.primitive.name, eqn.params
    anywhere = NOWHERE.union(*inputs)
    if name == "axis_index":
        return [frozenset(_named_axes(eqn))]
    if name in _ALIKE_AFTER:
        # a psum within groups of devices still differs from group to group
        reduced = NOWHERE if params.get("axis_index_groups") else frozenset(_named_axes(eqn))
        return [axes - reduced for axes in inputs] if len(inputs) == len(eqn.outvars) else [anywhere - reduced]
    if name in _STILL_VARYING:
        return [anywhere | frozenset(_named_axes(eqn))] * len(eqn.outvars)
    if eqn.primitive is primitives.scan_p:
        return _scan(params, inputs)
    if eqn.primitive is primitives.while_p:
        return _while(params, inputs)
    if eqn.primitive is primitives.cond_p:
        choice, operands = inputs[0], inputs[1:]
        branches = [varying_axes(branch, operands) for branch in params["branches"]]
        return [choice.union(*outputs) for outputs in zip(*branches, strict=True)]
    for inner in inner_programs(eqn)[:1]:  # jit, custom_jvp, custom_vjp, remat: the first is what runs forward
        if len(inner.jaxpr.invars if isinstance(inner, ClosedJaxpr) else inner.invars) == len(inputs):
            return varying_axes(inner, inputs)
    return [anywhere] * len(eqn.outvars)


def _scan(params, inputs: list[Axes]) -> list[Axes]:
    num_consts, num_carry = scan_sizes(params)
    consts, carry, xs = (
        inputs[:num_consts],
        inputs[num_consts : num_consts + num_carry],
        inputs[num_consts + num_carry :],
    )
    outputs = varying_axes(params["jaxpr"], [*consts, *carry, *xs])
    while (grown := [a | b for a, b in zip(carry, outputs[:num_carry], strict=True)]) != carry:
        carry = grown
        outputs = varying_axes(params["jaxpr"], [*consts, *carry, *xs])
    return [*carry, *outputs[num_carry:]]


def _while(params, inputs: list[Axes]) -> list[Axes]:
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    of_cond, of_body, carry = inputs[:num_cond], inputs[num_cond : num_cond + num_body], inputs[num_cond + num_body :]
    while True:
        trips = varying_axes(params["cond_jaxpr"], [*of_cond, *carry])[0]  # devices may stop at different trips
        outputs = varying_axes(params["body_jaxpr"], [*of_body, *carry])
        grown = [a | b | trips for a, b in zip(carry, outputs, strict=True)]
        if grown == carry:
            return carry
        carry = grown


def _named_axes(eqn) -> tuple[str, ...]:
    axes = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    return tuple(axis for axis in (axes if isinstance(axes, tuple | list) else (axes,)) if isinstance(axis, str))
