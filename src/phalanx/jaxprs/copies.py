"""Analysis of a jaxpr: for each output, the inputs whose entries it copies, up to a constant factor."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var
from jax.typing import ArrayLike

from phalanx.jaxprs.dependence import NOWHERE, Axes
from phalanx.jaxprs.walking import Atom, Interpreter, aval_of, words

MOVES = words(
    """reshape broadcast_in_dim squeeze expand_dims transpose slice dynamic_slice gather rev copy copy_p neg
    convert_element_type reduce_precision split"""
)
"""Primitives whose results contain entries of the first operand, and the negative of one takes all values too."""


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
