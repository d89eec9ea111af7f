"""What becomes of draws: a sink takes them in on the device, tick by tick, and is drained on the host between blocks.

The recorder of draws, the tally of what they did and the user's reducers are sinks. None of them moves a chain, and
the block that does knows none of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from jax import Array

from phalanx.kernels.protocol.kernel import Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.run.device.thinning import SinceKept


class Draws(NamedTuple):
    """What the lanes of a device have drawn in a tick.

    Attributes:
        done: lanes that have ended a draw, `(lanes,)`; what the others show here counts for nothing.
        kept: those whose draw thinning keeps.
        number: draws that each lane has kept before, since the sinks were emptied.
        at: the draws.
        info: what they did, `(lanes,)`.
        since: what was done since the draw kept before this one.
    """

    done: Array
    kept: Array
    number: Array
    at: Point
    info: Any
    since: SinceKept


class Sink(Protocol):
    """Where draws go on a device. Every array of its state has a dimension for the lanes."""

    def empty(self, target: LaneTarget, before: Array) -> Any:
        """Return the state of no draws, of chains that have made so many before, `(lanes,)`."""
        ...

    def update(self, state: Any, draws: Draws, target: LaneTarget) -> Any:
        """The state after a tick."""
        ...

    @property
    def specs(self) -> Any:
        """How the state is laid out over the mesh."""
        ...
