"""Evaluation of traced programs equation by equation: what those share that change something on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

from phalanx.mesh.dependence import inner_programs

CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint")
"""Primitives that call a program and nothing else."""

CUSTOM = ("custom_jvp_call", "custom_vjp_call")
"""Primitives that call a program with derivatives of its own."""


def needed_equations(jaxpr: Jaxpr, outputs: Sequence[Any]) -> list[Any]:
    """Return the equations that some outputs need."""
    needed, kept = {a for a in outputs if not isinstance(a, Literal)}, []
    for equation in reversed(jaxpr.eqns):
        if needed.intersection(equation.outvars):
            needed.update(a for a in equation.invars if not isinstance(a, Literal))
            kept.append(equation)
    return kept[::-1]


def evaluate(host: Jaxpr, equation: Any, given: Sequence[Any]) -> list[Any]:
    """Return the outputs of an equation as they are."""
    if not inner_programs(equation):
        made = equation.primitive.bind(*given, **equation.params)
        return list(made) if equation.primitive.multiple_results else [made]
    inputs = {id(a): (a, value) for a, value in zip(equation.invars, given, strict=True) if not isinstance(a, Literal)}
    atoms = [atom for atom, _ in inputs.values()]
    alone = host.replace(constvars=[], invars=atoms, outvars=list(equation.outvars), eqns=[equation])
    return jaxpr_as_fun(ClosedJaxpr(alone, []))(*(value for _, value in inputs.values()))


def extent(program: Any) -> tuple[int, Any]:
    """Return the elements of the largest array that a program makes, and the narrowest type that it computes in."""
    shapes = [v.aval for equation in _equations(program.jaxpr) for v in equation.outvars if hasattr(v.aval, "shape")]
    types = [jnp.dtype(a.dtype) for a in shapes if jnp.issubdtype(a.dtype, jnp.floating)]
    widest = max((int(np.prod(a.shape, dtype=np.int64)) for a in shapes), default=0)
    return widest, max(types, key=lambda t: float(jnp.finfo(t).eps), default=jnp.dtype(jnp.result_type(float)))


def _equations(program: Any) -> Iterator[Any]:
    for equation in program.eqns:
        yield equation
        for inner in inner_programs(equation):
            yield from _equations(getattr(inner, "jaxpr", inner))
