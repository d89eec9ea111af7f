"""The length of trajectories, moved by Adam along the gradient of ChEES; see `phalanx.kernels.chees`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

RATE, DECAY, DECAY_OF_SQUARES = 0.05, 0.5, 0.95
"""Of Adam. The mean decays fast, since a round already averages over all chains."""

SMOOTHING = 0.9
"""Share of the past in the average that is used in the end."""


class Adam(NamedTuple):
    """Steps of about one, in the direction of a gradient that is noisy and of any scale.

    Source: Kingma, Ba (2015), Adam: a method for stochastic optimization.
    """

    mean: float = 0.0
    squares: float = 0.0
    rounds: int = 0

    def after(self, gradient: float) -> Adam:
        """After another gradient."""
        mean = DECAY * self.mean + (1 - DECAY) * gradient
        squares = DECAY_OF_SQUARES * self.squares + (1 - DECAY_OF_SQUARES) * gradient**2
        return Adam(mean, squares, self.rounds + 1)

    @property
    def step(self) -> float:
        """The step to take."""
        root = math.sqrt(self.squares / (1 - DECAY_OF_SQUARES**self.rounds))
        return self.mean / (1 - DECAY**self.rounds) / root if root else 0.0


class Trajectory(NamedTuple):
    """The logarithm of the length, its average over rounds, and what Adam keeps of ChEES and of the squared jump."""

    log_length: float
    log_average: float
    change: Adam = Adam()
    jump: Adam = Adam()

    @classmethod
    def start(cls, length: float) -> Trajectory:
        """Begin at a length."""
        return cls(math.log(length), math.log(length))

    @property
    def length(self) -> float:
        """The length to try next."""
        return math.exp(self.log_length)

    @property
    def averaged(self) -> float:
        """The length to keep."""
        return math.exp(self.log_average)

    def after(self, changes: np.ndarray, jumps: np.ndarray, acceptance: np.ndarray, shortest: float) -> Trajectory:
        """After a round.

        Args:
            changes: each draw's gradient of ChEES, weighed by acceptance.
            jumps: of the squared distance between the ends of its trajectory.
            acceptance: its rate.
            shortest: a length not to fall below.

        Returns:
            The length to go on with.
        """
        weight = float(np.sum(acceptance, dtype=np.float64))
        change, jump = (
            float(np.sum(x, dtype=np.float64)) / weight if weight > 0 else math.nan for x in (changes, jumps)
        )
        if not (math.isfinite(change) and math.isfinite(jump)):
            return self
        adams = self.change.after(change), self.jump.after(jump)
        # beyond some length ChEES tells nothing but noise, in which a length would wander off: both must ask for more
        move = RATE * min(adam.step for adam in adams)
        log_length = max(self.log_length + move, math.log(shortest))
        log_average = SMOOTHING * self.log_average + (1 - SMOOTHING) * log_length
        return Trajectory(log_length, log_average, *adams)
