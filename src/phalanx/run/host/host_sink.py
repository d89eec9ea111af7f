"""How sinks are drained: which draws a block is asked for, and what of them comes to the host."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np


class Goal(NamedTuple):
    """What a block is asked for: draws of each chain, `(chain,)`, in so many ticks at most."""

    draws: np.ndarray
    ticks: float = math.inf


class Progressed(NamedTuple):
    """What a block has come to.

    Attributes:
        done, total: draws of every chain so far, and in all.
        rates: acceptance rates, as they are shown.
        divergences: so far, over all chains.
        evaluations: in trajectories that are known to have ended since the last block.
        ticks: of the block.
        speed: draws per second of all chains together; 0 where it is not shown.
    """

    done: int
    total: int
    rates: np.ndarray
    divergences: int
    evaluations: int
    ticks: int
    speed: float = 0.0


class Drain(Protocol):
    """Takes draws from the chains to the host, until there are enough."""

    @property
    def is_between(self) -> bool:
        """Whether all that chains have drawn is known on the host."""
        ...

    @property
    def kept(self) -> int:
        """Draws of every chain that are kept in any case."""
        ...

    @property
    def interrupted(self) -> str:
        """What is said where a run is interrupted that has kept draws."""
        ...

    def goal(self) -> Goal | None:
        """What the next block is to draw; None when there are enough."""
        ...

    def advance(self, goal: Goal, ticks: int) -> Progressed:
        """Have a block drawn, and take it in."""
        ...
