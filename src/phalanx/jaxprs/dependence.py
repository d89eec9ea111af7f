"""Analysis of a jaxpr: the mesh axes over which each output differs from device to device.

A value *varies* over a mesh axis if devices along that axis may hold different values of it. Sharded inputs and
`axis_index` vary; a `psum` over the axis does not; any other result varies if one of its operands does. Calls and
control flow are followed inside, output by output.

A second analysis finds, for each output, the inputs whose entries it copies, up to a constant factor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var
from jax.typing import ArrayLike

from phalanx.jaxprs.walking import (
    Atom,
    Cond,
    Interpreter,
    Program,
    Scan,
    While,
    all_equations,
    aval_of,
    axes_named,
    settled,
    words,
)

Axes = frozenset[str]

NOWHERE: Axes = frozenset()

_EQUAL_AFTER = {"psum", "pmax", "pmin", "all_gather", "psum_invariant", "all_gather_invariant"}
_STILL_VARYING = {"reduce_scatter", "all_to_all", "ppermute", "pshuffle", "pbroadcast", "pvary"}

MOVES = words(
    """reshape broadcast_in_dim squeeze expand_dims transpose slice dynamic_slice gather rev copy copy_p neg
    convert_element_type reduce_precision split"""
)
"""Primitives whose results contain entries of the first operand, and the negative of one takes all values too."""


def varying_axes(jaxpr: Program, inputs: Sequence[Axes]) -> list[Axes]:
    """Return the mesh axes each output of `jaxpr` varies over, given those each input varies over.

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
    return Dependence().run(jaxpr, inputs)


def uses_collective(jaxpr: Program, axis: str) -> bool:
    """Return whether the program itself communicates along `axis`: adds, gathers or compares values."""
    names = _EQUAL_AFTER | _STILL_VARYING
    return any(eqn.primitive.name in names and axis in axes_named(eqn) for eqn in all_equations(jaxpr))


class Dependence(Interpreter[Axes]):
    """Analysis of the axes that values vary over; for loops, after any number of turns."""

    def constant(self, value: ArrayLike) -> Axes:
        """Return no axes: a constant is the same on all devices."""
        return NOWHERE

    def primitive(self, equation: JaxprEqn, inputs: list[Axes]) -> list[Axes]:
        """Return the axes that any operand varies over, less those that a collective reduces."""
        name, named, anywhere = equation.primitive.name, frozenset(axes_named(equation)), NOWHERE.union(*inputs)
        if name == "axis_index":
            return [named]
        if name in _EQUAL_AFTER:
            # a psum within groups of devices still differs from group to group
            reduced = NOWHERE if equation.params.get("axis_index_groups") else named
            each = inputs if len(inputs) == len(equation.outvars) else [anywhere]
            return [axes - reduced for axes in each]
        return [anywhere | named if name in _STILL_VARYING else anywhere] * len(equation.outvars)

    def cond(self, equation: JaxprEqn, parts: Cond, inputs: list[Axes]) -> list[Axes]:
        """Return the axes of the results: those of all branches, and those of the choice between them."""
        branches = [self.run(branch, inputs[1:]) for branch in parts.branches]
        return [inputs[0].union(*outputs) for outputs in zip(*branches, strict=True)]

    def scan(self, equation: JaxprEqn, parts: Scan, inputs: list[Axes]) -> list[Axes]:
        """Return the axes of the carry and of the rows of results."""
        constants, carry, rows = parts.split(inputs)
        carry = settled(carry, lambda now: self.run(parts.body, [*constants, *now, *rows])[: len(now)], _union)
        return [*carry, *self.run(parts.body, [*constants, *carry, *rows])[len(carry) :]]

    def while_loop(self, equation: JaxprEqn, parts: While, inputs: list[Axes]) -> list[Axes]:
        """Return the axes of the carry; devices may stop at different turns."""
        of_test, of_body, carry = parts.split(inputs)

        def turn(now: list[Axes]) -> list[Axes]:
            trips = self.run(parts.test, [*of_test, *now])[0]
            return [axes | trips for axes in self.run(parts.body, [*of_body, *now])]

        return settled(carry, turn, _union)


def _union(a: Axes, b: Axes) -> Axes:
    return a | b


def copied_inputs(program: ClosedJaxpr, sources: Mapping[Var, str]) -> list[Axes]:
    """Return, for each output, the names of the sources that some of its entries are copies of.

    Args:
        program: the program; functions that it calls are followed, loops and branches are not.
        sources: names of some of its variables.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> program = jax.make_jaxpr(lambda x, y: (2 * x[None], jnp.exp(y)))(1.0, 2.0)
        >>> [sorted(names) for names in copied_inputs(program, dict(zip(program.jaxpr.invars, "xy")))]
        [['x'], []]
    """
    return _Copies(sources).run(program, [NOWHERE] * len(program.jaxpr.invars))


class _Copies(Interpreter[Axes]):
    def __init__(self, sources: Mapping[Var, str]):
        self._sources = sources

    def constant(self, value: ArrayLike) -> Axes:
        return NOWHERE

    def named(self, variable: Var, value: Axes) -> Axes:
        return value | {self._sources[variable]} if variable in self._sources else value

    def primitive(self, equation: JaxprEqn, inputs: list[Axes]) -> list[Axes]:
        name = equation.primitive.name
        if name == "optimization_barrier":
            return inputs
        if name in MOVES and all(jnp.issubdtype(aval_of(v).dtype, jnp.inexact) for v in equation.outvars):
            return [inputs[0]] * len(equation.outvars)
        if name == "concatenate":
            return [NOWHERE.union(*inputs)]
        if name in ("mul", "div") and _is_factor(equation.invars[1]):
            return [inputs[0]]
        return [inputs[1]] if name == "mul" and _is_factor(equation.invars[0]) else [NOWHERE] * len(equation.outvars)


def _is_factor(atom: Atom) -> bool:
    """Return whether an operand is a number other than zero."""
    return isinstance(atom, Literal) and np.ndim(atom.val) == 0 and bool(np.isfinite(atom.val) and atom.val != 0)
