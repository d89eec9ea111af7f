"""Tuner of the length of trajectories, by Adam on the gradient of ChEES; see `phalanx.kernels.chees`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from phalanx.adaptation.tuner import Sample, Stage, Sums, Tuner, array_module, where
from phalanx.mesh.specs import PyTree

LEARNING_RATE = 0.05
"""Change of the logarithm of the length in a step of Adam of size one."""

MEAN_DECAY = 0.5
"""Weight of earlier gradients in Adam's mean: small, since a round already averages over all chains."""

SQUARES_DECAY = 0.95
"""Weight of earlier gradients in Adam's mean of squares."""

SMOOTHING = 0.9
"""Weight of earlier rounds in the average of the logarithm of the length, which sampling uses."""


class Adam(NamedTuple):
    """State of Adam: steps of about one, in the direction of a gradient that is noisy and of any scale.

    Source: Kingma, Ba (2015), Adam: a method for stochastic optimization.
    """

    mean: Any = 0.0
    squares: Any = 0.0
    rounds: Any = 0.0

    def after(self, gradient: Any) -> Adam:
        """Return the state after another gradient."""
        mean = MEAN_DECAY * self.mean + (1 - MEAN_DECAY) * gradient
        squares = SQUARES_DECAY * self.squares + (1 - SQUARES_DECAY) * gradient**2
        return Adam(mean, squares, self.rounds + 1.0)

    @property
    def step(self) -> Any:
        """The step to take."""
        xp = array_module(self.mean)
        root = xp.sqrt(self.squares / (1 - SQUARES_DECAY**self.rounds))
        return xp.where(root > 0, self.mean / (1 - MEAN_DECAY**self.rounds) / xp.where(root > 0, root, 1.0), 0.0)


class TrajectoryState(NamedTuple):
    """First length, logarithms of the length and of its average over rounds, and two states of Adam.

    Adam climbs ChEES (`change`), and the squared distance between the ends of trajectories (`jump`).
    """

    first: Any
    log_length: Any
    log_average: Any
    change: Adam = Adam()
    jump: Adam = Adam()

    @classmethod
    def start(cls, length: float) -> TrajectoryState:
        """Begin at a length."""
        return cls(length, math.log(length), math.log(length))

    @property
    def length(self) -> Any:
        """The length to try next."""
        return array_module(self.log_length).exp(self.log_length)

    @property
    def averaged(self) -> Any:
        """The length to keep."""
        return array_module(self.log_average).exp(self.log_average)

    def after(self, change: Any, jump: Any, acceptance: Any, shortest: Any) -> TrajectoryState:
        """Return the state after a round.

        Args:
            change: sum of its draws' gradients of ChEES, weighted by acceptance.
            jump: sum of the gradients of the squared distance between a trajectory's ends, also weighted.
            acceptance: sum of acceptance rates.
            shortest: a lower bound on the length.
        """
        xp = array_module(acceptance)
        is_good = (acceptance > 0) & xp.isfinite(change) & xp.isfinite(jump)
        change, jump = (xp.where(is_good, x, 0.0) / xp.where(is_good, acceptance, 1.0) for x in (change, jump))
        adams = self.change.after(change), self.jump.after(jump)
        # beyond some length the gradient of ChEES is mere noise, in which the length would drift: take the lesser step
        move = LEARNING_RATE * xp.minimum(adams[0].step, adams[1].step)
        log_length = xp.maximum(self.log_length + move, xp.log(shortest))
        log_average = SMOOTHING * self.log_average + (1 - SMOOTHING) * log_length
        return where(is_good, TrajectoryState(self.first, log_length, log_average, *adams), self)


@dataclass(frozen=True)
class TrajectoryLength(Tuner):
    """Tuner of `trajectory_length`, from the statistics `trajectory_gradient` and `jump_gradient`.

    It also sets `learns`, true until warm-up is over, so that the kernel need not compute these later. If a kernel has
    `in_warm_up`, it is the same, but for particles: their moves must leave a distribution invariant.

    Example:
        >>> import phalanx as phx
        >>> phx.kernels.TrajectoryLength().sets
        ('trajectory_length',)
    """

    sets: ClassVar[tuple[str, ...]] = ("trajectory_length",)
    every_draw: ClassVar[bool] = True
    on_devices: ClassVar[bool] = True

    def check(self, kernel: str, num_chains: int) -> None:
        """Raise unless there are two chains to compare."""
        if num_chains < 2:
            raise ValueError(
                f"num_chains={num_chains}: {kernel} finds the length of trajectories by comparing chains, and needs at "
                f"least two. Run more chains, or pass trajectory_length=."
            )

    def init(self, tuning: PyTree, beginning: Sums, stage: Stage) -> TrajectoryState:
        """Return the first length."""
        return TrajectoryState.start(float(tuning.trajectory_length))

    def update(self, state: TrajectoryState, sums: Sums, tuning: PyTree, stage: Stage) -> TrajectoryState:
        """Make a step of Adam."""
        change, jump, acceptance = (
            sums.stats[name] for name in ("trajectory_gradient", "jump_gradient", "acceptance_rate")
        )
        shortest = array_module(tuning.step_size).asarray(tuning.step_size, np.float64)
        return state.after(change, jump, acceptance, shortest)

    def next_window(self, state: TrajectoryState, sample: Sample | None, stage: Stage) -> TrajectoryState:
        """Begin again where the metric has changed.

        A length found under a poor metric may be much too long, where the gradient no longer leads back. The length of
        the longest window, before the last change, is kept: the rest of warm-up is too short to find it again.
        """
        return TrajectoryState.start(float(state.first)) if stage.renews and not stage.is_last_tuned else state

    def apply(self, state: TrajectoryState, tuning: PyTree, stage: Stage) -> PyTree:
        """Set the length to try, or to keep."""
        xp = array_module(state, stage)
        length = xp.asarray(xp.where(stage.over, state.averaged, state.length), tuning.trajectory_length.dtype)
        return FixedLength().apply(FixedLengthState(), tuning._replace(trajectory_length=length), stage)


class FixedLengthState(NamedTuple):
    """State of a tuner that learns nothing."""


@dataclass(frozen=True)
class FixedLength(Tuner):
    """Tuner that leaves `trajectory_length` as it is, and sets what else `TrajectoryLength` does."""

    on_devices: ClassVar[bool] = True

    def init(self, tuning: PyTree, beginning: Sums, stage: Stage) -> FixedLengthState:
        """Return the only state."""
        return FixedLengthState()

    def update(self, state: FixedLengthState, sums: Sums, tuning: PyTree, stage: Stage) -> FixedLengthState:
        """Return the same state."""
        return state

    def apply(self, state: FixedLengthState, tuning: PyTree, stage: Stage) -> PyTree:
        """Set whether warm-up goes on."""
        goes_on = ~array_module(stage).asarray(stage.over)
        tuning = tuning._replace(learns=goes_on)
        if "in_warm_up" not in tuning._fields:
            return tuning
        return tuning._replace(in_warm_up=goes_on & stage.of_warm_up)
