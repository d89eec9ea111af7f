"""A model and its data on a mesh, as runs, fits and predictions use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from phalanx.inputs.arguments import Arguments
from phalanx.language.tracing import Program
from phalanx.mesh.devices import axes_but_chain
from phalanx.mesh.processes import to_devices
from phalanx.mesh.virtual_mesh import alone

T = TypeVar("T")


@dataclass(eq=False)
class ModelOnMesh:
    """A model, its data, and the mesh that they lie on.

    Attributes:
        program: the model.
        arguments: its keyword arguments.
        mesh: the devices.
    """

    program: Program
    arguments: Arguments
    mesh: Mesh

    @property
    def sizes(self) -> dict[str, int]:
        """Number of devices along each mesh axis but that of the chains."""
        return axes_but_chain(self.mesh)

    def array_specs(self) -> tuple[PartitionSpec, ...]:
        """Return the partition of each array of the data."""
        return tuple(sharding.spec() for sharding in self.arguments.shardings)

    def place_arrays(self) -> tuple[Array, ...]:
        """Return the data's arrays on the mesh: those of `phx.shard` stay where they are, others go to every device."""
        return tuple(
            to_devices(array, NamedSharding(self.mesh, spec))
            for array, spec in zip(self.arguments.arrays, self.array_specs(), strict=True)
        )

    def alone(self, f: Callable[[], T]) -> T:
        """Return `f()` with mesh axes of size one, along which a model's sums over devices return their operand."""
        return alone(f, self.sizes)
