"""What the reducers of a run know, on the host: stretch by stretch, in float64."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from phalanx.run.folding import ENOUGH_DRAWS, LEAST_DRAWS, MOST_DRAWS, Fold, Folding
from phalanx.run.reductions import States


class HostFold:
    """States of the reducers after all draws so far, and how many there are."""

    def __init__(self, folding: Folding):
        self._reductions, self._places = folding.reductions, folding.places
        self._states: States | None = None
        self.draws, self.divergences, self.evaluations = 0, 0, 0
        self.acceptance_rate: float | None = None

    def stretch(self, num_chains: int) -> int:
        """Draws of each chain after which its states come here."""
        return min(MOST_DRAWS, max(LEAST_DRAWS, ENOUGH_DRAWS // num_chains))

    def add(self, fold: Fold) -> None:
        """Take in a stretch."""
        tally = jax.tree.map(np.asarray, fold.tally)
        evaluations = int(tally.num_steps.sum(dtype=np.int64))
        self.add_states(fold.states)
        self.draws += int(tally.draws.min())
        self.evaluations += evaluations
        self.divergences += int(tally.diverging.sum(dtype=np.int64))
        made = max(int(tally.made.sum(dtype=np.int64)), 1)
        self.acceptance_rate = float(tally.acceptance.sum(dtype=np.float64)) / made

    def add_states(self, states: Any) -> None:
        """Merge states of later draws."""
        states = jax.tree.map(lambda place, leaf: place.trim(np.asarray(leaf)), self._places, states)
        self._states = states if self._states is None else self._reductions.merge(self._states, states)

    def finalize(self) -> dict[str, Any]:
        """What was learned so far."""
        return {} if self._states is None else self._reductions.finalize(self._states)
