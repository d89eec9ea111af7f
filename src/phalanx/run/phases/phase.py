"""Protocol of a phase of a run: its goals, and its figures for the progress display."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from phalanx.mesh.processes import to_host
from phalanx.run.device.rounds import RoundArguments
from phalanx.run.device.sink import Counts
from phalanx.run.state import RunState

if TYPE_CHECKING:
    from jaxtyping import Float, Integer


class BlockGoal(NamedTuple):
    """Number of draws that a block should make.

    Attributes:
        draws: draws of each chain, including those in the sinks.
        ticks: maximal number of ticks.
        ahead: draws that a chain may make beyond `draws` while other chains are not done.
        later: tuning of the draws beyond; None for the current tuning.
        rounds: rounds that the devices make instead of these draws, or slots whose draws they add up.
        tuning: hyperparameters of the window whose rounds they make; None for the current tuning.
    """

    draws: Integer[np.ndarray, "chains"]
    ticks: float = math.inf
    ahead: int = 0
    later: Any = None
    rounds: RoundArguments | None = None
    tuning: Any = None


class PhaseProgress(NamedTuple):
    """Figures of a phase after a block, for the progress display.

    Attributes:
        done, total: draws of every chain so far, and in all.
        rates: mean acceptance rates by chain of the round so far, or of the block if draws are stored; empty if no
            draw ended.
        divergences: divergences of the phase so far, over all chains.
        speed: draws per second of all chains together; 0 to show none.
    """

    done: int
    total: int
    rates: Float[np.ndarray, "rates"]
    divergences: int
    speed: float = 0.0


class Phase(Protocol):
    """Part of a run that decides each block's draws and processes them; its methods return new states.

    Attributes:
        name: name on the progress display.
        accumulates: true to reduce draws on the devices, false to record them.
    """

    name: str
    accumulates: bool

    def goal(self, state: RunState) -> BlockGoal | None:
        """Return the goal of the next block; None at the end of the phase."""
        ...

    def take_block(self, state: RunState) -> tuple[RunState, PhaseProgress]:
        """Process the draws of a block, which are in `state.sinks`; return the next state and figures to display."""
        ...


def acceptance_rates(counts: Counts) -> Float[np.ndarray, "rates"]:
    """Return the mean acceptance rate of each chain that has made a draw."""
    draws = to_host(counts.draws)
    total_acceptance = to_host(counts.acceptance)
    return total_acceptance[draws > 0] / draws[draws > 0]
