"""The `pmap` idiom on `shard_map`, one slice for each device, and single rows of arrays that are sharded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec

from phalanx.errors.model_errors import model_errors
from phalanx.mesh.compatibility.jax_internals import tracked_axes
from phalanx.mesh.devices import with_auto_axes
from phalanx.mesh.row_sharding import only_rows
from phalanx.mesh.specs import PyTree

if TYPE_CHECKING:
    from jaxtyping import Integer, Shaped

AxisMap = int | str | Sequence[str] | PartitionSpec | None


def spmd(
    f: Callable[..., Any],
    mesh: Mesh,
    in_axes: Any = 0,
    out_axes: Any = 0,
) -> Callable[..., Any]:
    """Run `f` on every device of `mesh` at once, each on its own slice of the arguments.

    `f` sees slices without the mapped leading dimensions, as under `jax.pmap`, and may use collectives over the mesh's
    axes. The types of `jax.shard_map` are checked, so gradients through collectives are right.

    Args:
        f: a function of arrays (or pytrees of arrays).
        mesh: the devices.
        in_axes: a tuple with one entry per argument, or one entry for all: `None`, replicated on every device;
            `"data"`, the leading dimension mapped over that mesh axis; `PartitionSpec("i", "j")`, two leading
            dimensions over two axes; `0`, the leading dimension mapped over all devices.
        out_axes: the same for the output or, as a tuple, for each of several; `None` needs an output that is equal on
            all devices.

    Returns:
        The function of whole arrays, jitted.

    Raises:
        ModelError: a `TypeError` and a `ValueError`, when `f` cannot be traced.
        ValueError: when `in_axes` or `out_axes` has an unknown axis or another length than there are arguments or
            outputs, a leading dimension is not the number of devices, or an output differs along an axis that
            `out_axes` does not name.

    Example:
        >>> import jax, jax.numpy as jnp, phalanx as phx
        >>> mesh = phx.make_mesh(chain=1)
        >>> phx.spmd(lambda x, y: jax.lax.psum(x * y, "data"), mesh, in_axes=("data", None), out_axes=None)(
        ...     jnp.ones(1), 2.0).item()
        2.0
    """
    mesh = with_auto_axes(mesh)

    def mapped(*args):
        ins = _per_argument(in_axes, len(args))
        for position, (arg, axis) in enumerate(zip(args, ins, strict=True)):
            _check(arg, _dims(axis, mesh), mesh, f"argument {position}")

        def on_device(*slices):
            with model_errors(f):
                out = f(*(_strip(s, len(_dims(a, mesh))) for s, a in zip(slices, ins, strict=True)))
            if not isinstance(out_axes, tuple | list):
                _check_equal(out, out_axes, mesh, "the output")
                return _unstrip(out, len(_dims(out_axes, mesh)))
            if not isinstance(out, tuple | list) or len(out) != len(out_axes):
                count = len(out) if isinstance(out, tuple | list) else 1
                raise ValueError(f"spmd: out_axes has {len(out_axes)} entries for {count} output(s): {out_axes!r}.")
            for position, (o, a) in enumerate(zip(out, out_axes, strict=True)):
                _check_equal(o, a, mesh, f"output {position}")
            return tuple(_unstrip(o, len(_dims(a, mesh))) for o, a in zip(out, out_axes, strict=True))

        outs = out_axes if isinstance(out_axes, tuple | list) else (out_axes,)
        specs = tuple(PartitionSpec(*_dims(axis, mesh)) for axis in outs)
        return jax.shard_map(
            on_device,
            mesh=mesh,
            in_specs=tuple(PartitionSpec(*_dims(axis, mesh)) for axis in ins),
            out_specs=specs if isinstance(out_axes, tuple | list) else specs[0],
        )(*args)

    return jax.jit(mapped)


def _per_argument(in_axes: Any, count: int) -> tuple[AxisMap, ...]:
    if not isinstance(in_axes, tuple | list):
        return (in_axes,) * count
    if len(in_axes) != count:
        raise ValueError(f"spmd: in_axes has {len(in_axes)} entries for {count} arguments: {in_axes!r}.")
    return tuple(in_axes)


def _dims(axis: AxisMap, mesh: Mesh) -> tuple[Any, ...]:
    """Return the mesh axes that each mapped leading dimension is sharded over."""
    if axis is None:
        return ()
    if axis == 0:
        return (mesh.axis_names,)
    names = tuple(axis) if isinstance(axis, tuple | list | PartitionSpec) else (axis,)
    for name in names:
        if name not in mesh.axis_names:
            raise ValueError(
                f"spmd: {name!r} is not an axis of the mesh, which has {', '.join(map(repr, mesh.axis_names))}; "
                f"use None, 0 or one of these."
            )
    return names


def _check(arg: PyTree, dims: tuple[Any, ...], mesh: Mesh, what: str) -> None:
    sizes = tuple(mesh.size if isinstance(dim, tuple) else mesh.shape[dim] for dim in dims)
    for leaf in jax.tree.leaves(arg):
        if jax.numpy.shape(leaf)[: len(sizes)] != sizes:
            raise ValueError(
                f"spmd: {what} has shape {jax.numpy.shape(leaf)}, but its leading dimensions {sizes} are mapped over "
                f"devices {dims}: give it one slice per device."
            )


def _check_equal(out: PyTree, axis: AxisMap, mesh: Mesh, what: str) -> None:
    """Raise if an output differs along mesh axes that its entry in `out_axes` does not name."""
    dims = _dims(axis, mesh)
    axes_of_output = {name for dim in dims for name in (dim if isinstance(dim, tuple) else (dim,))}
    for leaf in jax.tree.leaves(out):
        varying = tracked_axes(leaf)
        if differs := sorted(varying - axes_of_output):
            axes = differs[0] if len(differs) == 1 else tuple(differs)
            raise ValueError(
                f"spmd: {what} differs from device to device along {' and '.join(map(repr, differs))}, and its entry "
                f"in out_axes is {axis!r}. Make it one value with jax.lax.psum, pmean or pmax(x, {axes!r}), the last "
                f"also after all_gather, whose result JAX does not know to be equal; or name the axis in out_axes, for "
                f"one value from each device."
            )


def _strip(tree: PyTree, dims: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[(0,) * dims], tree)


def _unstrip(tree: PyTree, dims: int) -> PyTree:
    return jax.tree.map(lambda leaf: jax.numpy.asarray(leaf)[(None,) * dims], tree)


def take_rows(
    values: Shaped[Array, "rows *row"],
    numbers: Sequence[int] | Integer[Array | np.ndarray, "wanted"],
    axis: str | Sequence[str] = "data",
) -> Shaped[Array, "wanted *row"]:
    """Return single rows of an array that is sharded over a mesh axis, replicated on all devices.

    Use it in code of your own under `phx.spmd`, where a sharded array has the rows of one device. In a model and in a
    function of `phx.reduce`, which see all rows, `values[numbers]` is the same.

    Args:
        values: the rows of this device, `(rows, ...)`.
        numbers: indices of the rows in the whole array.
        axis: the mesh axis, or axes, that the rows are sharded over.

    Returns:
        The rows, `(len(numbers), ...)`.

    Raises:
        ValueError: when a number is negative, or beyond the last row. (Traced numbers are not checked: such a row is
            zero.)

    Example:
        >>> import jax.numpy as jnp, phalanx as phx
        >>> mesh = phx.make_mesh(chain=1)
        >>> third = phx.spmd(lambda rows: phx.take_rows(rows, [2]), mesh, in_axes="data", out_axes=None)
        >>> third(jnp.arange(8.0)[None]).tolist()
        [2.0]
    """
    axes = (axis,) if isinstance(axis, str) else tuple(axis)
    rows = values.shape[0]
    count = rows * math.prod(lax.axis_size(name) for name in axes)
    if isinstance(numbers, Sequence) and not all(0 <= number < count for number in numbers):
        raise ValueError(f"phx.take_rows: rows are numbered from 0 to {count - 1}; got {list(numbers)}.")
    local = jnp.asarray(numbers) - lax.axis_index(axes) * rows
    mine = (local >= 0) & (local < rows)
    rows_here = values[jnp.clip(local, 0, rows - 1)]
    return lax.psum(only_rows(mine, rows_here), axes).astype(values.dtype)
