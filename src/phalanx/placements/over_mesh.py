"""Functions of whole arrays that lie on a mesh, evaluated on each device's parts of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from phalanx.mesh.devices import axes_but_chain
from phalanx.mesh.specs import PyTree, axes_within
from phalanx.placements.device_rows import axis_name, traced_on_whole
from phalanx.placements.mesh_axis import AxisName
from phalanx.placements.program import Message, PlacedProgram


def over_mesh(
    f: Callable[..., PyTree],
    mesh: Mesh,
    arguments: tuple[PyTree, ...],
    results: Callable[[PyTree], PyTree] | None = None,
    record: list[Message] | None = None,
) -> Callable[..., PyTree]:
    """Return `f` as a function of arrays on a mesh, whose devices communicate by the rules of placements alone.

    Args:
        f: a function of trees of whole arrays; `divide` shards in it work that every device would repeat.
        mesh: the devices.
        arguments: trees of arrays, or of shapes with a sharding, like those that it will be called with; what has no
            sharding on the mesh is replicated.
        results: returns the shardings of the result, a tree of `NamedSharding` or one for all, given its shapes; None
            if it is replicated.
        record: gets the messages of an evaluation.

    Example:
        >>> import jax, numpy as np
        >>> from jax.sharding import NamedSharding, PartitionSpec
        >>> import phalanx as phx
        >>> from phalanx.placements import over_mesh
        >>> mesh = phx.make_mesh(chain=1, data=2, devices=jax.devices()[:2])
        >>> x = jax.device_put(np.arange(4.0, dtype=np.float32), NamedSharding(mesh, PartitionSpec("data")))
        >>> float(jax.jit(over_mesh(lambda x: (x - x.mean()).max(), mesh, (x,)))(x))
        1.5
    """
    if mesh.size == 1:
        return f
    leaves, tree = jax.tree.flatten(arguments)
    specs = [_spec_of(leaf, mesh) for leaf in leaves]

    def on_mesh(*args: PyTree) -> PyTree:
        operands = tree.flatten_up_to(args)
        shapes = tree.unflatten([jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in map(jax.typeof, operands)])
        program, result, functions = traced_on_whole(f, shapes, axes_but_chain(mesh), mesh.size)
        result_specs = _specs_of_results(results, result, mesh)
        axes = _axes_that_divide([*specs, *result_specs], mesh)
        inputs = [_dims(spec, axes) for spec in specs]
        outputs = [_dims(spec, axes) for spec in result_specs]

        def on_device(*local: Array) -> list[Array]:
            program_of_device = PlacedProgram(program, inputs, outputs, axes, axes_but_chain(mesh), functions)
            outputs_everywhere = program_of_device(
                *(_gathered(x, spec, axes) for x, spec in zip(local, specs, strict=True))
            )
            if record is not None:
                record[:] = program_of_device.messages
            return [_own_part(x, spec, axes) for x, spec in zip(outputs_everywhere, result_specs, strict=True)]

        run = jax.shard_map(on_device, mesh=mesh, in_specs=tuple(specs), out_specs=result_specs, check_vma=False)
        return jax.tree.unflatten(jax.tree.structure(result), run(*operands))

    return on_mesh


def _spec_of(leaf: Any, mesh: Mesh) -> PartitionSpec:
    """Return the partition of an array over the axes of several devices."""
    sharding = getattr(leaf, "sharding", None)
    return _of_several(sharding.spec, mesh) if isinstance(sharding, NamedSharding) else PartitionSpec()


def _of_several(spec: PartitionSpec, mesh: Mesh) -> PartitionSpec:
    return PartitionSpec(*(tuple(axis for axis in axes_within(part) if mesh.shape[axis] > 1) for part in spec))


def _axes_that_divide(specs: list[PartitionSpec], mesh: Mesh) -> dict[AxisName, int]:
    """Return the devices along each axis, or along several that always divide arrays together."""
    together = {axes_within(part) for spec in specs for part in spec} - {()}
    single_axes = list(itertools.chain.from_iterable(together))
    if len(set(single_axes)) < len(single_axes):  # an axis also divides arrays by itself
        together = {(axis,) for axis in single_axes}
    together |= {(axis,) for axis, size in mesh.shape.items() if size > 1 and axis not in single_axes}
    return {axis_name(axes): math.prod(mesh.shape[axis] for axis in axes) for axes in sorted(together)}


def _dims(spec: PartitionSpec, axes: Mapping[AxisName, int]) -> dict[AxisName, int]:
    """Return the dimension that each axis divides; of several axes that are not taken together, the first."""
    dims: dict[AxisName, int] = {}
    for dim, mesh_axes in _divided(spec):
        dims[axis_name(mesh_axes) if axis_name(mesh_axes) in axes else mesh_axes[0]] = dim
    return dims


def _divided(spec: PartitionSpec) -> list[tuple[int, tuple[str, ...]]]:
    """Return the dimensions that are divided, with the mesh axes that divide them."""
    return [(dim, axes_within(part)) for dim, part in enumerate(spec) if axes_within(part)]


def _gathered(array: Array, spec: PartitionSpec, axes: Mapping[AxisName, int]) -> Array:
    """Return a device's argument, gathered over all but the first of axes that are not taken together."""
    for dim, mesh_axes in _divided(spec):
        if axis_name(mesh_axes) not in axes:
            array = lax.all_gather(array, mesh_axes[1:], axis=dim, tiled=True)
    return array


def _own_part(array: Array, spec: PartitionSpec, axes: Mapping[AxisName, int]) -> Array:
    """Return a device's part of a result that the first of several axes has divided: the inverse of `_gathered`."""
    for dim, mesh_axes in _divided(spec):
        if axis_name(mesh_axes) not in axes:
            size = array.shape[dim] // math.prod(axes[axis] for axis in mesh_axes[1:])
            array = lax.dynamic_slice_in_dim(array, lax.axis_index(mesh_axes[1:]) * size, size, dim)
    return array


def _specs_of_results(results: Callable[[PyTree], PyTree] | None, shapes: PyTree, mesh: Mesh) -> list[PartitionSpec]:
    """Return the partition of each array of a result."""
    if results is None:
        return [PartitionSpec()] * len(jax.tree.leaves(shapes))
    shardings = jax.tree.leaves(jax.tree.broadcast(results(shapes), shapes))
    return [_of_several(sharding.spec, mesh) for sharding in shardings]
