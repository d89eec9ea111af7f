"""Cache of small arguments of compiled blocks on the devices, by value.

Placing a number on every device takes a tenth of a millisecond, as long as a block of warm-up.
"""

from __future__ import annotations

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from phalanx.mesh.processes import to_devices
from phalanx.mesh.specs import PyTree
from phalanx.run.compile.lru_cache import Recent

MOST, LARGEST = 1024, 4096
"""Maximal number of arrays in the cache, and maximal bytes of one."""


class DeviceConstants:
    """Cache of arrays on the devices of a mesh, by value."""

    def __init__(self, mesh: Mesh):
        self._mesh = mesh
        self._known: Recent[np.ndarray | Array] = Recent(MOST)

    def __call__(self, values: PyTree, spec: PartitionSpec) -> PyTree:
        """Return a tree of small arrays as arguments of a block, sharded by `spec`; JAX arrays are unchanged.

        A value is placed on the devices at its second use. At the first use the call of the block transfers it, which
        is faster: most step sizes are used once. With several processes every value is placed at once.
        """
        return jax.tree.map(lambda value: value if isinstance(value, Array) else self.array(value, spec), values)

    def array(self, value: ArrayLike, spec: PartitionSpec) -> np.ndarray | Array:
        """Return one array as an argument of a block."""
        value = np.asarray(value)
        key = spec, value.dtype.char, value.shape, value.tobytes()
        known = self._known.look_up(key)
        if isinstance(known, Array):
            return known
        if known is not None or jax.process_count() > 1:
            value = to_devices(value, NamedSharding(self._mesh, spec))
        if value.nbytes <= LARGEST:
            self._known.keep(key, value)
        return value
