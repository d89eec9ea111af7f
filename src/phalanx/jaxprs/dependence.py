"""Analysis of a jaxpr: the mesh axes over which each output differs from device to device.

A value *varies* over a mesh axis if devices along that axis may hold different values of it. Sharded inputs and
`axis_index` vary; a `psum` over the axis does not; any other result varies if one of its operands does. Calls and
control flow are followed inside, output by output.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.core import JaxprEqn
from jax.typing import ArrayLike

from phalanx.jaxprs.walking import (
    Cond,
    Interpreter,
    Program,
    Scan,
    While,
    all_equations,
    axes_named,
    settled,
)

Axes = frozenset[str]

NOWHERE: Axes = frozenset()

_EQUAL_AFTER = {"psum", "pmax", "pmin", "all_gather", "psum_invariant", "all_gather_invariant"}
_STILL_VARYING = {"reduce_scatter", "all_to_all", "ppermute", "pshuffle", "pbroadcast", "pvary"}


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
        name = equation.primitive.name
        mesh_axes = frozenset(axes_named(equation))
        anywhere = NOWHERE.union(*inputs)
        if name == "axis_index":
            return [mesh_axes]
        if name in _EQUAL_AFTER:
            # a psum within groups of devices still differs from group to group
            reduced_axes = NOWHERE if equation.params.get("axis_index_groups") else mesh_axes
            each = inputs if len(inputs) == len(equation.outvars) else [anywhere]
            return [axes - reduced_axes for axes in each]
        return [anywhere | mesh_axes if name in _STILL_VARYING else anywhere] * len(equation.outvars)

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
