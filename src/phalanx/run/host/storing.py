"""Draws that are stored, on the host: block by block, until there are enough."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from phalanx.mesh.devices import CHAIN
from phalanx.mesh.processes import to_host
from phalanx.run.chains import Chains
from phalanx.run.host.draw_buffer import HostBlock, HostDraws
from phalanx.run.host.host_sink import Goal, Progressed
from phalanx.run.host.reducer_state import HostFold
from phalanx.run.until import Watch

FULLNESS = 0.9
"""How full the slots of a block should be when it ends: chains whose slots are full wait for the others."""


class Storing:
    """Stores the draws of a run, and has them reduced if anything is.

    A drain, see `phalanx.run.host.host_sink`.

    Args:
        chains: the chains that draw.
        draws: where draws are stored.
        reduced: where states of reducers go.
        thin: draws of the kernel per stored draw.
        watch: when to stop before there are as many as asked for.
    """

    def __init__(self, chains: Chains, draws: HostDraws, reduced: HostFold, thin: int, watch: Watch | None):
        self._chains, self._reduced, self._thin, self._watch = chains, reduced, thin, watch
        self._executables, self._blocks = chains.executables, chains.blocks
        self.draws, self._met = draws, False

    @property
    def is_between(self) -> bool:
        """Always: of each chain the last draw stored is known, from which what came since is made again."""
        return True

    @property
    def kept(self) -> int:
        """Draws that every chain has."""
        return self.draws.count

    @property
    def interrupted(self) -> str:
        """What is said where a run is interrupted."""
        return f"Interrupted: returning the {self.kept} of {self.draws.total} draws per chain made so far."

    def goal(self) -> Goal | None:
        """What the next block is to draw."""
        wanted = self._wanted()
        if wanted is None:
            return None
        slots, ticks = self._blocks.slots, math.inf
        if wanted.max() > slots:
            ticks = math.ceil(FULLNESS * slots * self._thin * self._chains.mean_steps)
        return Goal(np.minimum(wanted, slots), ticks)

    def _wanted(self) -> np.ndarray | None:
        draws, watch = self.draws, self._watch
        self._met = self._met or not draws.left.any() or (watch is not None and watch.is_met())
        if not self._met:
            return draws.left if watch is None else np.minimum(draws.left, np.maximum(watch.next - draws.counts, 0))
        behind = draws.counts.max() - draws.counts
        # reducers have seen draws of all chains, as many of each
        return behind if self._executables.reduce is not None and behind.any() else None

    def advance(self, goal: Goal, ticks: int) -> Progressed:
        """Draw a block, and store it."""
        advanced = self._chains.record(goal.draws, ticks, thin=self._thin)
        ticks = self._chains.wait(advanced)
        block = HostBlock.fetched(advanced.sunk, self._blocks.row_layout)
        values, states = self._read(advanced.sunk.states[0], advanced.sunk.count)
        steps = block.stats["num_steps"][block.filled]
        if len(steps) and not self._blocks.kernel.machine.in_lock_step:
            self._chains.mean_steps = float(steps.mean()) / self._thin
        self.draws.add(values, block)
        if states is not None:
            self._reduced.add_states(states)
        rates = block.stats["acceptance_rate"][block.filled]
        count, total, divergences = self.draws.count, self.draws.total, self.draws.divergences
        return Progressed(count, total, rates, divergences, int(steps.sum(dtype=np.int64)), ticks)

    def _read(self, rows: Any, count: Array) -> tuple[dict[str, Array], Any]:
        """The variables of the rows, and what reducers make of them."""
        values = self._executables.constrain(self._chains.arrays, rows)
        if self._executables.reduce is None:
            return values, None
        # both may sum over devices, and neither depends on the other: under way at once they may wait for each other
        jax.block_until_ready(values)
        before = self._executables.sent.array(self.draws.counts.astype(np.int32), PartitionSpec(CHAIN))
        states = self._executables.reduce(self._chains.arrays, rows, count, before)
        return values, jax.tree.map(to_host, states)  # an interrupt here loses the block, and not a part of it
