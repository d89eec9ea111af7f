"""Functions of whole arrays, evaluated on the rows that one device of a mesh has."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, ShapeDtypeStruct, lax
from jax.sharding import AbstractMesh, use_abstract_mesh

from phalanx.mesh.row_sharding import GLOBAL, RowSharding
from phalanx.mesh.specs import PyTree
from phalanx.placements.mesh_axis import AxisName, MeshAxis, Record
from phalanx.placements.placement import PARTIAL, REPLICATED, Placement
from phalanx.placements.program import Message, PlacedProgram
from phalanx.placements.row_functions import row_functions


@dataclass(frozen=True)
class DeviceRows:
    """Evaluation of functions of whole arrays on one device's rows.

    Attributes:
        sizes: devices along each mesh axis that a program may name: all but that of the chains.
        shardings: all shardings of data and positions. Axes that always divide rows together are taken as one.

    Example:
        >>> import jax.numpy as jnp
        >>> from phalanx.mesh.row_sharding import GLOBAL, RowSharding
        >>> from phalanx.placements import DeviceRows
        >>> rows = RowSharding(("data",), rows=3, local_rows=2)
        >>> on_device = DeviceRows({"data": 2}, frozenset({rows}))
        >>> total = on_device.function(lambda x: (x - x.mean()).max(), (rows,), GLOBAL)
        >>> total  # doctest: +ELLIPSIS
        <function ...>
    """

    sizes: Mapping[str, int]
    shardings: frozenset[RowSharding]

    @cached_property
    def axes(self) -> dict[AxisName, int]:
        """Number of devices by mesh axis that divides rows.

        Axes that divide rows only together are one entry, named by all of them. If no axis divides rows, all axes with
        several devices are there.
        """
        together = {self._several(sharding) for sharding in self.shardings} - {()}
        single_axes = list(itertools.chain.from_iterable(together))
        if len(set(single_axes)) < len(single_axes):  # an axis also divides rows by itself
            together = {(axis,) for axis in single_axes}
        if not together:  # a program with collectives of its own
            together = {(axis,) for axis, size in self.sizes.items() if size > 1}
        return {axis_name(axes): math.prod(self.sizes[axis] for axis in axes) for axes in sorted(together)}

    def function(
        self, f: Callable[..., PyTree], inputs: tuple[PyTree, ...], outputs: PyTree, record: list[Message] | None = None
    ) -> Callable[..., PyTree]:
        """Return `f` as a function of one device's rows, for use under `shard_map`.

        Args:
            f: a function of trees of whole arrays.
            inputs: the sharding of the arrays of each argument, as a tree of `RowSharding` or one for all.
            outputs: the same for the result.
            record: gets the messages of an evaluation.
        """

        def on_device(*args: PyTree) -> PyTree:
            program = self._trace(f, inputs, args)
            program_of_device = self._placed(program, self._divided(_like(outputs, program.result)))
            results = program_of_device(*self._entered(program.shardings, jax.tree.leaves(args), record))
            if record is not None:
                record.extend(program_of_device.messages)
            return jax.tree.unflatten(jax.tree.structure(program.result), results)

        return on_device

    def inspect(self, f: Callable[..., PyTree], inputs: tuple[PyTree, ...], *shapes: PyTree) -> Inspection:
        """Return the placements that the results of `f` have by themselves, given shapes of a device's arguments."""
        program = self._trace(f, inputs, shapes)
        all_placements: list[Mapping[AxisName, Placement]] = []
        nowhere = [{} for _ in jax.tree.leaves(program.result)]
        program_of_device = self._placed(program, nowhere)

        def evaluate(*arrays: Array) -> None:
            all_placements.extend(program_of_device.own_placements(*self._entered(program.shardings, arrays)))

        jax.make_jaxpr(evaluate, axis_env=list(self.sizes.items()))(*jax.tree.leaves(shapes))
        tree = jax.tree.structure(program.result)
        shardings = map(self._leading, jax.tree.leaves(program.result), all_placements)
        is_sum = (PARTIAL in placements.values() for placements in all_placements)
        return Inspection(tree.unflatten(shardings), tree.unflatten(is_sum), program_of_device.messages)

    def with_last_row(self, values: PyTree, shardings: PyTree, record: list[Message] | None = None) -> PyTree:
        """Return arrays of a device with copies of the last row of the whole in the place of padded rows.

        A device without rows of its own gets the last one by a message, which `record` gets.
        """

        def filled(array: Array, sharding: RowSharding) -> Array:
            name = axis_name(self._several(sharding))
            if name not in self.axes:
                return array
            return MeshAxis(name, self.axes[name], _recorder(record)).repeat_last(array, 0, sharding.rows)

        leaves, tree = jax.tree.flatten(values)
        return tree.unflatten(map(filled, leaves, _like(shardings, values)))

    def _trace(self, f: Callable[..., PyTree], inputs: tuple[PyTree, ...], args: tuple[PyTree, ...]) -> _Traced:
        shardings = _like(inputs, args)
        leaves, tree = jax.tree.flatten(args)
        whole = [
            ShapeDtypeStruct(sharding.whole_shape(np.shape(leaf)), leaf.dtype)
            for leaf, sharding in zip(leaves, shardings, strict=True)
        ]
        return _Traced(*traced_on_whole(f, tree.unflatten(whole), self.sizes, max(self.axes.values())), shardings)

    def _placed(self, program: _Traced, outputs: list[dict[AxisName, int]]) -> PlacedProgram:
        inputs = self._divided(program.shardings)
        return PlacedProgram(program.jaxpr, inputs, outputs, self.axes, self.sizes, program.functions)

    def _divided(self, shardings: list[RowSharding]) -> list[dict[AxisName, int]]:
        names = [axis_name(self._several(sharding)) for sharding in shardings]
        return [{name: 0} if name in self.axes else {} for name in names]

    def _entered(self, shardings: list[RowSharding], arrays: Any, record: list[Message] | None = None) -> list[Array]:
        """Return a device's arguments; rows over axes that are not taken together are gathered."""

        def gathered(array: Array, sharding: RowSharding) -> Array:
            axes = self._several(sharding)
            if not axes or axis_name(axes) in self.axes:
                return array
            whole = lax.all_gather(array, axes, tiled=True)
            _recorder(record)("all-gather", axes, whole, 1)
            return whole[: sharding.rows]

        return list(map(gathered, arrays, shardings))

    def _leading(self, shape: ShapeDtypeStruct, placements: Mapping[AxisName, Placement]) -> RowSharding:
        """Return the sharding of a result along its first dimension; replicated if it is divided otherwise."""
        sharded_dims = {axis: at for axis, at in placements.items() if at != REPLICATED}
        if list(sharded_dims.values()) != [0]:
            return GLOBAL
        (axis,) = sharded_dims
        rows = shape.shape[0]
        return RowSharding(axis if isinstance(axis, tuple) else (axis,), rows, -(-rows // self.axes[axis]))

    def _several(self, sharding: RowSharding) -> tuple[str, ...]:
        """Return the axes of a sharding that have several devices."""
        return tuple(axis for axis in sharding.axes if self.sizes[axis] > 1)


class Inspection(NamedTuple):
    """Results of a function of rows before any is moved.

    Attributes:
        shardings: their shardings, in the structure of the result; replicated if they have no rows of their own.
        is_sum: whether each is a sum of what the devices compute.
        messages: the messages of an evaluation, and the rows that are selected by their numbers.
    """

    shardings: PyTree
    is_sum: PyTree
    messages: list[Message]


@dataclass(frozen=True)
class _Traced:
    """A function traced on whole arrays, with the shardings of its arguments."""

    jaxpr: Any
    result: PyTree
    functions: dict[str, Any]
    shardings: list[RowSharding]


def traced_on_whole(
    f: Callable[..., PyTree], arguments: tuple[PyTree, ...], names: Iterable[str], devices: int
) -> tuple[Any, PyTree, dict[str, Any]]:
    """Return the program of `f` on whole arrays, the shapes of its result, and the functions of rows that it calls.

    Args:
        f: a function of trees of arrays.
        arguments: their shapes.
        names: mesh axes that it may name, of one device each.
        devices: the largest number of devices that rows are sharded over.
    """
    axis_env = [(name, 1) for name in names]
    with row_functions(devices) as functions, use_abstract_mesh(AbstractMesh((), ())):
        program, result = jax.make_jaxpr(f, axis_env=axis_env, return_shape=True)(*arguments)
    return program, result, functions.by_name


def _recorder(messages: list[Message] | None) -> Record:
    """Return a function that enters the messages of a program's inputs into a list."""

    def enter(collective: str, axis: AxisName, array: Array, copies: int) -> None:
        if messages is not None:
            messages.append(Message(collective, axis, array.size * array.dtype.itemsize * copies, "input", None))

    return enter


def axis_name(axes: tuple[str, ...]) -> AxisName:
    """Return the name of several mesh axes that are taken together."""
    return axes[0] if len(axes) == 1 else axes


def _like(shardings: PyTree, tree: PyTree) -> list[RowSharding]:
    """Return a sharding for each array of a tree."""
    return jax.tree.leaves(jax.tree.broadcast(shardings, tree), is_leaf=lambda node: isinstance(node, RowSharding))
