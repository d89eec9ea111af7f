"""The target as warm-up sees it from the host: coordinates in one order on every mesh, and the log density of any."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jax import Array

from phalanx.adaptation.stuck_chains import HostTarget
from phalanx.mesh.position import Vector
from phalanx.run.device.blocks import Blocks
from phalanx.run.device.executables import Executables


def host_target_of(executables: Executables, arrays: Sequence[Array], seed: int) -> HostTarget:
    """Return the target of a run on some data, as the host evaluates it."""
    blocks, numbers = executables.blocks, _coordinate_numbers(executables.blocks)
    columns = np.argsort(numbers, kind="stable")[np.count_nonzero(numbers < 0) :]
    ends, dtype = (
        np.cumsum(blocks.layout.whole_lengths),
        blocks.layout.dtype,
    )

    def of_chains(rows: np.ndarray) -> np.ndarray:
        """One row in the place of each chain; in the places of the last there may be none."""
        position = np.zeros((blocks.num_chains, ends[-1]), dtype)
        position[: len(rows), columns] = rows
        vector = Vector(tuple(np.split(position, ends[:-1], axis=1)), blocks.layout)
        return executables.height(arrays, vector)[: len(rows)]

    def log_density(rows: np.ndarray) -> np.ndarray:
        count = blocks.num_chains
        return np.concatenate([of_chains(rows[i : i + count]) for i in range(0, len(rows), count)])

    return HostTarget(columns, log_density, seed)


def _coordinate_numbers(blocks: Blocks) -> np.ndarray:
    """Numbers, counted through the whole position, of the coordinates of a draw as blocks hand it over.

    Groups follow one another, in each the devices, and on each device its part of every variable; -1 in a padded row.
    """
    first, numbers = 1, {}
    for name, shape in blocks.layout.whole_shapes.items():
        count = math.prod(shape)
        numbers[name] = np.arange(first, first + count).reshape(shape)
        first += count
    return np.concatenate(blocks.layout.of_whole(numbers, zero=True).parts) - 1
