"""Draws of a guide with their weights, the same draws after Markov moves, and a search for modes: each made once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from phalanx.diagnostics import Verdict
from phalanx.diagnostics.elements import Names
from phalanx.mesh.agreement import check_same
from phalanx.variational.drawing import Drawing, on_host
from phalanx.variational.guides.guide_and_model import alignment_of
from phalanx.variational.judging.evidence import Evidence, Weights
from phalanx.variational.judging.judge import Compared, judge_fit, judge_unweighted, moments_after
from phalanx.variational.judging.modes import Modes, ModeSearch
from phalanx.variational.judging.moving import Moved, Mover
from phalanx.variational.monitoring.stream import check_all_there

JUDGED = 4000
"""Draws that a verdict evaluates, unless these have more than `MOST_NUMBERS`."""

FEWEST_JUDGED = 512
"""Fewest draws that a verdict evaluates, however many numbers they have."""

MOST_NUMBERS = 2**27
"""Most numbers in the draws of a verdict, which are in memory together: half a gigabyte."""

JUDGE_SEED = 2**32 - 1
"""Seed of the draws of a verdict, which draws for use should not share."""


@dataclass(frozen=True, eq=False)
class WeightedDraws:
    """The draws of a guide that a fit is judged by.

    Attributes:
        proposals: the guide's own draws.
        latents: names of the latent variables.
        labels: labels of the entries of variables, by variable and axis.
    """

    proposals: Drawing
    latents: tuple[str, ...]
    labels: Names = field(default_factory=dict)
    _kept: dict[Any, Any] = field(default_factory=dict)

    @property
    def can_move(self) -> bool:
        """True if Markov moves can move all variables."""
        return not self.proposals.pair.problem.whole.without_bijection

    @property
    def usual_count(self) -> int:
        """Draws that are evaluated if no other number is asked for."""
        return max(FEWEST_JUDGED, min(JUDGED, MOST_NUMBERS // self.proposals.numbers))

    def weighted(self, seed: int = JUDGE_SEED, num_draws: int | None = None) -> tuple[Weights, dict[str, np.ndarray]]:
        """Return importance weights of draws, and the draws; those of a verdict are kept."""
        num_draws = num_draws or self.usual_count
        if (weighted := self._kept.get((seed, num_draws, "weighted"))) is None:
            check_all_there(self.proposals.pair.problem, "The importance weights")
            draws = on_host(self.proposals.batches(seed, num_draws), num_draws)
            weighted = Weights.of(draws.log_p, draws.log_q), draws.values
            if (seed, num_draws) == (JUDGE_SEED, self.usual_count):
                self._kept[seed, num_draws, "weighted"] = weighted
        return weighted

    def moved(self, seed: int, num_draws: int) -> Moved:
        """Return draws before and after Markov moves: chosen by their weights, or evenly if these are too heavy."""
        if (seed, num_draws) not in self._kept:
            check_same("fit.evidence or .verdict")
            weights, values = self.weighted(seed, num_draws)
            usual = np.isfinite(weights.log) / np.isfinite(weights.log).sum()
            probabilities = weights.normalized if weights.reliable else usual
            self._kept[seed, num_draws] = Mover(self.proposals).move(seed, values, weights.log, probabilities)
        return self._kept[seed, num_draws]

    def searched(self, seed: int, num_draws: int) -> ModeSearch:
        """Return a search for modes that the guide never draws from."""
        if "modes" not in self._kept:
            check_same("fit.evidence or .verdict")
            weights, values = self.weighted(seed, num_draws)
            evidence = weights.evidence().log_evidence
            self._kept["modes"] = Modes(self.proposals, self.latents, self.labels).search(
                values, weights.normalized, evidence
            )
        return self._kept["modes"]

    def verdict(
        self, num_draws: int | None, *, end_problem: str, steps: int, num_failed: int, is_resampled: bool
    ) -> Verdict:
        """Return the verdict on the fit; see `judge_fit`."""
        findings = alignment_of(self.proposals.pair).left_out
        if self.proposals.pair.problem.is_streamed:
            return judge_unweighted(end_problem=end_problem, steps=steps, num_failed=num_failed, findings=findings)
        which = JUDGE_SEED, num_draws or self.usual_count
        weights, values = self.weighted(*which)
        return judge_fit(
            weights,
            values,
            end_problem=end_problem,
            steps=steps,
            num_failed=num_failed,
            is_resampled=is_resampled,
            findings=findings,
            moves=partial(self.moved, *which) if self.can_move else None,
            search=partial(self.searched, *which),
            labels=self.labels,
        )

    def evidence(self, seed: int, num_draws: int | None) -> Evidence:
        """Return the evidence; it is not reliable if moves or a search find regions that the guide misses."""
        num_draws = num_draws or self.usual_count
        weights, _ = self.weighted(seed, num_draws)
        if not weights.reliable or alignment_of(self.proposals.pair).left_out:
            return weights.evidence()._replace(reliable=False)
        gap, misses = 0.0, False
        if self.can_move and np.isfinite(weights.smoothed.k_hat):
            moves = self.moved(seed, num_draws)
            gap = weights.bridged(moves.log_after) - weights.evidence().log_evidence
            misses = Compared.of(list(moments_after(moves))).are_off
        evidence = weights.evidence(gap)
        if misses or self.searched(seed, num_draws).modes:
            return evidence._replace(reliable=False)
        return evidence
