"""Functions of rows that each device computes anew from its own rows, instead of equation by equation.

A sum of 20 million log densities is split into two floats by rounding, and a likelihood is read block by block: both
depend on the number of rows that a device has. Their programs on whole arrays would be evaluated equation by equation,
and rounding a partial sum would need a message. While a program is traced for placement, such a function is called
under a name, and the interpreter calls it again on local arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import JaxprEqn

from phalanx.jaxprs.walking import aval_of
from phalanx.mesh.specs import PyTree

PREFIX = "phalanx_row_function_"
"""Beginning of the names under which functions are called."""


class RowFunction(NamedTuple):
    """A function of rows, and the placements of its results.

    Attributes:
        call: `call(real, rows, others)`, a pair of trees: sums over the rows, and arrays of rows. `real` is a mask of
            the rows that count, or None.
        rows: number of the operands that are rows, which come first.
        sums: number of the results that are sums, which come first.
        adds_entries: True if the function adds up entries of arrays of any shape: padded rows may then be zeros, and
            a partial sum is added up like rows; `real` is always None.
        shapes: shapes of the operands in the whole.
    """

    call: Callable[..., tuple[PyTree, PyTree]]
    rows: int
    sums: int
    adds_entries: bool
    shapes: list[tuple[int, ...]]

    def is_called_by(self, equation: JaxprEqn) -> bool:
        """Return whether an equation calls the function itself, rather than its derivative or a batch of it.

        JAX passes constants that the function closes over as first operands.
        """
        operands = equation.invars[-len(self.shapes) :]
        return [aval_of(operand).shape for operand in operands] == self.shapes

    def on_device(self, real: Array | None, operands: Sequence[Array]) -> list[Array]:
        """Return the results for one device's operands."""
        return jax.tree.leaves(self.call(real, list(operands[: self.rows]), list(operands[self.rows :])))


@dataclass(frozen=True)
class RowFunctions:
    """Functions of rows of a program that is traced for placement.

    Attributes:
        devices: the largest number of devices that rows are sharded over.
        by_name: the functions that the program calls.
    """

    devices: int
    by_name: dict[str, RowFunction] = field(default_factory=dict)


_TRACED: ContextVar[RowFunctions | None] = ContextVar("traced", default=None)


@contextmanager
def row_functions(devices: int) -> Iterator[RowFunctions]:
    """Trace a program for placement in a `with` block: its functions of rows are collected."""
    functions = RowFunctions(devices)
    token = _TRACED.set(functions)
    try:
        yield functions
    finally:
        _TRACED.reset(token)


def rows_on_device(count: int) -> int | None:
    """Return how many of `count` rows a device has, at least; None if no program is traced for placement."""
    traced = _TRACED.get()
    return None if traced is None else -(-count // traced.devices)


def sum_entries(function: Callable[..., PyTree], arrays: PyTree, *others: Any) -> PyTree:
    """Return `function(arrays, *others)`, which adds up all entries of some arrays and maps zeros to zeros.

    Args:
        function: a function that is linear in `arrays` up to rounding, with scalar results.
        arrays: a tree of arrays.
        *others: scalars.
    """
    leaves, tree = jax.tree.flatten(arrays)

    def call(real: None, rows: list[Array], others: list[Any]) -> tuple[PyTree, None]:
        return function(tree.unflatten(rows), *others), None

    return _called(call, leaves, list(others), adds_entries=True)[0]


def sum_rows(
    function: Callable[..., tuple[PyTree, PyTree]], rows: Sequence[Array], others: Sequence[Array]
) -> tuple[PyTree, PyTree]:
    """Return `function(real, rows, others)`: sums over rows, and results with one row for each of them.

    Args:
        function: a function of a mask of the rows that count, or None, of rows, and of arrays that all rows share.
        rows: arrays with one leading row each; None among them are left out.
        others: arrays that all rows share.
    """
    return _called(function, rows, others, adds_entries=False)


def _called(
    call: Callable[..., tuple[PyTree, PyTree]], rows: Sequence[Array], others: Sequence[Any], adds_entries: bool
) -> tuple[PyTree, PyTree]:
    traced = _TRACED.get()
    if traced is None:
        return call(None, list(rows), list(others))

    def whole(rows: list[Array], others: list[Array]) -> tuple[PyTree, PyTree]:
        return call(None, rows, others)

    whole.__name__ = f"{PREFIX}{len(traced.by_name)}"
    sums, _ = jax.eval_shape(whole, list(rows), list(others))
    shapes = [jnp.shape(operand) for operand in (*rows, *others)]
    traced.by_name[whole.__name__] = RowFunction(call, len(rows), len(jax.tree.leaves(sums)), adds_entries, shapes)
    return jax.jit(whole)(list(rows), list(others))
