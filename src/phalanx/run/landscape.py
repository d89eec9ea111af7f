"""The target as warm-up sees it from the host: coordinates in one order on every mesh, and the log density of any."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax import Array

from phalanx.adaptation.strays import Landscape
from phalanx.programs.shares import Latent
from phalanx.run.blocks import Blocks
from phalanx.run.executables import Executables, whole_sizes


def landscape_of(executables: Executables, arrays: Sequence[Array], seed: int) -> Landscape:
    """The landscape of a run on some data."""
    blocks, numbers = executables.blocks, _coordinate_numbers(executables.blocks)
    columns = np.argsort(numbers, kind="stable")[np.count_nonzero(numbers < 0) :]
    ends, dtype = np.cumsum(whole_sizes(blocks)), np.result_type(*(v.dtype for v in blocks.target.shares.latents))

    def of_chains(rows: np.ndarray) -> np.ndarray:
        """One row in the place of each chain; in the places of the last there may be none."""
        position = np.zeros((blocks.num_chains, ends[-1]), dtype)
        position[: len(rows), columns] = rows
        heights = executables.height(tuple(arrays), tuple(np.split(position, ends[:-1], axis=1)))
        return np.asarray(heights)[: len(rows)]

    def log_density(rows: np.ndarray) -> np.ndarray:
        count = blocks.num_chains
        with jax.default_matmul_precision(executables.matmul_precision):
            return np.concatenate([of_chains(rows[i : i + count]) for i in range(0, len(rows), count)])

    return Landscape(columns, log_density, seed)


def _coordinate_numbers(blocks: Blocks) -> np.ndarray:
    """Numbers, counted through the whole position, of the coordinates of a draw as blocks hand it over.

    Groups follow one another, in each the devices, and on each device its part of every variable; -1 in a padded row.
    """
    latents = sorted(blocks.target.shares.latents, key=lambda latent: latent.name)
    starts = np.cumsum([0, *(_rows(latent) * _per_row(latent) for latent in latents)])
    parts = []
    for axes in blocks.groups:
        for device in range(math.prod(blocks.target.mesh.shape[axis] for axis in axes)):
            members = [(start, v) for start, v in zip(starts, latents, strict=False) if v.spread.axes == axes]
            parts += [_numbers(latent, start, device) for start, latent in members]
    return np.concatenate(parts)


def _numbers(latent: Latent, start: int, device: int) -> np.ndarray:
    """Those of a variable on one of the devices that it is spread over."""
    held = latent.spread.local_rows if latent.spread.axes else 1
    row = device * held + np.arange(held)[:, None]
    numbers = start + row * _per_row(latent) + np.arange(_per_row(latent))
    return np.where(row < _rows(latent), numbers, -1).ravel()


def _rows(latent: Latent) -> int:
    return latent.spread.rows if latent.spread.axes else 1


def _per_row(latent: Latent) -> int:
    shape = latent.unconstrained_shape
    return math.prod(shape[1:] if latent.spread.axes else shape)
