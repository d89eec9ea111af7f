"""Test of the devices' shares at the draws of a run, for shares without a proof."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from phalanx.exactness.sharding_check import ShardingCheck
from phalanx.run.engine import positions_of
from phalanx.run.init_values import Initial
from phalanx.run.loop import Run
from phalanx.run.results import RunResults

if TYPE_CHECKING:
    from jaxtyping import Shaped

FEWEST, MOST = 4, 64
"""Minimal and maximal number of positions to compare; more if the data are small."""

NUMBERS = 2**24
"""Maximal number of data values to evaluate, over all positions."""

CHAINS_CHECKED = 2
"""Chains at whose positions after warm-up the shares without a proof are tested again."""

Position = dict[str, np.ndarray]


def check_after_warm_up(run: Run, rows: ShardingCheck, level: str) -> ShardingCheck:
    """Test the shares without a proof at the chains' positions after warm-up; raise if they do not add up."""
    if rows.check is None or not rows.check.names or level == "off":
        return rows
    arguments = run.engine.blocks.target.arguments.with_arrays(run.engine.arrays)
    again = rows.compare(arguments, "warn", positions_of(run.state.chains, CHAINS_CHECKED))
    return again if len(again.unchecked) < len(rows.unchecked) else rows


def check_at_draws(run: Run, rows: ShardingCheck, level: str) -> ShardingCheck:
    """Compare the shares with the whole at draws that are extreme in some coordinate; warn of a difference.

    The chains' last positions are compared, too; only these if some latent variables are not stored.
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
    """Return the last positions of evenly chosen chains."""
    chains = run.engine.blocks.num_chains
    where = positions_of(run.state.chains, chains)
    return [where[chain] for chain in np.unique(np.linspace(0, chains - 1, min(count, chains)).astype(int))]


def _extreme(run: Run, draws: Mapping[str, Shaped[np.ndarray, "chains draws *shape"]], count: int) -> list[Position]:
    """Return positions of draws with the smallest or largest value of their chain in some coordinate."""
    names, chains = [latent.name for latent in run.engine.blocks.target.shares.latents], run.engine.blocks.num_chains
    if not set(names) <= set(draws) or not run.draws:
        return []
    held, numbers = run.engine.blocks.held, np.arange(chains)
    if run.store is None:  # each process chooses among the draws of its chains
        numbers = held.numbers
    rows = np.arange(len(numbers))
    flat = np.concatenate([draws[name].reshape(len(rows), run.draws, -1)[:, :, :count] for name in names], axis=2)
    found: list[Position] = []
    for turn in range(min(2 * flat.shape[2], math.ceil(count / chains))):
        kinds = (numbers + turn * chains) % (2 * flat.shape[2])
        values = np.where(kinds % 2, -1, 1)[:, None] * flat[rows, :, kinds // 2]
        chosen = {name: draws[name][rows, values.argmax(1)] for name in names}
        if run.store is None:
            chosen = {name: held.gathered(values) for name, values in chosen.items()}
        begun = run.engine.executables.start(run.engine.seed, run.engine.arrays, Initial("draws", chosen))
        found += positions_of(begun.chains, chains)
    return found[:count]
