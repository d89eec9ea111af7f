"""Phase of draws that are only reduced: reducers accumulate them on the devices; the host merges states every round.

In a round all chains make the same number of draws. Rounds of equal time would have more draws where trajectories are
short, which would bias the results of reducers.
"""

from __future__ import annotations

import math
import time

import numpy as np

from phalanx.mesh.processes import agreed, to_host
from phalanx.run.engine import Engine
from phalanx.run.host.reducer_state import HostReducers
from phalanx.run.phases.phase import BlockGoal, PhaseProgress, acceptance_rates
from phalanx.run.state import RunState

CHAINS_PER_DRAW = 2**15
"""Number of chains for each draw of the first round. A longer round merges less often (a merge of a million chains'
states takes as long as five draws of a cheap model), but an interrupted run loses the draws of its last round."""

MOST_AT_FIRST = 32
"""Maximal draws of each chain in the first round."""


class ReducePhase:
    """Phase that reduces draws without storing them.

    Args:
        engine: engine of the run.
        num_draws: further draws of each chain to reduce.
        thin: draws of the kernel per reduced draw.
        seconds: time limit, after which the current round is completed.
    """

    name, accumulates = "sampling", True

    def __init__(self, engine: Engine, num_draws: int, thin: int, seconds: float = math.inf):
        self._engine = engine
        self._num_draws = num_draws
        self._thin = thin
        self._seconds = seconds
        self._reducers = HostReducers.of(engine.executables.reducing)
        self._began = self._round_began = time.monotonic()
        self._before = self._total = 0
        num_chains = engine.blocks.num_chains
        self._first = min(math.ceil(num_chains / CHAINS_PER_DRAW), MOST_AT_FIRST)
        self._most = self._reducers.batch_length(num_chains)

    def begin(self, state: RunState) -> RunState:
        """Return the state before the first block; an incomplete round is continued."""
        self._before, self._total = state.reduced.draws, state.reduced.draws + self._num_draws
        if state.sinks is None:
            return self._begin_round(state._replace(goal=0))  # no draws were made in the time since this phase was made
        return state._replace(goal=min(state.goal, self._num_draws))

    def goal(self, state: RunState) -> BlockGoal | None:
        """Return the goal of the next block: the same number of draws for every chain."""
        return BlockGoal(np.full(self._engine.blocks.num_chains, state.goal)) if state.goal else None

    def _begin_round(self, state: RunState) -> RunState:
        """Set the number of draws of the next round: as many as all rounds before it together, within limits."""
        now = time.monotonic()
        num_draws = state.reduced.draws
        longest = min(max(num_draws, self._first), self._most, self._total - num_draws)
        if math.isfinite(self._seconds):
            per_draw = (now - self._round_began) / state.goal if state.goal else 0.0
            fitting = (self._began + self._seconds - now) / max(per_draw, 1e-9)
            longest = min(longest, fitting) if state.goal else min(longest, 1)
        self._round_began = now
        return state._replace(goal=int(agreed(max(0, longest))))

    def take_block(self, state: RunState) -> tuple[RunState, PhaseProgress]:
        """Merge the reducers' states on the host if every chain has made the draws of the round, and begin another."""
        assert state.sinks is not None
        num_draws = int(to_host(state.sinks.count).min())
        counts = state.sinks.states[0]
        rates = acceptance_rates(counts)
        if num_draws >= state.goal:
            reduced_state = self._reducers.with_round(state.reduced, state.sinks)
            work = state.sampling.more(evaluations=reduced_state.evaluations - state.reduced.evaluations)
            state = self._begin_round(state._replace(reduced=reduced_state, sinks=None, sampling=work))
            num_draws = 0
        total_draws = state.reduced.draws + num_draws
        seconds = max(time.monotonic() - self._began, 1e-9)
        speed = (total_draws - self._before) * self._thin * self._engine.blocks.num_chains / seconds
        return state, PhaseProgress(total_draws, self._total, rates, state.reduced.divergences, speed)

    def interrupted(self, state: RunState) -> str:
        """Return the line to show when the run is interrupted."""
        return f"Interrupted: returning results of {state.reduced.draws:,} of {self._total:,} draws per chain."
