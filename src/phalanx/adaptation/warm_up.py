"""Warm-up, pooled over every chain on every device: which rounds to run, and what to learn from them.

The chains run in short rounds. After each, the acceptance rates of the draws that ended in it, from all chains alike,
move the one step size they share; at the end of a window the draws themselves give a new metric. All of it is plain
arithmetic on the host: the compiled block knows nothing of it. With 64 chains a window has 64 times the draws, so that
warm-up needs fewer iterations the more chains there are.

A round is a number of ticks, not of draws: chains in a long trajectory do not keep the others waiting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from phalanx.adaptation import dual_averaging
from phalanx.adaptation.acceptance import harmonic_mean, harmonic_mean_of_normal_errors
from phalanx.adaptation.metric import MetricLearner, Vectors
from phalanx.adaptation.schedule import windows
from phalanx.adaptation.strays import Landscape, Move, Strays
from phalanx.adaptation.trajectory import Trajectory
from phalanx.kernels.kernel import Kernel

ROUNDS = 4
"""A round is a fourth as long as what came before it in the window."""

LEAN = 10.0
"""How much larger than the first step size tuning leans to where no search has found a good one."""

SEARCHES = 50
"""Doublings or halvings of the step size after which the search gives up."""


class Batch(NamedTuple):
    """Draws that ended in a round, chain by chain: vectors `(draw, coordinate)` by group, statistics `(draw,)`."""

    position: Vectors
    gradient: Vectors
    stats: Mapping[str, np.ndarray]
    chain: np.ndarray


class WarmUp:
    """A warm-up in progress. Run `ticks` of each chain with `tuning`, hand over what they drew to `learn`, repeat.

    Args:
        kernel: the kernel to tune.
        num_chains: chains in all.
        num_warmup: iterations per chain.
        beginning: positions and gradients where the chains begin.
        landscape: what the chains move in, as seen from the host.
    """

    def __init__(self, kernel: Kernel, num_chains: int, num_warmup: int, beginning: Batch, landscape: Landscape):
        self._kernel, self._num_chains = kernel, num_chains
        tuned = num_warmup if kernel.tuned_steps is None else min(num_warmup, kernel.tuned_steps)
        lengths = windows(tuned, kernel.metric is not None)
        self._windows = [*lengths, num_warmup - tuned] if num_warmup > tuned else lengths
        self._tuned_windows = len(lengths)
        self._window, self._draws_of_window, self.draws = 0, 0, 0
        self.mean_steps = 1.0
        """Ticks of a draw, on average."""
        self.abandon = False
        """Whether trajectories under way must end, because the metric they follow is no longer in use."""
        self.moves: list[Move] = []
        """Chains that must go on beside others, because they have settled in the wrong place; see `strays`."""
        self._strays = Strays(num_chains, landscape) if kernel.relocates else None

        step_size = float(kernel.tuning.step_size)
        self._searching = num_warmup > 0 and self._can_search
        self._search = Search(step_size)
        self._averaging = dual_averaging.start(step_size, LEAN)
        self._metric = None
        if kernel.metric is not None:
            sizes = [part.shape[1] for part in beginning.position]
            self._metric = MetricLearner(sizes, kernel.metric, kernel.tuning.step_size.dtype)
            if num_warmup:
                self._metric.see(beginning.position, beginning.gradient)
                self._metric.update_scales()
        self._trajectory = Trajectory.start(float(kernel.tuning.trajectory_length)) if kernel.tunes_trajectory else None
        self._placed = None if self._metric is None else self._metric.metric

    @property
    def iterations(self) -> float:
        """Draws made of each chain, on average."""
        return self.draws / self._num_chains

    @property
    def over(self) -> bool:
        """Whether there is nothing more to do."""
        return self._window == len(self._windows)

    @property
    def tuning(self) -> Any:
        """Hyperparameters for the next round or, at the end, for sampling."""
        tuning = self._kernel.tuning
        if self._kernel.target_acceptance is not None:
            tuning = tuning._replace(step_size=np.asarray(self._step_size, tuning.step_size.dtype))
        if self._metric is not None:
            tuning = tuning._replace(metric=self._placed)
        if self._trajectory is not None:
            length = self._trajectory.averaged if self.over else self._trajectory.length
            length = np.asarray(length, tuning.trajectory_length.dtype)
            tuning = tuning._replace(trajectory_length=length, learns=np.bool_(not self.over))
        most = 1 if self._searching else self._kernel.early_bound if self._window < 2 and not self.over else None
        bound = self._kernel.bound
        if bound is None or most is None:
            return tuning
        return tuning._replace(**{bound: np.minimum(getattr(tuning, bound), np.int32(most))})

    @property
    def ticks(self) -> int:
        """Ticks of the next round."""
        if self._searching:
            return 1
        iterations = self._draws_of_window / self._num_chains
        left = self._windows[self._window] - iterations
        longest = iterations / ROUNDS + 1 if self._trajectory is None else 1
        return max(1, math.ceil(min(longest, left) * self.mean_steps))

    def learn(self, batch: Batch) -> None:
        """Take in a round."""
        self.abandon, self.moves = False, []
        count = len(batch.stats["acceptance_rate"])
        rates = batch.stats["acceptance_rate"].astype(np.float64)
        acceptance = float(rates.mean()) if count else math.nan
        if self._searching:
            if count:  # none where the round ended trajectories of another metric
                self._learn_from_search(acceptance)
            return
        if not count:  # longer trajectories than ever
            self.mean_steps *= 2
            return
        if not self._kernel.machine.in_step:
            self.mean_steps = float(batch.stats["num_steps"].mean(dtype=np.float64))
        if self._metric is not None:
            self._metric.see(batch.position, batch.gradient)
        if self._strays is not None:
            self._strays.see(batch.position, batch.stats["log_density"], batch.chain)
        target = self._kernel.target_acceptance
        if target is not None and self._window < self._tuned_windows:
            if self._kernel.machine.in_step and self._can_search:  # a draw's rate is that of one trajectory, not a mean
                acceptance, target = harmonic_mean(rates), harmonic_mean_of_normal_errors(target)
            self._averaging = dual_averaging.update(self._averaging, acceptance, target)
        if self._trajectory is not None:
            changes, jumps = batch.stats["trajectory_gradient"], batch.stats["jump_gradient"]
            self._trajectory = self._trajectory.after(changes, jumps, rates, self._step_size)
        self.draws += count
        self._draws_of_window += count
        if self._draws_of_window >= self._windows[self._window] * self._num_chains:
            self._next_window()

    @property
    def _can_search(self) -> bool:
        """Whether a step size is first tried on single leapfrogs; a random walk's acceptance is too noisy for that."""
        return self._kernel.target_acceptance is not None and self._kernel.uses_gradient

    @property
    def _step_size(self) -> float:
        if self._searching:
            return self._search.step_size
        tuned = self._window < self._tuned_windows
        return self._averaging.step_size if tuned else self._averaging.averaged

    def _learn_from_search(self, acceptance: float) -> None:
        self._search = self._search.after(acceptance, self._kernel.target_acceptance or 0.0)
        if self._search.found:
            self._searching = False
            self._averaging = dual_averaging.start(self._search.step_size)

    def _next_window(self) -> None:
        self._window, self._draws_of_window = self._window + 1, 0
        if self._strays is not None and not self.over:  # at the end no time is left to come apart again
            self.moves = self._strays.moves()
            self.abandon = bool(self.moves)
            self._strays.forget()
        if self._window >= self._tuned_windows:
            return
        self._averaging = dual_averaging.start(self._averaging.averaged)
        if self._metric is not None:
            self._metric.update()
            self._placed = self._metric.metric
            self.abandon, self.mean_steps = True, 1.0  # trajectories may be much shorter than before, or longer
            # a length found under a poor metric may be too long by far, and of one too long no way leads back; that of
            # the longest window, before the last change, is kept: what is left of warm-up would not do to find it again
            if self._trajectory is not None and self._window < self._tuned_windows - 1:
                self._trajectory = Trajectory.start(float(self._kernel.tuning.trajectory_length))
            if self._can_search:
                self._searching, self._search = True, Search(self._averaging.averaged)


class Search(NamedTuple):
    """A search for a step size of which a single leapfrog is accepted about as often as it should be.

    Source: Hoffman, Gelman (2014), The No-U-Turn Sampler, algorithm 4; here pooled over all chains.
    """

    step_size: float
    factor: float = 1.0
    tries: int = 0

    @property
    def found(self) -> bool:
        """Whether the search is over."""
        return self.factor == 0.0

    def after(self, acceptance: float, target: float) -> Search:
        """The search after a round at its step size."""
        factor = 2.0 if acceptance > target else 0.5  # so written, a NaN calls for a smaller step
        if self.tries and factor != self.factor:
            return Search(self.step_size * min(factor, 1.0), 0.0, self.tries)  # of the two the smaller
        if self.tries == SEARCHES:
            return Search(self.step_size, 0.0, self.tries)
        return Search(self.step_size * factor, factor, self.tries + 1)
