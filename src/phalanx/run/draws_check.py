"""Test of the devices' shares at the draws of a run, for shares without a proof."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from phalanx.exactness.sharding_check import ShardingCheck
from phalanx.exactness.whole_and_shares import Position
from phalanx.inputs.arguments import Arguments
from phalanx.mesh.output import warn
from phalanx.run.engine import positions_of
from phalanx.run.init_values import Initial
from phalanx.run.loop import Run
from phalanx.run.results import RunResults

if TYPE_CHECKING:
    from jaxtyping import Int, Shaped

FEWEST, MOST = 4, 64
"""Minimal and maximal number of extreme positions to compare; more if the data are small."""

MOST_CHAINS = 4096
"""Maximal number of chains whose last positions are compared."""

NUMBERS = 2**24
"""Maximal number of data values to evaluate, over all positions of a kind, beyond the minimum."""


def check_after_warm_up(run: Run, rows: ShardingCheck, level: str) -> ShardingCheck:
    """Test the shares without a proof at the chains' positions after warm-up; raise if they do not add up."""
    if rows.check is None or not rows.check.names or level == "off":
        return rows
    arguments = run.engine.blocks.target.arguments.with_arrays(run.engine.arrays)
    again = rows.compare(arguments, "warn", _last(run, evenly(run.engine.blocks.num_chains, arguments, MOST)))
    return again if len(again.unchecked) < len(rows.unchecked) else rows


def check_at_draws(run: Run, rows: ShardingCheck, level: str) -> ShardingCheck:
    """Compare the shares with the whole at the last draw of every chain, and at extreme ones; warn of a difference.

    Extreme draws have the smallest or largest value of their chain in some coordinate. They are left out if some latent
    variables are not stored. Of very many chains, or of large data, evenly chosen chains are compared.
    """
    if rows.check is None or not rows.check.names or level == "off" or run.interrupted:
        return rows
    arguments, chains = run.engine.blocks.target.arguments.with_arrays(run.engine.arrays), run.engine.blocks.num_chains
    last = _last(run, evenly(chains, arguments))
    extreme = _extreme(run, dict(RunResults.of(run).draws), _count(arguments, MOST))
    return compare_at(rows, arguments, [*last, *extreme], some_of(len(last), chains, "chain"))


def compare_at(rows: ShardingCheck, arguments: Arguments, positions: Sequence[Position], of: str) -> ShardingCheck:
    """Compare the shares with the whole at draws, `of` all chains or some in words; warn of a difference."""
    try:
        again = rows.compare(arguments, "warn", positions)
    except ValueError as error:
        warn(f"The draws of this run are wrong. {error}", stacklevel=5)
        return replace(rows, differs=str(error))
    return rows if again.unchecked else replace(rows, draws_of=of)


def evenly(count: int, arguments: Arguments, most: int = MOST_CHAINS) -> Int[np.ndarray, "chosen"]:
    """Return numbers of evenly chosen chains or particles to compare at: all, if neither they nor the data are many."""
    return np.unique(np.linspace(0, count - 1, min(_count(arguments, most), count)).astype(int))


def some_of(count: int, of: int, what: str) -> str:
    """Return "the one chain", "all 8 chains", or "64 of 10,000 chains"."""
    if of == 1:
        return f"the one {what}"
    return f"all {of:,} {what}s" if count == of else f"{count:,} of {of:,} {what}s"


def _count(arguments: Arguments, most: int) -> int:
    size = sum(math.prod(array.shape) for array in arguments.arrays)
    return int(np.clip(NUMBERS // max(size, 1), FEWEST, most))


def _last(run: Run, chosen: Int[np.ndarray, "chosen"]) -> list[Position]:
    """Return the last positions of the chosen chains."""
    where = positions_of(run.state.chains, run.engine.blocks.num_chains)
    return [where[chain] for chain in chosen]


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
