"""Protocol of a phase of a run, and what it shows after each block."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np

from phalanx.run.state import RunState


class Goal(NamedTuple):
    """What a block is to draw.

    Attributes:
        draws: of each chain, `(chain,)`, those included that the sinks hold.
        ticks: the most ticks; fewer where a block would take too long.
        ahead: draws that a chain may make beyond `draws` while others are not done.
        later: the tuning of those; None is the tuning in use.
    """

    draws: np.ndarray
    ticks: float = math.inf
    ahead: int = 0
    later: object = None


class Shown(NamedTuple):
    """What a phase shows after a block.

    Attributes:
        done, total: draws of every chain so far, and in all.
        rates: acceptance rates since the last time.
        divergences: so far, over all chains.
        speed: draws per second of all chains together; 0 where it is not shown.
    """

    done: int
    total: int
    rates: np.ndarray
    divergences: int
    speed: float = 0.0


class Phase(Protocol):
    """A part of a run: chooses each block's draws, and makes the run's next state from what the block drew.

    Attributes:
        name: as progress shows it.
        folds: whether draws are folded on the devices; else they are recorded.
    """

    name: str
    folds: bool

    def goal(self, state: RunState) -> Goal | None:
        """Return what the next block is to draw; None when the phase is over."""
        ...

    def after(self, state: RunState) -> tuple[RunState, Shown]:
        """Return the state after a block, whose draws are in `state.sinks`."""
        ...
