"""Schedule of a warm-up, pooled over every chain on every device: rounds of draws, and the tuners that learn from them.

In a round every chain makes the same number of draws with the same tuning. Tuners then learn from all draws of the
round together: acceptance rates move the shared step size, and at the end of a window the moments of its draws give a
new metric. The devices add up the draws; the tuners do plain arithmetic on the host, the same in every process. With 64
chains a window has 64 times the draws, so that warm-up needs fewer iterations the more chains there are.

Chains that are done with a round go on with the next while others are not; its tuning is known before the round begins.
A round ends by draws, never by time. A round that ended after a number of leapfrogs would catch chains where their
trajectories are long, and the draws that follow would begin there (the inspection paradox).
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
    """A warm-up between two windows.

    Attributes:
        window: number of the next window.
        iterations: draws made by each chain.
        states: of the tuners.
    """

    window: int
    iterations: int
    states: tuple[Any, ...]


class WarmUp:
    """A warm-up in progress: have each chain make `length` draws with `tuning`, pass their sums to `learn`, repeat.

    Args:
        kernel: the kernel to tune.
        num_chains: chains in all.
        num_warmup: iterations per chain.
        beginning: moments of the positions, and of the gradients there, where the chains begin.
        landscape: what the chains move in, as seen from the host.
    """

    def __init__(self, kernel: Kernel, num_chains: int, num_warmup: int, beginning: Sums, landscape: Landscape):
        self._kernel = kernel
        tuned = num_warmup if kernel.tuned_steps is None else min(num_warmup, kernel.tuned_steps)
        lengths = windows(tuned, kernel.metric is not None)
        self._windows = [*lengths, num_warmup - tuned] if num_warmup > tuned else lengths
        self._stage = Stage(0, len(lengths), len(self._windows))
        self._made = 0
        """Draws of each chain in this window."""
        self.iterations = 0
        """Draws of each chain; those of a search for a step size do not count."""
        self.relocations: list[Relocation] = []
        """Chains that continue beside others, because they have settled in the wrong place; see `stuck`."""
        self._stuck = StuckChains(num_chains, landscape) if kernel.relocates else None
        self._tuners = tuners_of(kernel)
        self._states: list[Any] = [tuner.init(kernel.tuning, beginning, self._stage) for tuner in self._tuners]
        self.tuning = self.later = self._applied()
        """Hyperparameters for the next round or, at the end, for sampling; and for the round after that."""

    @property
    def state(self) -> WarmUpState | None:
        """The warm-up as a value; None within a window, and at the end."""
        if self.over or self._made:
            return None
        return WarmUpState(self._stage.window, self.iterations, tuple(self._states))

    def go_on(self, state: WarmUpState) -> None:
        """Continue from the state of a warm-up of the same kernel and length."""
        self._stage = self._stage._replace(window=state.window)
        self.iterations, self._states, self._made = state.iterations, list(state.states), 0
        self.tuning = self.later = self._applied()

    @property
    def sampled_groups(self) -> int | None:
        """Groups of coordinates whose draws are kept until the window ends; None for all, to find stuck chains."""
        if self._stuck is not None and self._stuck.tells:
            return None
        return int(self._kernel.metric not in (None, "diagonal"))  # correlations are learned of the global ones

    @property
    def over(self) -> bool:
        """Return whether warm-up is complete."""
        return self._stage.over

    @property
    def length(self) -> int:
        """Draws of each chain in the next round."""
        return self._length_after(self._made)

    @property
    def ahead(self) -> int:
        """Draws of the round after the next, which chains may begin while others are not done with the next."""
        waits = self.searching or self._kernel.machine.in_lock_step
        return 0 if waits else self._length_after(self._made + self.length)

    def _length_after(self, made: int) -> int:
        left = self._windows[self._stage.window] - made
        if self.searching:
            return 1
        if not (self._kernel.is_tuned and self._stage.tunes):
            return left
        return min(1 if self._kernel.tunes_trajectory else math.ceil(made / ROUNDS) + 1, left)

    def learn(self, sums: Sums, draws: Callable[[], Sample | None]) -> None:
        """Learn from a round; `draws` returns the draws of the window, and is called when the window ends.

        Where chains may run ahead, the round after the next is the first that is drawn as this one suggests.
        """
        self.relocations, searching, (length, ahead) = [], self.searching, (self.length, self.ahead)
        self._states = [
            tuner.update(state, sums, self.tuning, self._stage)
            if isinstance(tuner, StepSize) or not searching
            else state
            for tuner, state in zip(self._tuners, self._states, strict=True)
        ]
        if not searching:
            self.iterations += length
            self._made += length
            if self._made == self._windows[self._stage.window]:
                self._next_window(draws)
        applied = self._applied()
        self.tuning, self.later = (self.later if ahead else applied), applied

    @property
    def searching(self) -> bool:
        """Return whether the next round is a single leapfrog, from which the step size alone learns."""
        return any(isinstance(state, StepSizeState) and state.search is not None for state in self._states)

    def _applied(self) -> Any:
        """The kernel's hyperparameters, as the tuners set them."""
        tuning = self._kernel.tuning
        for tuner, state in zip(self._tuners, self._states, strict=True):
            tuning = tuner.apply(state, tuning, self._stage)
        return tuning

    def _next_window(self, draws: Callable[[], Sample | None]) -> None:
        window, self._made = self._stage.window, 0
        self._stage = self._stage._replace(window=window + 1)
        sample = None if self.over else draws()  # at the end no time is left to come apart again
        if self._stuck is not None and sample is not None:
            self.relocations = self._stuck.relocations(sample, window)
        if self._stage.tunes:
            self._states = [
                tuner.next_window(state, sample, self._stage)
                for tuner, state in zip(self._tuners, self._states, strict=True)
            ]
