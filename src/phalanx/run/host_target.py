"""Target on the host, for warm-up: an order of coordinates that is the same on every mesh, and the log density."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from phalanx.adaptation.stuck_chains import HostTarget
from phalanx.mesh.position import Vector
from phalanx.run.device.blocks import Blocks
from phalanx.run.engine import Engine

if TYPE_CHECKING:
    from jaxtyping import Float, Int


def host_target_of(engine: Engine) -> HostTarget:
    """Return the target of a run, evaluated by calls from the host in the engine's present coordinates."""
    blocks, numbers = engine.blocks, _coordinate_numbers(engine.blocks)
    columns = np.argsort(numbers, kind="stable")[np.count_nonzero(numbers < 0) :]
    ends, dtype = (
        np.cumsum(blocks.layout.whole_lengths),
        blocks.layout.dtype,
    )

    def of_chains(rows: Float[np.ndarray, "rows coordinates"]) -> Float[np.ndarray, "rows"]:
        """Return the log density of at most as many positions as there are chains."""
        position = np.zeros((blocks.num_chains, ends[-1]), dtype)
        position[: len(rows), columns] = rows
        vector = Vector(tuple(np.split(position, ends[:-1], axis=1)), blocks.layout)
        return engine.executables.log_density_at(engine.arrays, vector)[: len(rows)]

    def log_density(rows: Float[np.ndarray, "rows coordinates"]) -> Float[np.ndarray, "rows"]:
        count = blocks.num_chains
        return np.concatenate([of_chains(rows[i : i + count]) for i in range(0, len(rows), count)])

    return HostTarget(columns, log_density, int(engine.seed))


def _coordinate_numbers(blocks: Blocks) -> Int[np.ndarray, "padded_coordinates"]:
    """Return the number of each coordinate of a recorded draw in the order of variables; -1 in padded rows.

    Recorded draws have their coordinates by group, within a group by device, and on a device by variable.
    """
    first, numbers = 1, {}
    for name, shape in blocks.layout.whole_shapes.items():
        count = math.prod(shape)
        numbers[name] = np.arange(first, first + count).reshape(shape)
        first += count
    return np.concatenate(blocks.layout.of_whole(numbers, zero=True).parts) - 1
