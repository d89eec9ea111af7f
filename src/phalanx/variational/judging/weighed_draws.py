"""Draws of a guide with their weights, the same after Markov moves, and a search for modes: each made once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from phalanx.variational.drawing import Drawing
from phalanx.variational.judging.evidence import Evidence, Weights
from phalanx.variational.judging.judge import Compared, moments_after
from phalanx.variational.judging.modes import Modes, Search
from phalanx.variational.judging.moving import Moved, Mover
from phalanx.variational.monitoring.stream import check_all_there

JUDGED = 4000
"""Draws that a verdict looks at."""

JUDGE_SEED = 2**32 - 1
"""Their seed: apart from those that draws for use are made with."""


@dataclass(frozen=True, eq=False)
class WeighedDraws:
    """The draws of a guide that a fit is judged by.

    Attributes:
        proposals: the guide's own draws.
        latents: names of the latent variables.
    """

    proposals: Drawing
    latents: tuple[str, ...]
    _kept: dict[Any, Any] = field(default_factory=dict)

    @property
    def can_move(self) -> bool:
        """Return whether draws are of variables that Markov moves can move."""
        return not self.proposals.pair.problem.whole.without_bijection

    def weighed(self, seed: int = JUDGE_SEED, num_draws: int = JUDGED) -> tuple[Weights, dict[str, np.ndarray]]:
        """Return importance weights of draws, and the draws; those of a verdict are kept."""
        if (found := self._kept.get((seed, num_draws, "weighed"))) is None:
            check_all_there(self.proposals.pair.problem, "The importance weights")
            drawn = self.proposals.draw(seed, num_draws)
            found = Weights.of(drawn.log_p, drawn.log_q), drawn.values
            if (seed, num_draws) == (JUDGE_SEED, JUDGED):
                self._kept[seed, num_draws, "weighed"] = found
        return found

    def moved(self, seed: int, num_draws: int) -> Moved:
        """Draws before and after Markov moves: chosen by their weights, or all alike where these are too heavy."""
        if (seed, num_draws) not in self._kept:
            weights, values = self.weighed(seed, num_draws)
            usual = np.isfinite(weights.log) / np.isfinite(weights.log).sum()
            chosen = weights.normalized if weights.reliable else usual
            self._kept[seed, num_draws] = Mover(self.proposals).move(seed, values, weights.log, chosen)
        return self._kept[seed, num_draws]

    def searched(self, seed: int, num_draws: int) -> Search:
        """A search for modes that the guide never draws from."""
        if "modes" not in self._kept:
            weights, values = self.weighed(seed, num_draws)
            evidence = weights.evidence().log_evidence
            self._kept["modes"] = Modes(self.proposals, self.latents).search(values, weights.normalized, evidence)
        return self._kept["modes"]

    def evidence(self, seed: int, num_draws: int) -> Evidence:
        """Return the evidence, which is not reliable where moves or a search find what the guide misses."""
        weights, _ = self.weighed(seed, num_draws)
        if not weights.reliable or self.proposals.pair.left_out:
            return weights.evidence()._replace(reliable=False)
        gap, misses = 0.0, False
        if self.can_move and np.isfinite(weights.smoothed.k_hat):
            moved = self.moved(seed, num_draws)
            gap = weights.bridged(moved.log_after) - weights.evidence().log_evidence
            misses = Compared.of(list(moments_after(moved))).are_off
        found = weights.evidence(gap)
        if misses or self.searched(seed, num_draws).found:
            return found._replace(reliable=False)
        return found
