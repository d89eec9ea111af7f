"""Estimates of what a traced program takes for a draw: matrix operations, and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jax.extend.core import JaxprEqn, Var

from phalanx.jaxprs.dependence import NOWHERE, Axes, Dependence
from phalanx.jaxprs.walking import Cond, Program, Scan, aval_of, inner_programs, opened, parts_of, words

FACTORISATIONS = words(
    """cholesky eig eigh geqp3 geqrf hessenberg householder_product lu ormqr schur svd tridiagonal"""
)
"""Primitives of which each column takes as many multiplications as the matrix has entries, up to a constant."""

PRODUCTS = words("dot_general conv_general_dilated triangular_solve")

DRAW: Axes = frozenset({"draw"})
"""Label of values that differ from draw to draw."""


def matrix_work(program: Program) -> int:
    """Return the multiplications of a program's matrix products, convolutions and factorisations, up to constants.

    A loop counts once for each of its turns, or once if their number depends on values; of branches the most expensive
    counts.
    """
    return sum(map(_work, opened(program)[0].eqns))


def _work(equation: JaxprEqn) -> int:
    parts = parts_of(equation)
    if isinstance(parts, Scan):
        return equation.params["length"] * matrix_work(parts.body)
    if isinstance(parts, Cond):
        return max(map(matrix_work, parts.branches))
    if inner := inner_programs(equation):
        return sum(map(matrix_work, inner))
    name = equation.primitive.name
    params = equation.params
    if name not in FACTORISATIONS | PRODUCTS:  # others may have no results, or results without shapes
        return 0
    shapes = [aval_of(atom).shape for atom in equation.invars]
    size = math.prod(aval_of(equation.outvars[0]).shape)
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        return size * math.prod(shapes[0][axis] for axis in contracted)
    if name == "conv_general_dilated":
        return size * math.prod(shapes[1]) // max(shapes[1][params["dimension_numbers"].rhs_spec[0]], 1)
    if name == "triangular_solve":
        return size * shapes[0][-1]
    return math.prod(shapes[0]) * min(shapes[0][-2:])


def largest_of_draw(program: Program, varies: Sequence[bool]) -> int:
    """Return the size of the largest array that differs from draw to draw, given the inputs that do.

    Mapped over draws, the program makes so many numbers for each of them; arrays of the data are made once.
    """
    largest = _Largest()
    largest.run(program, [DRAW if each else NOWHERE for each in varies])
    return largest.size


class _Largest(Dependence):
    """Size of the largest array that differs from draw to draw."""

    def __init__(self) -> None:
        self.size = 0

    def named(self, variable: Var, value: Axes) -> Axes:
        if value:
            self.size = max(self.size, math.prod(getattr(variable.aval, "shape", ())))
        return value
