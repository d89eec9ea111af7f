"""Adapter between the blocks of a run and a kernel's machine: begins, steps, saves and restores lanes.

Arrays of a machine's state have lanes last, and vectors have a type of their own. Therefore states can be sharded,
divided into tiles and relocated without code in the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from phalanx.kernels.metric.low_rank import LaneMetric
from phalanx.kernels.protocol.kernel import LaneState, Machine, Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.kernels.protocol.per_chain import PerChain
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.position import ByVariable, Vector
from phalanx.mesh.random_numbers import Keys
from phalanx.mesh.specs import PyTree

if TYPE_CHECKING:
    from jaxtyping import Bool, Int


class Start(NamedTuple):
    """Starting point of chains' next draws: arrays `(chain, ...)` by variable; no gradient if the kernel uses none."""

    position: ByVariable
    log_density: Any
    gradient: ByVariable


class Snapshot(NamedTuple):
    """State of chains between two draws: all that later draws depend on, except seed, data and tuning.

    Attributes:
        draw: number of the next draw, `(chain,)`.
        at: starting point of that draw.
        kernel_state: state of an algorithm for one chain, `(chain, ...)`; other machines derive theirs, and have none.
    """

    draw: Any
    at: Start
    kernel_state: Any


@dataclass(frozen=True)
class KernelAdapter:
    """Adapter of a kernel's machine."""

    machine: Machine

    def init(self, at: Point, draw: Int[Array, "..."], keys: Keys, target: LaneTarget) -> LaneState:
        """Return lanes at rest, before their first tick.

        Args:
            at: positions `(lanes, coordinates)`.
            draw: number of the next draw, one for all lanes or one for each.
            keys: the lanes' keys.
            target: the log density.
        """
        target.cache_coordinate_numbers()
        at = Point(at.position.T, at.log_density, at.gradient.T)
        now = LaneState(jnp.broadcast_to(draw, (target.count,)), at, ())
        return now._replace(kernel_state=self.machine.init(now, keys, target))

    def step(
        self, now: LaneState, active: Bool[Array, "lanes"], keys: Keys, target: LaneTarget, tuning: PyTree
    ) -> tuple[LaneState, Bool[Array, "lanes"], PyTree]:
        """Advance all lanes by one tick, as `Machine.step` does, without a change of types."""
        target.cache_coordinate_numbers()
        if "metric" in tuning._fields:
            tuning = tuning._replace(metric=LaneMetric.of(tuning.metric, target))
        new, has_ended, info = self.machine.step(now, active, keys, target, tuning)
        new = jax.tree.map(lambda leaf, before: jnp.asarray(leaf, before.dtype), new, now)
        return new, has_ended, jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (target.count,)), info)

    def snapshot(self, now: LaneState) -> Snapshot:
        """Return the starts of the current draws. A resumed lane repeats its trajectory from there."""
        at = Start(now.at.position.T.by_variable(), now.at.log_density, now.at.gradient.T.by_variable())
        kernel_state = (
            jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), now.kernel_state) if self.is_of_one_chain else ()
        )
        return Snapshot(now.draw, at, kernel_state)

    def restore(self, snapshot: Snapshot, keys: Keys, target: LaneTarget) -> LaneState:
        """Return the inverse of `snapshot`: lanes that make the same draws."""
        position, gradient = map(target.layout.vector, (snapshot.at.position, snapshot.at.gradient))
        now = self.init(Point(position, snapshot.at.log_density, gradient), snapshot.draw, keys, target)
        if not self.is_of_one_chain:
            return now
        return now._replace(kernel_state=jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), snapshot.kernel_state))

    @property
    def is_of_one_chain(self) -> bool:
        """True for an algorithm written for one chain, whose state cannot be derived from its position."""
        return isinstance(self.machine, PerChain)


def lane_specs(state: PyTree) -> PyTree:
    """Return the partition of a state of lanes over the mesh."""

    def of(node: PyTree) -> PyTree:
        if not isinstance(node, Vector):
            return PartitionSpec(*[None] * (node.ndim - 1), CHAIN)
        assert node.layout is not None
        specs: Any = tuple(
            PartitionSpec(*[None] * (part.ndim - 2), axes or None, CHAIN)
            for part, axes in zip(node.parts, node.layout.groups, strict=False)  # an unused gradient has no parts
        )
        return Vector(specs, node.layout)

    return jax.tree.map(of, state, is_leaf=lambda node: isinstance(node, Vector))
