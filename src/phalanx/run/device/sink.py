"""Protocol of a sink, which receives draws on the device at each tick; the host reads its state between blocks.

The recorder of draws, the tally of their statistics and the user's reducers are sinks. By thinning, every `thin`-th
draw of a lane is kept, with the totals of the draws since the one before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from phalanx.kernels.protocol.kernel import Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.specs import PyTree

if TYPE_CHECKING:
    from jaxtyping import Bool, Int


class SinceKept(NamedTuple):
    """Totals of each lane since its last kept draw: number of draws, evaluations, and true if one diverged."""

    draws: Any
    num_steps: Any
    diverging: Any

    @classmethod
    def none(cls, count: int) -> SinceKept:
        """Return the totals of `count` lanes that just kept a draw."""
        return cls(jnp.zeros(count, jnp.int32), jnp.zeros(count, jnp.int32), jnp.zeros(count, bool))

    def after(self, has_ended: Bool[Array, "lanes"], info: PyTree) -> SinceKept:
        """Return the totals after the draws of the lanes for which `has_ended` is true."""
        return SinceKept(
            self.draws + has_ended,
            self.num_steps + jnp.where(has_ended, info.num_steps, 0),
            self.diverging | has_ended & info.diverging,
        )

    def restarted(self, keeps_draw: Bool[Array, "lanes"]) -> SinceKept:
        """Return the totals with zeros for lanes for which `keeps_draw` is true."""
        return SinceKept(*(jnp.where(keeps_draw, jnp.zeros_like(value), value) for value in self))


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


class Counts(NamedTuple):
    """Totals of each lane, over draws before thinning.

    Attributes:
        draws: number of draws.
        acceptance: sum of their acceptance rates.
        num_steps: number of evaluations.
        diverging: number of divergent draws.
    """

    draws: Any
    acceptance: Any
    num_steps: Any
    diverging: Any


@dataclass(frozen=True)
class Tally:
    """Sink that counts draws."""

    def empty(self, target: LaneTarget, before: Int[Array, "lanes"]) -> Counts:
        """Return totals of 0."""
        zero = jnp.zeros(target.count, jnp.int32)
        return Counts(zero, jnp.zeros(target.count, jnp.float32), zero, zero)

    def update(self, state: Counts, draws: Draws, target: LaneTarget) -> Counts:
        """Return the totals after a tick."""
        has_ended = draws.done
        info = draws.info
        return Counts(
            state.draws + has_ended,
            state.acceptance + jnp.where(has_ended, info.acceptance_rate, 0.0).astype(jnp.float32),
            state.num_steps + jnp.where(has_ended, info.num_steps, 0),
            state.diverging + (has_ended & info.diverging),
        )

    @property
    def specs(self) -> PartitionSpec:
        """Partition of the totals: by lane."""
        return PartitionSpec(CHAIN)
