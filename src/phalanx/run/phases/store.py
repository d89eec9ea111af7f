"""Phase of draws that are stored: block by block, up to a number or a condition."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax import Array

from phalanx.mesh.processes import to_host
from phalanx.posterior.together import of_all_chains
from phalanx.run.device.recorder import Rows
from phalanx.run.engine import Engine
from phalanx.run.host.draw_buffer import DrawBuffer
from phalanx.run.host.draw_store import DrawStore
from phalanx.run.host.recorded import BlockStats, BlockTotals
from phalanx.run.phases.phase import BlockGoal, PhaseProgress
from phalanx.run.state import RunState
from phalanx.run.until import FIRST, StoppingWatch

if TYPE_CHECKING:
    from jaxtyping import Integer

FULLNESS = 0.9
"""Fraction of its slots that a chain is expected to fill in a block; a chain with full slots waits for the others."""

LEAD = 2
"""Draws that a chain may be ahead of another if draws are moved to a store, in multiples of a block's slots."""


class StorePhase:
    """Phase that stores draws, and reduces them if the run has reducers.

    Reducers receive draws in rounds of as many as the sinks have slots, counted from the first draw of the run: rounds
    that end by time would give results that differ in their last digits from run to run. The draws of a round that is
    not complete stay in the sinks; `Run.reduced` has results that include them.

    Args:
        engine: engine of the run.
        buffer: writer of draws.
        thin: draws of the kernel per stored draw.
        watch: evaluator of the condition on which to stop early; None without a condition.
        store: store that the draws are moved to; None to keep them in memory.
    """

    name, accumulates = "sampling", False

    def __init__(
        self, engine: Engine, buffer: DrawBuffer, thin: int, watch: StoppingWatch | None, store: DrawStore | None = None
    ):
        self._engine = engine
        self._buffer = buffer
        self._thin = thin
        self._watch = watch
        self._store = store
        self._reduces = engine.executables.reduce is not None
        self._start = 0
        """Stored draws of each chain at the start of the round."""

    def begin(self, state: RunState) -> RunState:
        """Return the state before the first block."""
        first = 0 if self._watch is None else state.next_look or max(FIRST, state.stored.count + 1)
        sinks = state.sinks if self._reduces else None
        self._start = state.stored.count - (0 if sinks is None else int(to_host(sinks.count).min()))
        return state._replace(next_look=first, sinks=sinks)

    def goal(self, state: RunState) -> BlockGoal | None:
        """Return the goal of the next block."""
        if self._reduces:
            return self._goal_of_round(state)
        num_draws = self._num_draws_left(state)
        if num_draws is None:
            return None
        slots = self._engine.blocks.slots
        ticks = math.inf
        if num_draws.max() > slots:
            ticks = math.ceil(FULLNESS * slots * self._thin * state.mean_steps)
        return BlockGoal(np.minimum(num_draws, slots), ticks)

    def _num_draws_left(self, state: RunState) -> Integer[np.ndarray, "chains"] | None:
        """Return the draws that each chain should make before the next look; None at the end of the phase."""
        counts = state.stored.counts
        num_left = self._buffer.num_missing(state.stored)
        if self._store is not None:  # it takes the draws that every chain has: others stay in memory
            num_left = np.clip(counts.min() + LEAD * self._engine.blocks.slots - counts, 0, num_left)
        if state.stopped or not num_left.any():
            return None
        return num_left if self._watch is None else np.minimum(num_left, np.maximum(state.next_look - counts, 0))

    def _goal_of_round(self, state: RunState) -> BlockGoal | None:
        """Return the draws since the start of the round that each chain should have; None if they have them."""
        counts = state.stored.counts
        ends = [self._buffer.total, self._start + self._engine.blocks.slots]
        if self._watch is not None:
            ends.append(state.next_look)
        # results would be biased by chains with more draws than others
        end = max(0 if state.stopped else min(ends), counts.max())
        return BlockGoal(np.full(len(counts), end - self._start)) if counts.min() < end else None

    def take_block(self, state: RunState) -> tuple[RunState, PhaseProgress]:
        """Store the draws of a block: each process those of the chains that it holds."""
        # the draws of the block before were copied to the host while the devices made this one
        state = self._move_to_store(state)
        assert state.sinks is not None
        blocks = self._engine.blocks
        counts = to_host(state.sinks.count)
        before = state.stored.counts - self._start if self._reduces else np.zeros_like(counts)
        block = BlockStats.fetched(state.sinks, blocks.row_layout, counts, blocks.held_chains, before)
        # processes exchange totals before the next program begins, which may sum over devices
        totals = BlockTotals.of(block, blocks.held_chains)
        mean_steps = state.mean_steps
        values = self._stored_values(state.sinks.states[0])
        if totals.draws and not blocks.kernel.machine.makes_whole_draws:
            mean_steps = totals.steps / totals.draws / self._thin
        state = state._replace(
            stored=self._buffer.with_block(state.stored, values, block, counts - before, totals.divergences),
            mean_steps=mean_steps,
            sampling=state.sampling.more(evaluations=totals.steps),
            sinks=state.sinks if self._reduces else None,
        )
        if self._reduces and counts.min() >= blocks.slots:
            state = state._replace(reduced=self._engine.reduced(state, blocks.slots), sinks=None)
            self._start += blocks.slots
        draws = state.stored
        rates = np.full(min(totals.draws, 1), totals.accepted / max(totals.draws, 1))
        progress = PhaseProgress(draws.count, self._buffer.total, rates, draws.divergences)
        return self._check_until(state), progress

    def interrupted(self, state: RunState) -> str:
        """Return the line to show when the run is interrupted."""
        return f"Interrupted: returning the {state.stored.count} of {self._buffer.total} draws per chain made so far."

    def _check_until(self, state: RunState) -> RunState:
        """Evaluate the condition of `until` as far as it is due, and return the state with the result in `stopped`."""
        if state.stopped or self._watch is None:
            return state
        if state.stored.count >= state.next_look:
            state = self._move_to_store(state)
        held_chains = self._engine.blocks.held_chains
        read_draws = (
            self._store.read
            if self._store is not None
            else lambda: of_all_chains(*state.stored.common_draws, held_chains)
        )
        is_good, next_look = self._watch.look(state.stored.count, state.next_look, read_draws)
        return state._replace(stopped=is_good, next_look=next_look)

    def _move_to_store(self, state: RunState) -> RunState:
        """Move the draws that every chain has to the store, if there is one, and return the state without them."""
        return state if self._store is None else self._store.take(state)

    def _stored_values(self, rows: Rows) -> dict[str, Array]:
        """Return the values of the variables to store, given recorded rows, once they are computed."""
        executables = self._engine.executables
        arrays = self._engine.arrays
        assert executables.constrain is not None
        # programs may sum over devices, and would wait for each other for ever if they ran at the same time
        return jax.block_until_ready(executables.constrain(arrays, rows))
