"""Warm-up, pooled over every chain on every device: which rounds to run, and what to learn from them.

The chains run in short rounds. After each, the acceptance rates of the draws that ended in it, from all chains alike,
move the one step size they share; at the end of a window the moments of its draws give a new metric. The devices add up
what draws say, and what is learned from the sums is plain arithmetic on the host, the same in every process: the
compiled block knows nothing of it. With 64 chains a window has 64 times the draws, so that warm-up needs fewer
iterations the more chains there are.

A round is a number of ticks, not of draws: chains in a long trajectory do not keep the others waiting.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from phalanx.adaptation.metric import Metric
from phalanx.adaptation.schedule import windows
from phalanx.adaptation.step_size import StepSize, StepSizeState
from phalanx.adaptation.stuck import Landscape, Relocation, StuckChains
from phalanx.adaptation.trajectory import TrajectoryLength
from phalanx.adaptation.tuner import Sample, Stage, Sums, Tuner
from phalanx.kernels.kernel import Kernel

ROUNDS = 4
"""A round is a fourth as long as what came before it in the window."""

UNTRIED = 4.0
"""Ticks of a draw that the first rounds with another metric are made for, at most."""


def tuners_of(kernel: Kernel) -> list[Tuner]:
    """What warm-up learns for a kernel, in the order in which it is applied: a search bounds trajectories most."""
    found: list[Tuner] = []
    learns_metric, in_lock_step = kernel.metric is not None, kernel.machine.in_lock_step
    if kernel.metric is not None:
        found.append(Metric(kernel.metric, kernel.bound, kernel.early_bound))
    if kernel.tunes_trajectory:
        found.append(TrajectoryLength(float(kernel.tuning.trajectory_length), learns_metric))
    if kernel.target_acceptance is not None:
        of_trajectories = kernel.uses_gradient and in_lock_step
        found.append(StepSize(kernel.target_acceptance, learns_metric, of_trajectories, kernel.bound))
    return found


class WarmUpState(NamedTuple):
    """A warm-up whose next round is the first of a window, and begins trajectories anew.

    Attributes:
        window: number of the window.
        draws: made so far, over all chains.
        mean_steps: ticks of a draw, on average.
        abandon: whether trajectories under way must end.
        states: of the tuners.
    """

    window: int
    draws: int
    mean_steps: float
    abandon: bool
    states: tuple[Any, ...]


class WarmUp:
    """A warm-up in progress. Run `ticks` of each chain with `tuning`, hand over what they drew to `learn`, repeat.

    Args:
        kernel: the kernel to tune.
        num_chains: chains in all.
        num_warmup: iterations per chain.
        beginning: moments of the positions, and of the gradients there, where the chains begin.
        landscape: what the chains move in, as seen from the host.
    """

    def __init__(self, kernel: Kernel, num_chains: int, num_warmup: int, beginning: Sums, landscape: Landscape):
        self._kernel, self._num_chains = kernel, num_chains
        tuned = num_warmup if kernel.tuned_steps is None else min(num_warmup, kernel.tuned_steps)
        lengths = windows(tuned, kernel.metric is not None)
        self._windows = [*lengths, num_warmup - tuned] if num_warmup > tuned else lengths
        self._stage = Stage(0, len(lengths), len(self._windows))
        self._draws_of_window, self.draws = 0, 0
        self._begins = True  # no draw of the window has been seen, and no trajectory is under way
        self.mean_steps = 1.0
        """Ticks of a draw, on average."""
        self.abandon = False
        """Whether trajectories under way must end, because the metric they follow is no longer in use."""
        self.relocations: list[Relocation] = []
        """Chains that must go on beside others, because they have settled in the wrong place; see `stuck`."""
        self._stuck = StuckChains(num_chains, landscape) if kernel.relocates else None
        self._tuners = tuners_of(kernel)
        self._states: list[Any] = [tuner.init(kernel.tuning, beginning, self._stage) for tuner in self._tuners]
        self.tuning = self._applied()
        """Hyperparameters for the next round or, at the end, for sampling."""

    @property
    def state(self) -> WarmUpState | None:
        """All of it as a value; None where it is not between two windows, or trajectories go on."""
        if self.over or not self._begins:
            return None
        return WarmUpState(self._stage.window, self.draws, self.mean_steps, self.abandon, tuple(self._states))

    def go_on(self, state: WarmUpState) -> None:
        """Be where a warm-up of the same kernel and length was."""
        self._stage = self._stage._replace(window=state.window)
        self.draws, self.mean_steps, self.abandon = state.draws, state.mean_steps, state.abandon
        self._states = list(state.states)
        self._draws_of_window = 0
        self.tuning = self._applied()

    @property
    def iterations(self) -> float:
        """Draws made of each chain, on average."""
        return self.draws / self._num_chains

    @property
    def sampled_groups(self) -> int | None:
        """Groups of coordinates of which draws themselves are looked at; None is all, because chains may be stuck."""
        if self._stuck is not None and self._stuck.tells:
            return None
        return int(self._kernel.metric not in (None, "diagonal"))  # of the global ones correlations are learned

    @property
    def over(self) -> bool:
        """Whether there is nothing more to do."""
        return self._stage.over

    @property
    def ticks(self) -> int:
        """Ticks of the next round."""
        if self.searching:  # to abandon what is under way takes a tick
            return 1 if self._kernel.machine.in_lock_step or not self.abandon else 2
        iterations = self._draws_of_window / self._num_chains
        window = self._windows[self._stage.window]
        longest = 1 if self._kernel.tunes_trajectory else iterations / ROUNDS + 1
        return max(1, math.ceil(min(longest, window - iterations) * self.mean_steps))

    def learn(self, sums: Sums, draws: Callable[[], Sample | None]) -> None:
        """Take in a round; `draws` makes a sample of the draws of the window, when it ends."""
        self._learn(sums, draws)
        self.tuning = self._applied()

    def _learn(self, sums: Sums, draws: Callable[[], Sample | None]) -> None:
        self.abandon, self.relocations, self._begins = False, [], False
        if self.searching:
            if sums.draws:  # none where the round ended trajectories of another metric
                self._update(sums, searching=True)
            return
        if not sums.draws:  # longer trajectories than ever
            self.mean_steps *= 2
            return
        if not self._kernel.machine.in_lock_step:
            self.mean_steps = sums.mean("num_steps")
        self._update(sums, searching=False)
        self.draws += sums.draws
        self._draws_of_window += sums.draws
        if self._draws_of_window >= self._windows[self._stage.window] * self._num_chains:
            self._next_window(draws)

    @property
    def searching(self) -> bool:
        """Whether the next round is a single leapfrog, of which the step size alone learns."""
        return any(isinstance(state, StepSizeState) and state.search is not None for state in self._states)

    def _update(self, sums: Sums, searching: bool) -> None:
        """Let the tuners learn of a round."""
        self._states = [
            tuner.update(state, sums, self.tuning, self._stage)
            if isinstance(tuner, StepSize) or not searching
            else state
            for tuner, state in zip(self._tuners, self._states, strict=True)
        ]

    def _applied(self) -> Any:
        """What the tuners make of the kernel's hyperparameters."""
        tuning = self._kernel.tuning
        for tuner, state in zip(self._tuners, self._states, strict=True):
            tuning = tuner.apply(state, tuning, self._stage)
        return tuning

    def _next_window(self, draws: Callable[[], Sample | None]) -> None:
        window, self._draws_of_window = self._stage.window, 0
        self._stage = self._stage._replace(window=window + 1)
        sample = None if self.over else draws()  # at the end no time is left to come apart again
        if self._stuck is not None and sample is not None:
            self.relocations = self._stuck.relocations(sample, window)
            self.abandon = bool(self.relocations)
        if not self._stage.tunes:
            return
        self._states = [
            tuner.next_window(state, sample, self._stage)
            for tuner, state in zip(self._tuners, self._states, strict=True)
        ]
        if self._kernel.metric is not None:
            self.abandon = True
            self.mean_steps = min(self.mean_steps, UNTRIED)  # trajectories may be much shorter than before, or longer
        self._begins = self.abandon or self._kernel.machine.in_lock_step
