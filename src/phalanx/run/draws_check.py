"""The devices' shares against the whole, where the draws of a run are: what is not proved is evaluated there, too."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from phalanx.exactness.sharding_check import ShardingCheck
from phalanx.run.engine import positions_of
from phalanx.run.init_values import Initial
from phalanx.run.loop import Run
from phalanx.run.results import RunResults

FEWEST, MOST = 4, 64
"""Positions that are compared; so many where the data are small."""

NUMBERS = 2**24
"""Numbers of the data that are evaluated in all."""

Position = dict[str, np.ndarray]


def check_at_draws(run: Run, rows: ShardingCheck, level: str) -> ShardingCheck:
    """Compare at draws of every chain, those that are extreme in some coordinate; a difference is a warning.

    Where not all latent variables are stored, the chains' last positions are compared.
    """
    if rows.check is None or not rows.check.names or level == "off" or run.interrupted:
        return rows
    arguments = run.engine.blocks.target.arguments.with_arrays(run.engine.arrays)
    size = sum(math.prod(array.shape) for array in arguments.arrays)
    count = int(np.clip(NUMBERS // max(size, 1), FEWEST, MOST))
    positions = _last(run, count) + _extreme(run, dict(RunResults.of(run).draws), count)
    try:
        rows.compare(arguments, "warn", positions)
    except ValueError as error:
        found = replace(rows, differs=str(error))
        warnings.warn(f"The draws of this run are wrong. {error}", stacklevel=4)
        return found
    return rows


def _last(run: Run, count: int) -> list[Position]:
    """Return where chains are, evenly chosen."""
    chains = run.engine.blocks.num_chains
    where = positions_of(run.state.chains, chains)
    return [where[chain] for chain in np.unique(np.linspace(0, chains - 1, min(count, chains)).astype(int))]


def _extreme(run: Run, draws: Mapping[str, np.ndarray], count: int) -> list[Position]:
    """Return positions of draws that are the least or the largest of their chain in some coordinate."""
    names, chains = [latent.name for latent in run.engine.blocks.target.shares.latents], run.engine.blocks.num_chains
    if not set(names) <= set(draws) or not run.draws:
        return []
    flat = np.concatenate([draws[name].reshape(chains, run.draws, -1)[:, :, :count] for name in names], axis=2)
    found: list[Position] = []
    for turn in range(min(2 * flat.shape[2], math.ceil(count / chains))):
        kinds = (np.arange(chains) + turn * chains) % (2 * flat.shape[2])
        values = np.where(kinds % 2, -1, 1)[:, None] * flat[np.arange(chains), :, kinds // 2]
        chosen = {name: draws[name][np.arange(chains), values.argmax(1)] for name in names}
        begun = run.engine.executables.start(run.engine.seed, run.engine.arrays, Initial("draws", chosen))
        found += positions_of(begun.chains, chains)
    return found[:count]
