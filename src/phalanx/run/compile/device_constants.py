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
from phalanx.run.compile.lru_cache import LRUCache

MOST_ARRAYS = 1024
"""Maximal number of arrays in the cache."""

LARGEST_BYTES = 4096
"""Maximal bytes of an array in the cache."""

USES = 2
"""Uses of a value before it is placed: a step size has two, by chains that run ahead and in the round after."""


class DeviceConstants:
    """Cache of arrays on the devices of a mesh, by value."""

    def __init__(self, mesh: Mesh):
        self._mesh = mesh
        self._known: LRUCache[int | Array] = LRUCache(MOST_ARRAYS)  # an array, or its uses so far

    def __call__(self, values: PyTree, spec: PartitionSpec) -> PyTree:
        """Return a tree of small arrays as arguments of a block, sharded by `spec`; JAX arrays are unchanged.

        A value is placed on the devices after `USES` uses. Before, the call of the block transfers it, which takes a
        fraction of the time. With several processes every value is placed at once.
        """
        return jax.tree.map(lambda value: value if isinstance(value, Array) else self.array(value, spec), values)

    def array(self, value: ArrayLike, spec: PartitionSpec) -> np.ndarray | Array:
        """Return one array as an argument of a block."""
        value = np.asarray(value)
        key = spec, value.dtype.char, value.shape, value.tobytes()
        cached = self._known.look_up(key)
        if isinstance(cached, Array):
            return cached
        uses = cached or 0
        sent = value
        if uses >= USES or jax.process_count() > 1:
            sent = to_devices(value, NamedSharding(self._mesh, spec))
        if value.nbytes <= LARGEST_BYTES:
            self._known.keep(key, sent if isinstance(sent, Array) else uses + 1)
        return sent
