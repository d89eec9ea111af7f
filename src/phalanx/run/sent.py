"""Small arguments of compiled blocks, on the devices: what was sent before is not sent again.

To send a number to every device takes a tenth of a millisecond, and a block of warm-up takes as long.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from phalanx.mesh.processes import to_devices

MOST, LARGEST = 1024, 4096
"""Arrays remembered, and bytes of one; then all are forgotten, and larger ones are sent each time."""


class Sent:
    """Arrays that have been sent to the devices of a mesh, by value."""

    def __init__(self, mesh: Mesh):
        self._mesh = mesh
        self._arrays: dict[Any, Array] = {}

    def __call__(self, values: Any, specs: Any) -> Any:
        """A tree of small arrays on the devices, laid out as `specs` say; what is there already stays as it is."""
        return jax.tree.map(self._array, values, specs)

    def _array(self, value: Any, spec: PartitionSpec) -> Array:
        if isinstance(value, Array):
            return value
        value, layout = np.asarray(value), NamedSharding(self._mesh, spec)
        if value.nbytes > LARGEST:
            return to_devices(value, layout)
        key = spec, value.dtype.str, value.shape, value.tobytes()
        if key not in self._arrays:
            if len(self._arrays) >= MOST:
                self._arrays.clear()
            self._arrays[key] = to_devices(value, layout)
        return self._arrays[key]
