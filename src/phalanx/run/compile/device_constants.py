"""Small arguments of compiled blocks: what was sent to the devices before is not sent again.

To place a number on every device takes a tenth of a millisecond, and a block of warm-up takes as long.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from phalanx.mesh.processes import to_devices
from phalanx.run.compile.lru_cache import Recent

MOST, LARGEST = 1024, 4096
"""Arrays remembered, and bytes of one: larger ones are sent each time."""


class Sent:
    """Arrays that have been sent to the devices of a mesh, by value."""

    def __init__(self, mesh: Mesh):
        self._mesh = mesh
        self._known: Recent[np.ndarray | Array] = Recent(MOST)

    def __call__(self, values: Any, spec: PartitionSpec) -> Any:
        """A tree of small arrays as compiled blocks take them, laid out as `spec` says; JAX's own stay as they are.

        A value is placed on the devices when it is asked for again. A new one is sent by the block itself, which takes
        less time: most step sizes are never seen again. Several processes place what they send.
        """
        return jax.tree.map(lambda value: value if isinstance(value, Array) else self.array(value, spec), values)

    def array(self, value: Any, spec: PartitionSpec) -> np.ndarray | Array:
        """One of them."""
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
