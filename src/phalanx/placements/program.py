"""Program traced on whole arrays, as a function of one device's parts of its inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr
from jax.typing import ArrayLike

from phalanx.jaxprs.source_lines import SourceLine
from phalanx.jaxprs.walking import aval_of
from phalanx.placements.control_flow import ProgramInterpreter
from phalanx.placements.mesh_axis import BY_NUMBER, AxisName, PerAxis
from phalanx.placements.placement import REPLICATED, PlacedValue, Placement, Placements, is_sharded
from phalanx.placements.row_functions import RowFunction


class Message(NamedTuple):
    """Communication of one evaluation along one mesh axis.

    Attributes:
        collective: "all-reduce", "all-gather" or "reduce-scatter".
        axis: the mesh axis, or several taken together.
        nbytes: bytes that a device sends or receives, times the turns of the loops around it.
        primitive: the primitive that needed it; "result" for the sum at the end.
        line: the line of the user's program; None for a library's own operation.
    """

    collective: str
    axis: AxisName
    nbytes: int
    primitive: str
    line: SourceLine | None


class PlacedProgram:
    """Program traced on whole arrays, evaluated on one device's parts of them.

    Value and gradient are traced together, as `jax.value_and_grad` gives them: the gradient of a replicated parameter
    comes out as a partial sum, and is added with the value in one all-reduce. No collective is ever differentiated.

    Args:
        program: the closed jaxpr, over whole arrays.
        inputs: for each input the dimensions along which mesh axes divide it, as `{"data": 0}`; `{}` if replicated.
        outputs: the same for each output.
        sizes: number of devices along each mesh axis, or along several taken together.
        names: mesh axes whose names the program may use, in collectives of its own; it is traced as on one device.
        functions: functions of rows that the program calls by name; see `row_functions`.

    Raises:
        ValueError: if an input is divided along an axis that `sizes` lacks, or along a dimension that it lacks.

    Example:
        >>> import jax, numpy as np
        >>> from jax.sharding import AxisType, PartitionSpec
        >>> from phalanx.placements import PlacedProgram, pad_rows
        >>> x = np.arange(3.0, dtype=np.float32)
        >>> program = jax.make_jaxpr(lambda x: (x - x.mean()) ** 2)(x)
        >>> placed = PlacedProgram(program, [{"data": 0}], [{"data": 0}], {"data": 2})
        >>> mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
        >>> specs = {"in_specs": PartitionSpec("data"), "out_specs": PartitionSpec("data"), "check_vma": False}
        >>> run = jax.jit(jax.shard_map(lambda x: placed(x)[0], mesh=mesh, **specs))
        >>> run(pad_rows(x, 0, 2))[:3].tolist()
        [1.0, 0.0, 1.0]
    """

    def __init__(
        self,
        program: ClosedJaxpr,
        inputs: Sequence[PerAxis],
        outputs: Sequence[PerAxis],
        sizes: PerAxis,
        names: Collection[str] = (),
        functions: Mapping[str, RowFunction] | None = None,
    ) -> None:
        shapes = [aval_of(variable).shape for variable in program.jaxpr.invars]
        for number, (dim_by_axis, shape) in enumerate(zip(inputs, shapes, strict=True)):
            _check_divided(number, dim_by_axis, shape, sizes)
        self.program = program
        self.sizes = {axis: size for axis, size in sizes.items() if size > 1}  # an axis of one device sends nothing
        self._names = names
        self._functions = functions
        self._inputs = [self._placements(dim_by_axis) for dim_by_axis in inputs]
        self._outputs = [self._placements(dim_by_axis) for dim_by_axis in outputs]
        self.messages: list[Message] = []
        """Communication of the evaluation traced last."""

    def __call__(self, *arrays: Array) -> list[Array]:
        """Return one device's parts of the outputs, given its parts of the inputs; under `shard_map`."""
        interpreter = ProgramInterpreter(self.sizes, self._names, self._functions)
        parts = interpreter.add(self._evaluate(interpreter, arrays), self._outputs)
        self.messages = [Message(*message) for message in interpreter.messages if message[0] != BY_NUMBER]
        return parts

    def own_placements(self, *arrays: Array) -> list[dict[AxisName, Placement]]:
        """Return the placements that the outputs have before any is moved; under `shard_map`.

        `messages` then include the rows that are selected by their numbers.
        """
        interpreter = ProgramInterpreter(self.sizes, self._names, self._functions)
        outputs = self._evaluate(interpreter, arrays)
        self.messages = [Message(*message) for message in interpreter.messages]
        return [dict(zip(self.sizes, output.placements, strict=True)) for output in outputs]

    def _evaluate(self, interpreter: ProgramInterpreter, arrays: Sequence[Array]) -> list[PlacedValue]:
        avals = [aval_of(variable) for variable in self.program.jaxpr.invars]
        values = [
            PlacedValue(array, placements, aval.shape, aval.dtype)
            for array, placements, aval in zip(arrays, self._inputs, avals, strict=True)
        ]
        return interpreter.run(self.program, values)

    def _placements(self, dim_by_axis: PerAxis) -> Placements:
        return tuple(dim_by_axis.get(axis, REPLICATED) for axis in self.sizes)


def _check_divided(number: int, dim_by_axis: PerAxis, shape: tuple[int, ...], sizes: PerAxis) -> None:
    for axis, dim in dim_by_axis.items():
        if axis not in sizes:
            raise ValueError(f"input {number}: it is divided along {axis!r}; the mesh has {', '.join(map(str, sizes))}")
        if not (is_sharded(dim) and 0 <= dim < len(shape)):
            raise ValueError(f"input {number}: it has shape {shape}, and no dimension {dim} to divide along {axis!r}")
    if len(set(dim_by_axis.values())) < len(dim_by_axis):
        raise ValueError(f"input {number}: several mesh axes divide the same dimension: {dict(dim_by_axis)}")


def pad_rows(array: ArrayLike, dim: int, devices: int) -> np.ndarray:
    """Return an array of NumPy with copies of its last row, so that `devices` divide its rows evenly.

    Args:
        array: whole array of any shape, with at least one row.
        dim: the dimension of the rows.
        devices: number of devices along the mesh axis.

    Returns:
        The array, with a multiple of `devices` rows.

    Example:
        >>> from phalanx.placements import pad_rows
        >>> pad_rows([1, 2, 3], 0, 2).tolist()
        [1, 2, 3, 3]
    """
    rows = np.asarray(array)
    missing = -rows.shape[dim] % devices
    return np.concatenate([rows, np.repeat(np.take(rows, [-1], dim), missing, dim)], dim) if missing else rows
