"""Draws that are not stored: what is known of them comes to the host, round by round, until there are enough.

Chains make draws in rounds, which all of them end: where short trajectories are taken there would be more draws of the
same time, and what reducers know would lean to these places.
"""

from __future__ import annotations

import math
import time

import numpy as np

from phalanx.mesh.processes import agreed, to_host
from phalanx.run.chains import Chains
from phalanx.run.device.advance import Sunk
from phalanx.run.host.host_sink import Goal, Progressed
from phalanx.run.host.reducer_state import HostFold

MOST_AT_FIRST, CHAINS_PER_DRAW = 32, 2**15
"""The first round has a draw for so many chains, up to so many draws: to merge what is known of a million chains takes
as long as some five draws of a cheap model, and Ctrl-C loses the round under way."""


class Folding:
    """Folds the draws of a run; a drain, see `phalanx.run.host.host_sink`.

    Args:
        chains: the chains that draw.
        reduced: where what is known goes.
        num_draws: draws of each chain to keep.
        thin: draws of the kernel per draw that is kept.
        seconds: after which to end, with the round that is under way then.
    """

    def __init__(self, chains: Chains, reduced: HostFold, num_draws: int, thin: int, seconds: float = math.inf):
        self._chains, self._reduced, self._thin = chains, reduced, thin
        self._before, self._total, self._seconds = reduced.draws, reduced.draws + num_draws, seconds
        self._began = self._round_began = time.monotonic()
        self._length = 0
        """Draws of the round under way."""
        self._sunk: Sunk | None = None
        """What is known of it."""
        num_chains = chains.blocks.num_chains
        self._first = min(math.ceil(num_chains / CHAINS_PER_DRAW), MOST_AT_FIRST)
        self._most = reduced.stretch(num_chains)

    @property
    def is_between(self) -> bool:
        """Whether no round is under way."""
        return self._sunk is None

    @property
    def kept(self) -> int:
        """Draws of every chain that are folded."""
        return self._reduced.draws

    @property
    def interrupted(self) -> str:
        """What is said where a run is interrupted."""
        return f"Interrupted: returning what {self.kept:,} of {self._total:,} draws per chain say."

    def goal(self) -> Goal | None:
        """Draws of a round, the same of every chain."""
        if self.is_between:
            self._begin_round()
        return Goal(np.full(self._chains.blocks.num_chains, self._length)) if self._length else None

    def _begin_round(self) -> None:
        # each round is as long as all before, and the first short: Ctrl-C loses the round under way
        now, longest = time.monotonic(), min(max(self.kept, self._first), self._most, self._total - self.kept)
        if math.isfinite(self._seconds):
            per_draw = (now - self._round_began) / self._length if self._length else 0.0
            fitting = (self._began + self._seconds - now) / max(per_draw, 1e-9)
            longest = min(longest, fitting) if self._length else min(longest, 1)
        self._length, self._round_began = int(agreed(max(0, longest))), now

    def advance(self, goal: Goal, ticks: int) -> Progressed:
        """Fold a block; its round is over when every chain has drawn as many."""
        advanced = self._chains.fold(goal.draws, ticks, self._sunk, thin=self._thin, before=self.kept)
        ticks = self._chains.wait(advanced)
        sunk, evaluations = advanced.sunk, self._reduced.evaluations
        done, counts = int(to_host(sunk.count).min()), sunk.states[0]
        rates = to_host(counts.acceptance) / np.maximum(to_host(counts.draws), 1)
        if done >= self._length:
            self._reduced.add(sunk)
            self._sunk, done = None, 0
        else:
            self._sunk = sunk
        return self._progressed(done, rates, self._reduced.evaluations - evaluations, ticks)

    def _progressed(self, done: int, rates: np.ndarray, evaluations: int, ticks: int) -> Progressed:
        drawn = self.kept + done
        seconds = max(time.monotonic() - self._began, 1e-9)
        speed = (drawn - self._before) * self._thin * self._chains.blocks.num_chains / seconds
        return Progressed(drawn, self._total, rates, self._reduced.divergences, evaluations, ticks, speed)
