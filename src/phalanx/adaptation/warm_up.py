"""Schedule of a warm-up, pooled over every chain on every device: rounds of draws, and the tuners that learn from them.

In a round every chain makes the same number of draws with the same tuning. Tuners then learn from all draws of the
round together: acceptance rates move the shared step size, and at the end of a window the moments of its draws give a
new metric. The devices add up the draws; the tuners do plain arithmetic on the host, the same in every process. With 64
chains a window has 64 times the draws, so that warm-up needs fewer iterations the more chains there are.

A chain that has completed a round may begin the next before the others, since the next tuning is known already. A round
ends after a number of draws, never after a time: rounds of equal numbers of leapfrog steps would end more often within
long trajectories, so that the first draws of the next round would be biased (the inspection paradox).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from phalanx.adaptation.stuck_chains import Relocation, StuckChains
from phalanx.adaptation.tuner import LAST_LEAST, RecentredDraws, Sample, Stage, Sums, Tuner, array_module
from phalanx.mesh.specs import PyTree

EARLIER_DRAWS_PER_DRAW = 4
"""Earlier draws of a window for each draw of its next round. The rounds of a window grow by a quarter each: short ones
correct the tuning often while it is poor, and a window of any length has few."""


class WarmUpState(NamedTuple):
    """State of a warm-up between two rounds.

    Attributes:
        window: number of the current window.
        draws: draws of each chain in this window.
        iterations: draws of each chain, without those of a search for a step size.
        states: states of the tuners.
        tuning: hyperparameters of the next round or, after the last, of sampling.
    """

    window: int
    draws: int
    iterations: int
    states: tuple[Any, ...]
    tuning: Any


class WarmUp:
    """Schedule: have each chain make `length(state)` draws with `state.tuning`, pass their sums to `learn`, repeat.

    Args:
        tuners: tuners in the order in which they set hyperparameters.
        tuning: initial hyperparameters.
        num_warmup: iterations per chain.
        tuned_steps: iterations in which anything is tuned; None means all of them.
        stuck: search for chains to relocate; None to relocate none.
        runs_ahead: true if chains may begin a round before others have completed the one before.
    """

    def __init__(
        self,
        tuners: Sequence[Tuner],
        tuning: PyTree,
        num_warmup: int,
        tuned_steps: int | None = None,
        stuck: StuckChains | None = None,
        runs_ahead: bool = False,
    ):
        self._tuners = tuners
        self._first = tuning
        self._stuck = stuck
        # compiled blocks take a second step size for chains that are ahead, but no other second hyperparameter
        self.runs_ahead = runs_ahead and all(name == "step_size" for tuner in tuners for name in tuner.sets)
        self.renews = any(tuner.renews for tuner in tuners)
        num_tuned = num_warmup if tuned_steps is None else min(num_warmup, tuned_steps)
        lengths = windows(num_tuned, self.renews, min((tuner.least_last for tuner in tuners), default=LAST_LEAST))
        self._tuned = len(lengths)
        self._every_draw = any(tuner.every_draw for tuner in tuners)
        self.window_lengths = [*lengths, num_warmup - num_tuned] if num_warmup > num_tuned else lengths

    @property
    def names(self) -> list[str]:
        """Hyperparameters that are set anew after a round."""
        return sorted({name for tuner in self._tuners for name in tuner.sets})

    def begin(self, beginning: Sums) -> WarmUpState:
        """Return the first state, given moments of the initial positions and their gradients."""
        stage = self.stage(0)
        states = tuple(tuner.init(self._first, beginning, stage) for tuner in self._tuners)
        state = WarmUpState(0, 0, 0, states, self._first)
        return state._replace(tuning=self.later(state))

    def continued(self, beginning: Sums, previous: WarmUpState) -> WarmUpState:
        """Return a state read from a file, with tuners' states in their classes."""
        mine = self.begin(beginning)
        states = tuple(_as_type(*pair) for pair in zip(mine.states, previous.states, strict=True))
        state = WarmUpState(*previous)._replace(states=states)
        later = self.later(state)
        # if chains run ahead, the tuners have a newer step size than that of the next round
        tuning = later._replace(step_size=previous.tuning.step_size) if self.runs_ahead else later
        return state._replace(tuning=tuning)

    @property
    def runs_on_devices(self) -> bool:
        """True if the rounds of a window can be one compiled program: tuners that learn from statistics come last."""
        later = [tuner.learns_from == "statistics" for tuner in self._tuners]
        # the methods of a subclass need not be those that its base promises for
        say_so = all(vars(type(tuner)).get("on_devices", False) for tuner in self._tuners)
        return bool(later) and say_so and later == sorted(later)

    @property
    def round_tuners(self) -> tuple[Tuner, ...]:
        """Tuners that learn from the statistics of each round."""
        return tuple(tuner for tuner in self._tuners if tuner.learns_from == "statistics")

    @property
    def num_sampled_groups(self) -> int | None:
        """Groups of coordinates of the draws to keep until the window ends: 0, 1 (the global ones), or None for all."""
        if self._stuck is not None and self._stuck.compares:
            return None  # chains are compared in all coordinates
        return int(any(tuner.learns_from == "draws" for tuner in self._tuners))

    def over(self, state: WarmUpState) -> bool:
        """Return True if warm-up is complete."""
        return self.stage(state.window).over

    def length(self, state: WarmUpState) -> int:
        """Return the draws of each chain in the next round."""
        return self._length_after(state, state.draws)

    def ahead(self, state: WarmUpState) -> int:
        """Return the draws of the round after the next, which chains may begin before others complete the next."""
        runs = self.runs_ahead and not self.searching(state)
        return self._length_after(state, state.draws + self.length(state)) if runs else 0

    def later(self, state: WarmUpState, of_window: bool = False) -> PyTree:
        """Return the hyperparameters that the tuners set now, for the round after the next if chains run ahead.

        Those of a window are without what `round_tuners` set.
        """
        tuning = self._first
        stage = self.stage(state.window)
        for tuner, tuner_state in zip(self._tuners, state.states, strict=True):
            if not (of_window and tuner in self.round_tuners):
                tuning = tuner.apply(tuner_state, tuning, stage)
        return tuning

    def round_states(self, state: WarmUpState) -> tuple[Any, ...]:
        """Return the states of `round_tuners`."""
        pairs = zip(self._tuners, state.states, strict=True)
        return tuple(tuner_state for tuner, tuner_state in pairs if tuner in self.round_tuners)

    def searching(self, state: WarmUpState) -> bool:
        """Return True if the next round is a single short draw, from which only tuners that search learn."""
        searching = self.searching_sets(state)
        return searching if isinstance(searching, bool) else bool(np.any(searching))

    def searching_sets(self, state: WarmUpState) -> Any:
        """Return the same for each of many data sets; those that are not searching wait for the others."""
        searches = (tuner.searches(tuner_state) for tuner, tuner_state in zip(self._tuners, state.states, strict=True))
        return functools.reduce(operator.or_, searches, False)  # np.logical_or takes long for two numbers

    def ends_window(self, state: WarmUpState) -> bool:
        """Return True if the window has all of its draws; `next_window` begins another one."""
        return state.draws == self.window_lengths[state.window]

    def samples_window(self, state: WarmUpState) -> bool:
        """Return True if the draws of the window are needed for the next one."""
        return not self.stage(state.window + 1).over  # chains relocated at the end would stay correlated

    def settling_draws(self, state: WarmUpState, num_draws: int) -> tuple[int, int] | None:
        """Return the first draw of the second eighth of the last window that tunes, and the first one after it.

        None unless draws after the first `num_draws` have completed that eighth. The verdict compares the draws of
        sampling with these, which are early draws of a time in which the tuning changes little.
        """
        window = self.window_lengths[state.window]
        first = window // 8
        end = max(window // 4, 1)
        last = state.window == self._tuned - 1
        return (first, end) if last and num_draws < end <= state.draws else None

    def tunes_next(self, state: WarmUpState) -> bool:
        """Return True if anything is tuned in the next window."""
        return self.stage(state.window + 1).tunes

    def learn(self, state: WarmUpState, sums: Sums) -> WarmUpState:
        """Return the state after a round, given sums over its draws.

        If chains may run ahead, the round after the next is the first with hyperparameters learned from this one.
        """
        searching, (length, ahead) = self.searching(state), (self.length(state), self.ahead(state))
        later = self.later(state) if ahead else None
        stage = self.stage(state.window)
        states = tuple(
            tuner.update(tuner_state, sums, state.tuning, stage)
            if not searching or np.any(tuner.searches(tuner_state))
            else tuner_state
            for tuner, tuner_state in zip(self._tuners, state.states, strict=True)
        )
        state = state._replace(states=states)
        if not searching:
            state = state._replace(iterations=state.iterations + length, draws=state.draws + length)
        return state._replace(tuning=later if ahead else self.later(state))

    def learned_on_devices(
        self, state: WarmUpState, states: Sequence[Any], sums: Sums, num_draws: int, step_size: np.ndarray | None
    ) -> WarmUpState:
        """Return the state after rounds that the devices made.

        Args:
            state: state before them.
            states: states of `round_tuners`.
            sums: sums over the draws of these rounds, without those of a search for a step size.
            num_draws: draws of each chain in the window.
            step_size: that of the next round; None for that of the tuners.
        """
        stage = self.stage(state.window)
        device_states = iter(states)
        states = tuple(
            next(device_states) if tuner in self.round_tuners else tuner.update(tuner_state, sums, state.tuning, stage)
            for tuner, tuner_state in zip(self._tuners, state.states, strict=True)
        )
        iterations = state.iterations + num_draws - state.draws
        state = state._replace(states=states, draws=num_draws, iterations=iterations)
        tuning = self.later(state)
        return state._replace(tuning=tuning if step_size is None else tuning._replace(step_size=step_size))

    def next_window(
        self, state: WarmUpState, sample: Sample | None, recentred_draws: RecentredDraws | None = None
    ) -> tuple[WarmUpState, list[Relocation]]:
        """Return the state before the next window, and the chains that continue beside others.

        Args:
            state: state after the last round of a window.
            sample: draws of the window, if they are needed; see `samples_window`.
            recentred_draws: the same in the coordinates of the next window, if those differ.
        """
        relocations = []
        if self._stuck is not None and sample is not None:
            relocations = self._stuck.relocations(sample, state.window)
        state = self._start_window(state, sample, recentred_draws)
        return state._replace(tuning=self.later(state)), relocations

    def _start_window(
        self, state: WarmUpState, sample: Sample | None, recentred_draws: RecentredDraws | None
    ) -> WarmUpState:
        state = state._replace(window=state.window + 1, draws=0)
        stage = self.stage(state.window)
        if not stage.tunes:
            return state
        states = list(state.states)
        for number, tuner in enumerate(self._tuners):
            if recentred_draws is not None and tuner.renews:
                empty = tuner.next_window(states[number], None, stage)
                states[number] = tuner.update(empty, recentred_draws.moments, state.tuning, stage)
            window_sample = sample if recentred_draws is None else recentred_draws.sample
            states[number] = tuner.next_window(states[number], window_sample, stage)
        return state._replace(states=tuple(states))

    def round_length(self, searching: Any, num_draws: Any, window_length: Any) -> Any:
        """Return the draws of each chain in a round, after `num_draws` draws of a window that tunes."""
        xp = array_module(num_draws)
        length = 1 if self._every_draw else (num_draws + EARLIER_DRAWS_PER_DRAW - 1) // EARLIER_DRAWS_PER_DRAW + 1
        return xp.where(searching, 1, xp.minimum(length, window_length - num_draws))

    def stage(self, window: int) -> Stage:
        """Return the position in warm-up of the rounds of a window."""
        return Stage(window, self._tuned, len(self.window_lengths), self.renews)

    def _length_after(self, state: WarmUpState, num_draws: int) -> int:
        window_length = self.window_lengths[state.window]
        if not (self._tuners and self.stage(state.window).tunes):
            return window_length - num_draws
        return int(self.round_length(self.searching(state), num_draws, window_length))


def _as_type(mine: PyTree, previous: PyTree) -> PyTree:
    """Return a state in the class of `mine`, since a file does not contain the classes of users."""
    return type(mine)(*previous) if isinstance(previous, tuple) and not isinstance(previous, type(mine)) else previous


FIRST = 10
"""Iterations of the first two windows; each later window is twice as long as the one before."""

LAST_FRACTION = 0.15
"""Fraction of the warm-up after the last change of the metric: for the step size alone."""


def windows(num_warmup: int, learns_metric: bool, least_last: int = LAST_LEAST) -> list[int]:
    """Return the iterations of each window; they add up to `num_warmup`.

    At the end of each but the last, a kernel that learns a metric adopts the one that its draws suggest. The windows
    double, so that early ones forget the way to the typical set quickly and the last has half of all draws. A kernel
    without a metric has two: chains on their way to the typical set need other steps than chains in it.

    Args:
        num_warmup: iterations in all.
        learns_metric: true if the kernel learns a metric.
        least_last: the fewest iterations of the last window of a kernel that learns a metric.

    Returns:
        Their lengths.
    """
    if num_warmup == 0:
        return []
    if not learns_metric:
        return [n for n in (num_warmup // 2, num_warmup - num_warmup // 2) if n]
    last = max(round(LAST_FRACTION * num_warmup), least_last)
    num_left = num_warmup - last
    lengths = []
    while num_left > 0:
        length = max(FIRST, sum(lengths))
        # a remainder shorter than this window joins it
        lengths.append(length if num_left - length >= length else num_left)
        num_left -= lengths[-1]
    return [*lengths, num_warmup - sum(lengths)]
