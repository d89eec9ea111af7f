"""Placement of data on devices: `shard` gives each device its rows, and pads rows that do not divide evenly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.core
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from phalanx.inputs.axis_names import Axis
from phalanx.inputs.dataframe_input import Labels, Levels, as_named_array, axes_of, columns_of, is_data
from phalanx.inputs.dtype_checks import to_jax_dtype
from phalanx.mesh.devices import with_auto_axes
from phalanx.mesh.row_sharding import RowSharding
from phalanx.mesh.specs import PyTree


@dataclass(frozen=True)
class PaddedRows:
    """Rows on devices that are padded with copies of the last one to divide evenly, or that have names.

    Attributes:
        array: the padded array, sharded along its leading dimension.
        rows: number of real rows.
        labels: the names of levels or columns that the rows came with.
        axes: names of the axes; empty if they have none.
    """

    array: Array
    rows: int
    labels: Labels = ()
    axes: tuple[Axis, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array without padding."""
        return (self.rows, *self.array.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        """Type of the elements."""
        return self.array.dtype

    @property
    def sharding(self) -> NamedSharding:
        """Sharding of the padded array."""
        return self.array.sharding  # pyright: ignore[reportReturnType]  # `shard` makes no other kind

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.asarray(self.array, dtype=dtype)[: self.rows]

    def __len__(self) -> int:
        return self.rows


jax.tree_util.register_dataclass(PaddedRows, data_fields=["array"], meta_fields=["rows", "labels", "axes"])


def shard(tree: PyTree, mesh: Mesh, axis: str | Sequence[str] = "data") -> PyTree:
    """Shard the rows (leading dimension) of every array in `tree` over a mesh axis.

    Each device is given its own rows only, so a memory-mapped array may be larger than a device. Rows that do not
    divide evenly are padded by repeating the last one; a run masks the padded rows out of the log density and drops
    them from every output, so the posterior is that of the real rows.

    Args:
        tree: a pytree of arrays of shape `(rows, ...)`, or of series, tables, tensors and lists of numbers, which
            become arrays; a table by itself becomes a dict of its columns.
        mesh: the devices, from `phx.make_mesh`.
        axis: the mesh axis to shard over, or several.

    Returns:
        The tree with each array as a sharded `jax.Array`, or as `PaddedRows` if rows do not divide evenly, or levels,
        columns or axes have names, which are kept.

    Raises:
        ValueError: when the mesh lacks the axis, an array has no rows, or a number does not fit 32 bits.
        TypeError: when it contains something other than numbers.

    Example:
        >>> import numpy as np, phalanx as phx
        >>> mesh = phx.make_mesh(chain=1)
        >>> phx.shard({"x": np.ones((6, 2))}, mesh)["x"].shape
        (6, 2)
    """
    if not isinstance(mesh, Mesh):
        raise TypeError(f"shard: mesh must be made by phx.make_mesh; got {mesh!r}.")
    if not isinstance(axis, str | Sequence) or not all(isinstance(name, str) for name in axis):
        raise TypeError(f"shard: axis must be the name of a mesh axis, such as 'data', or several; got {axis!r}.")
    mesh = with_auto_axes(mesh)
    axes = (axis,) if isinstance(axis, str) else tuple(axis)
    for name in axes:
        if name not in mesh.axis_names:
            raise ValueError(f"shard: the mesh has no axis {name!r}; its axes are {', '.join(mesh.axis_names)}.")
    axes = tuple(name for name in mesh.axis_names if name in axes)  # rows of several arrays then meet on a device

    def place(path, leaf):
        where = jax.tree_util.keystr(path) or "the array"
        check_alive(f"shard: {where}", leaf)
        axes_of_leaf = axes_of(leaf)
        leaf, labels = as_named_array(f"shard: {name_of(path) or where}", leaf)
        if np.ndim(leaf) == 0:
            raise ValueError(f"shard: {where} is a single number and has no rows to shard over {axis!r}.")
        if np.shape(leaf)[0] == 0:
            raise ValueError(f"shard: {where} has shape {np.shape(leaf)}: there are no rows to shard over {axis!r}.")
        shards = _place(f"shard: {name_of(path) or where}", leaf, mesh, axes)
        if not isinstance(labels, Levels) and np.ndim(leaf) == 1:  # names of rows are dropped: there may be many
            labels = ()
        axes_of_array = tuple(
            axis._replace(labels=axis.labels if number else None) for number, axis in enumerate(axes_of_leaf)
        )
        array = shards.array if isinstance(shards, PaddedRows) else shards
        return PaddedRows(array, shards.shape[0], labels, axes_of_array) if labels or axes_of_array else shards

    columns = columns_of(tree)
    tree = tree if columns is None else dict(columns)
    return jax.tree_util.tree_map_with_path(place, tree, is_leaf=is_data)


def name_of(path: tuple[Any, ...]) -> str:
    """Return the name of a leaf of the data in messages: `x`, or `batch['x']`."""
    if not path:
        return ""
    head, *rest = path
    return f"{getattr(head, 'key', jax.tree_util.keystr((head,)))}{jax.tree_util.keystr(tuple(rest))}"


def check_alive(name: str, leaf: object) -> None:
    """Raise if an array was deleted or donated."""
    if isinstance(leaf, Array) and not isinstance(leaf, jax.core.Tracer) and leaf.is_deleted():
        raise ValueError(
            f"{name} has been deleted, as jax.jit(..., donate_argnums=...) and .delete() do. Make it again, or copy it "
            f"before, with jnp.copy."
        )


def sharding_of(leaf: Any) -> RowSharding:
    """Return the axes that the leading dimension of a data leaf is sharded over; none for global data."""
    rows = leaf.rows if isinstance(leaf, PaddedRows) else None
    array = leaf.array if isinstance(leaf, PaddedRows) else leaf
    sharding = getattr(array, "sharding", None)
    if not isinstance(sharding, NamedSharding) or not sharding.spec or sharding.spec[0] is None:
        return RowSharding()
    names = (sharding.spec[0],) if isinstance(sharding.spec[0], str) else sharding.spec[0]
    # In the order of the mesh, so that arrays over the same axes have the same rows on a device.
    axes = tuple(a for a in sharding.mesh.axis_names if a in names and sharding.mesh.shape[a] > 1)
    if not axes:
        return RowSharding()
    devices = math.prod(sharding.mesh.shape[a] for a in axes)
    return RowSharding(axes, array.shape[0] if rows is None else rows, array.shape[0] // devices)


def mesh_of(tree: PyTree) -> Mesh | None:
    """Return the mesh that `shard` placed the arrays of `tree` on; None if they are not on a mesh."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(sharding := getattr(leaf, "sharding", None), NamedSharding):
            return sharding.mesh  # pyright: ignore[reportReturnType]  # concrete outside of tracing
    return None


def _place(name: str, leaf: Any, mesh: Mesh, axes: tuple[str, ...]) -> Array | PaddedRows:
    rows = np.shape(leaf)[0]
    devices = math.prod(mesh.shape[axis] for axis in axes)
    num_rows = -(-rows // devices) * devices
    sharding = NamedSharding(mesh, PartitionSpec(axes))
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "O":
        to_jax_dtype(name, leaf)  # raises with the first place in all rows, which one piece may not contain

    def rows_of_a_device(index: Any) -> np.ndarray:
        start, stop, _ = index[0].indices(num_rows)
        # A piece at a time: a whole array on disk may not fit into memory.
        piece = to_jax_dtype(name, np.asarray(leaf[start : min(stop, rows)]), start)
        missing = stop - start - len(piece)
        # The last row again, not zeros: a padded row must be valid data (a label, a positive count).
        last = to_jax_dtype(name, np.asarray(leaf[rows - 1 : rows]), rows - 1)
        return np.concatenate([piece, np.repeat(last, missing, axis=0)]) if missing else piece

    array = jax.make_array_from_callback((num_rows, *np.shape(leaf)[1:]), sharding, rows_of_a_device)
    return array if num_rows == rows else PaddedRows(array, rows)
