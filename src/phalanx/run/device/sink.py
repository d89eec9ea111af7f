"""Protocol of a sink, which receives draws on the device at each tick; the host reads its state between blocks.

The recorder of draws, the tally of their statistics and the user's reducers are sinks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from jax import Array

from phalanx.kernels.protocol.kernel import Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.specs import PyTree
from phalanx.run.device.thinning import SinceKept

if TYPE_CHECKING:
    from jaxtyping import Bool, Int


class Draws(NamedTuple):
    """Draws of the lanes of a device in a tick.

    Attributes:
        done: true for lanes that ended a draw; the other entries of other lanes are arbitrary.
        kept: true for lanes whose draw thinning keeps.
        number: number of draws that each lane kept before, since the sinks were empty.
        at: the draws.
        info: statistics of the draws.
        since: totals since each lane's previous kept draw, this draw included.
    """

    done: Bool[Array, "lanes"]
    kept: Bool[Array, "lanes"]
    number: Int[Array, "lanes"]
    at: Point
    info: Any
    since: SinceKept


class Sink(Protocol):
    """Receiver of draws on a device; the arrays of its state are sharded, with an entry of each lane or device."""

    def empty(self, target: LaneTarget, before: Int[Array, "lanes"]) -> PyTree:
        """Return the state without draws, given the number of draws of each chain that were reduced before."""
        ...

    def update(self, state: PyTree, draws: Draws, target: LaneTarget) -> PyTree:
        """Return the state after a tick."""
        ...

    @property
    def specs(self) -> PyTree:
        """Partition of the state over the mesh."""
        ...
