"""A program's data: arrays become arguments of the compiled blocks, everything else is part of the program.

A whole number, a string or a flag may decide a shape or a branch, so it is compiled in; arrays and real numbers are
passed, so that other values of the same shape need no new compilation.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax import Array, ShapeDtypeStruct
from jax.core import Tracer

from phalanx.mesh.placement import PaddedRows, spread_of
from phalanx.mesh.space import Spread


@dataclass(frozen=True)
class Layout:
    """How a program's keyword arguments are put together from arrays: hashable, equal for data of one structure."""

    tree: Any
    fixed: tuple[Any, ...]  # what is compiled in, and _ARRAY in the place of each array

    def join(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """The keyword arguments with `arrays` in their places."""
        following = iter(arrays)
        return jax.tree.unflatten(self.tree, [next(following) if x is _ARRAY else x for x in self.fixed])


@dataclass(frozen=True)
class Arguments:
    """A program's keyword arguments, split.

    Attributes:
        layout: the part that is compiled in.
        arrays: the arrays, padded where they are sharded unevenly.
        spreads: where each array lives.
        names: what to call each array in messages, e.g. `x` or `batch['x']`.
    """

    layout: Layout
    arrays: tuple[Any, ...]
    spreads: tuple[Spread, ...]
    names: tuple[str, ...]

    def whole_shapes(self) -> tuple[ShapeDtypeStruct, ...]:
        """Shapes as the user knows them: all rows, no padding."""
        return tuple(
            ShapeDtypeStruct((s.rows, *a.shape[1:]) if s.axes else a.shape, a.dtype)
            for a, s in zip(self.arrays, self.spreads, strict=True)
        )

    def local_shapes(self) -> tuple[ShapeDtypeStruct, ...]:
        """Shapes as one device sees them."""
        return tuple(
            ShapeDtypeStruct((s.local_rows, *a.shape[1:]) if s.axes else a.shape, a.dtype)
            for a, s in zip(self.arrays, self.spreads, strict=True)
        )

    def without_arrays(self) -> Arguments:
        """The same arguments with only shapes for arrays: what may be kept without keeping the data alive."""
        return replace(self, arrays=tuple(ShapeDtypeStruct(a.shape, a.dtype) for a in self.arrays))


class _Array:
    def __repr__(self) -> str:
        return "<array>"


_ARRAY = _Array()


def split_arguments(program: Any, data: Mapping[str, Any]) -> Arguments:
    """Split `data`, the keyword arguments of `program`.

    Raises:
        TypeError: when `data` is no dict, the program does not take these arguments, or one can neither be computed
            with nor be part of a compiled program.
        ValueError: when an array is empty.
    """
    if not isinstance(data, Mapping):
        raise TypeError(
            f"data must be a dict of the model's keyword arguments, such as {{'x': x, 'y': y}}; "
            f"got {type(data).__name__}."
        )
    _check_signature(program, data)
    paths, tree = jax.tree_util.tree_flatten_with_path(
        dict(data), is_leaf=lambda x: isinstance(x, PaddedRows) or x is None
    )
    leaves = [_as_argument(_name(path), leaf) for path, leaf in paths]
    is_array = [isinstance(leaf, Array | np.ndarray | PaddedRows) for leaf in leaves]
    names = tuple(_name(path) for (path, _), array in zip(paths, is_array, strict=True) if array)
    kept = [leaf for leaf, array in zip(leaves, is_array, strict=True) if array]
    for name, leaf in zip(names, kept, strict=True):
        if 0 in leaf.shape:
            raise ValueError(f"data: {name} has shape {leaf.shape}: it is empty. Give it at least one row.")
    fixed = tuple(_ARRAY if array else leaf for leaf, array in zip(leaves, is_array, strict=True))
    arrays = tuple(leaf.array if isinstance(leaf, PaddedRows) else leaf for leaf in kept)
    return Arguments(Layout(tree, fixed), arrays, tuple(spread_of(leaf) for leaf in kept), names)


def check_not_deleted(names: Sequence[str], arrays: Sequence[Any]) -> None:
    """Refuse arrays whose numbers are gone."""
    for name, leaf in zip(names, arrays, strict=True):
        array = leaf.array if isinstance(leaf, PaddedRows) else leaf
        if isinstance(array, Array) and not isinstance(array, Tracer) and array.is_deleted():
            raise ValueError(
                f"data: {name} has been deleted, by its delete() or because it was donated to a jitted function "
                f"(donate_argnums). Give an array that is still there, such as a NumPy copy made before."
            )


def _as_argument(name: str, leaf: Any) -> Any:
    """`leaf` as an array to be passed, or as it is, to be compiled in."""
    if isinstance(leaf, float | np.generic):
        leaf = np.asarray(leaf)
    if isinstance(leaf, np.ndarray):
        if leaf.dtype.kind in "OUSmMV":
            raise TypeError(
                f"data: {name} is an array of {leaf.dtype}, which cannot be computed with; encode it as numbers."
            )
        return np.asarray(leaf, jax.dtypes.canonicalize_dtype(leaf.dtype))
    if isinstance(leaf, Array | PaddedRows):
        check_not_deleted([name], [leaf])
    else:
        try:
            hash(leaf)
        except TypeError:
            raise TypeError(
                f"data: {name} is a {type(leaf).__name__}, which cannot be part of a compiled program; give arrays, "
                f"numbers, strings or functions."
            ) from None
    return leaf


def _name(path: tuple[Any, ...]) -> str:
    head, *rest = path
    return f"{head.key}{jax.tree_util.keystr(tuple(rest))}"


def _check_signature(program: Any, data: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(program)
    except (TypeError, ValueError):  # built-ins and some callables show none
        return
    try:
        signature.bind(**data)
    except TypeError as error:
        raise TypeError(
            f"data does not fit the model {getattr(program, '__name__', program)}{signature}: {error}. "
            f"data gives {', '.join(map(repr, data)) or 'nothing'}."
        ) from None
