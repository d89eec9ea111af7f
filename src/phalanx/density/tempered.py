r"""Target whose likelihood has a power, the last of its arrays: $\pi_\beta(u) \propto p(u)\, p(y \mid u)^\beta$.

The power is an argument of compiled programs, so that one program serves all temperatures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from phalanx.density.density import Density
from phalanx.density.target import Target
from phalanx.mesh.processes import to_devices


class Tempered(Target):
    """Target of a model with a power of its likelihood, which follows the arrays of the data."""

    def on_device(self, arrays: Sequence[Array], lanes: int = 1) -> Density:
        """Return the density on one device; without the power it is that of the model."""
        count = len(self.arguments.shardings)
        temperature = arrays[count] if len(arrays) > count else None
        return replace(super().on_device(arrays[:count], lanes), temperature=temperature)

    def array_specs(self) -> tuple[PartitionSpec, ...]:
        """Return the partition of each array of the data, and of the power."""
        return (*super().array_specs(), PartitionSpec())

    def place_arrays(self) -> tuple[Array, ...]:
        """Return the data's arrays on the mesh, without a power."""
        return tuple(
            to_devices(array, NamedSharding(self.mesh, sharding.spec()))
            for array, sharding in zip(self.arguments.arrays, self.arguments.shardings, strict=True)
        )

    def untempered(self) -> Target:
        """Return the target of the model itself."""
        other = Target.__new__(Target)
        vars(other).update(vars(self))
        return other
