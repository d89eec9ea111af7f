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
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import JaxprEqn

from phalanx.jaxprs.walking import aval_of
from phalanx.mesh.specs import PyTree

PREFIX = "phalanx_row_function_"
"""Beginning of the names under which functions are called."""

DIVIDED = "phalanx_divided_over_"
"""Beginning of the name of a call that divides its operand; a mesh axis follows."""

ADDED_TOGETHER = "phalanx_added_together"
"""Name of a call that adds up partial sums in one message: the first half of its operands, like the second."""

T = TypeVar("T")


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
        batch: for each operand the dimension that `jax.vmap` has added, or None; empty if it has added none. In results
            it is the first.
    """

    call: Callable[..., tuple[PyTree, PyTree]]
    rows: int
    sums: int
    adds_entries: bool
    shapes: list[tuple[int, ...]]
    batch: Sequence[int | None] = ()

    def batched(self, equation: JaxprEqn) -> RowFunction | None:
        """Return the function that an equation calls: this one, or a batch of it; None for a derivative, for instance.

        JAX passes constants that the function closes over as first operands.
        """
        shapes = [aval_of(operand).shape for operand in equation.invars[-len(self.shapes) :]]
        if shapes == self.shapes:
            return self
        if not self.adds_entries or len(equation.outvars) != self.sums:
            return None
        places = [_places_of_batch(*pair) for pair in zip(shapes, self.shapes, strict=True)]
        if any(len(dims) != 1 for dims in places):  # none, or sizes that leave open which dimension is of the batch
            return None
        axes = [place for (place,) in places]
        count = next(shape[axis] for shape, axis in zip(shapes, axes, strict=True) if axis is not None)
        if any(aval_of(result).shape != (count,) for result in equation.outvars):
            return None

        def call(real: None, rows: list[Array], others: list[Array]) -> tuple[PyTree, PyTree]:
            along = axes[: self.rows], axes[self.rows :]
            return jax.vmap(lambda rows, others: self.call(real, rows, others), along)(rows, others)

        return self._replace(call=call, shapes=shapes, batch=axes)

    def on_device(self, real: Array | None, operands: Sequence[Array]) -> list[Array]:
        """Return the results for one device's operands."""
        return jax.tree.leaves(self.call(real, list(operands[: self.rows]), list(operands[self.rows :])))


def _places_of_batch(shape: tuple[int, ...], single: tuple[int, ...]) -> list[int | None]:
    """Return the dimensions of a shape that may have come in addition to a single one; None for an equal shape."""
    if shape == single:
        return [None]
    return [place for place in range(len(shape)) if (*shape[:place], *shape[place + 1 :]) == single]


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
    functions_of_trace = _TRACED.get()
    return None if functions_of_trace is None else -(-count // functions_of_trace.devices)


def divide(array: Array, axis: str) -> Array:
    """Return an array whose first dimension a mesh axis divides, where a program is traced for placement.

    What is computed from it is then divided, too, instead of computed on every device.
    """
    if _TRACED.get() is None:
        return array

    def same(array: Array) -> Array:
        return array

    same.__name__ = f"{DIVIDED}{axis}"
    return jax.jit(same)(array)


def add_together(sums: T, like: T) -> T:
    """Return arrays of which those that are partial sums are added over devices in one message.

    Args:
        sums: arrays, such as a gradient.
        like: a tree of the same structure, such as the parameters: where one is divided over devices, its sum is, too.
    """
    if _TRACED.get() is None:
        return sums

    def same(sums: T, like: T) -> T:
        return sums

    same.__name__ = ADDED_TOGETHER
    return jax.jit(same)(sums, like)


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
    functions_of_trace = _TRACED.get()
    if functions_of_trace is None:
        return call(None, list(rows), list(others))

    def whole(rows: list[Array], others: list[Array]) -> tuple[PyTree, PyTree]:
        return call(None, rows, others)

    whole.__name__ = f"{PREFIX}{len(functions_of_trace.by_name)}"
    sums, _ = jax.eval_shape(whole, list(rows), list(others))
    shapes = [jnp.shape(operand) for operand in (*rows, *others)]
    functions_of_trace.by_name[whole.__name__] = RowFunction(
        call, len(rows), len(jax.tree.leaves(sums)), adds_entries, shapes
    )
    return jax.jit(whole)(list(rows), list(others))
