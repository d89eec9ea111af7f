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
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from phalanx.adaptation.schedule import windows
from phalanx.adaptation.stuck_chains import Relocation, StuckChains
from phalanx.adaptation.tuner import Sample, Stage, Sums, Tuner

ROUNDS = 4
"""A round is a fourth as long as what came before it in the window."""


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
        tuners: what is learned, in the order in which hyperparameters are set.
        tuning: the hyperparameters to begin with.
        num_warmup: iterations per chain.
        beginning: moments of the positions, and of the gradients there, where the chains begin.
        tuned_steps: iterations in which anything is tuned; None means all of them.
        stuck: finds chains to be relocated; None where none are.
        runs_ahead: whether chains may begin a round while others are not done with the one before.
    """

    def __init__(
        self, tuners: Sequence[Tuner], tuning: Any, num_warmup: int, beginning: Sums, tuned_steps: int | None = None,
        stuck: StuckChains | None = None, runs_ahead: bool = False,
    ):  # fmt: skip
        self._tuners, self._first, self._stuck = tuners, tuning, stuck
        # a chain that is ahead has the step size of its own round, and all else of the round that the others are in
        self._runs_ahead = runs_ahead and all(name == "step_size" for tuner in tuners for name in tuner.sets)
        renews = any(tuner.renews for tuner in tuners)
        tuned = num_warmup if tuned_steps is None else min(num_warmup, tuned_steps)
        lengths = windows(tuned, renews)
        self._windows = [*lengths, num_warmup - tuned] if num_warmup > tuned else lengths
        self._stage = Stage(0, len(lengths), len(self._windows), renews)
        self._made = 0
        """Draws of each chain in this window."""
        self.iterations = 0
        """Draws of each chain; those of a search for a step size do not count."""
        self.relocations: list[Relocation] = []
        """Chains that continue beside others, because they have settled in the wrong place; see `stuck`."""
        self._states: list[Any] = [tuner.init(tuning, beginning, self._stage) for tuner in tuners]
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
        self.iterations, self._made = state.iterations, 0
        self._states = [_as_type(mine, known) for mine, known in zip(self._states, state.states, strict=True)]
        self.tuning = self.later = self._applied()

    @property
    def sampled_groups(self) -> int | None:
        """Groups of coordinates whose draws are kept until the window ends; None for all, to find stuck chains."""
        if self._stuck is not None and self._stuck.tells:
            return None
        return int(any(tuner.learns_from == "draws" for tuner in self._tuners))

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
        return self._length_after(self._made + self.length) if self._runs_ahead and not self.searching else 0

    def _length_after(self, made: int) -> int:
        left = self._windows[self._stage.window] - made
        if self.searching:
            return 1
        if not (self._tuners and self._stage.tunes):
            return left
        every_draw = any(tuner.every_draw for tuner in self._tuners)
        return min(1 if every_draw else math.ceil(made / ROUNDS) + 1, left)

    def learn(self, sums: Sums, draws: Callable[[], Sample | None]) -> None:
        """Learn from a round; `draws` returns the draws of the window, and is called when the window ends.

        Where chains may run ahead, the round after the next is the first that is drawn as this one suggests.
        """
        self.relocations, searching, (length, ahead) = [], self.searching, (self.length, self.ahead)
        self._states = [
            tuner.update(state, sums, self.tuning, self._stage) if not searching or tuner.searches(state) else state
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
        """Return whether the next round is a single short draw, from which only tuners that search learn."""
        return any(tuner.searches(state) for tuner, state in zip(self._tuners, self._states, strict=True))

    def _applied(self) -> Any:
        """The kernel's hyperparameters, as the tuners set them."""
        tuning = self._first
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


def _as_type(mine: Any, known: Any) -> Any:
    """A state in the class of a tuner's own states: a file does not know the classes of users."""
    return type(mine)(*known) if isinstance(known, tuple) and not isinstance(known, type(mine)) else known
