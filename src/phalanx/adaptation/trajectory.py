"""The length of trajectories, moved by Adam along the gradient of ChEES; see `phalanx.kernels.chees`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

RATE, DECAY, DECAY_OF_SQUARES = 0.05, 0.5, 0.95
"""Of Adam. The mean decays fast, since a round already averages over all chains."""

SMOOTHING = 0.9
"""Share of the past in the average that is used in the end."""


class Trajectory(NamedTuple):
    """The logarithm of the length, its average over rounds, and what Adam keeps.

    Source: Kingma, Ba (2015), Adam: a method for stochastic optimization.
    """

    log_length: float
    log_average: float
    mean: float = 0.0
    squares: float = 0.0
    rounds: int = 0

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

    def after(self, gradients: np.ndarray, acceptance: np.ndarray, shortest: float) -> Trajectory:
        """After a round, given each draw's gradient, weighed by acceptance, and a length not to fall below."""
        weight = float(np.sum(acceptance, dtype=np.float64))
        gradient = float(np.sum(gradients, dtype=np.float64)) / weight if weight > 0 else math.nan
        if not math.isfinite(gradient):
            return self
        rounds = self.rounds + 1
        mean = DECAY * self.mean + (1 - DECAY) * gradient
        squares = DECAY_OF_SQUARES * self.squares + (1 - DECAY_OF_SQUARES) * gradient**2
        root = math.sqrt(squares / (1 - DECAY_OF_SQUARES**rounds))
        move = RATE * (mean / (1 - DECAY**rounds)) / root if root else 0.0
        log_length = max(self.log_length + move, math.log(shortest))
        log_average = SMOOTHING * self.log_average + (1 - SMOOTHING) * log_length
        return Trajectory(log_length, log_average, mean, squares, rounds)
