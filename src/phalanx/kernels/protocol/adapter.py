"""A machine as the blocks of a run drive it: from positions by variable, to draws as rows, laid out over the mesh.

Whatever a machine keeps has lanes last, and vectors are told from other arrays by their type. That is enough to lay all
of it out over a mesh, to keep lanes in tiles, and to put chains elsewhere: no kernel need know of any of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from phalanx.kernels.metric.low_rank import LaneMetric
from phalanx.kernels.protocol.kernel import LaneState, Machine, Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.kernels.protocol.per_chain import PerChain
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.keys import Keys
from phalanx.mesh.position import ByVariable, Vector


class Start(NamedTuple):
    """Where chains go on, by variable `(chain, ...)`; the gradient is empty for kernels without."""

    position: ByVariable
    log_density: Any
    gradient: ByVariable


class Rest(NamedTuple):
    """Where chains are between two draws: all that the draws to come depend on, but for seed, data and tuning.

    Attributes:
        draw: number of the next draw, `(chain,)`.
        at: where that one begins.
        own: of an algorithm written for one chain, its state, `(chain, ...)`; other machines make theirs anew.
    """

    draw: Any
    at: Start
    own: Any


@dataclass(frozen=True)
class Driver:
    """A kernel's machine, driven."""

    machine: Machine

    def start(self, target: LaneTarget, at: Point, keys: Keys, draw: Array) -> LaneState:
        """Lanes at rest `at` vectors `(lanes, coordinates)`, about to make the draw of this number, or of these."""
        target.count_coordinates()
        at = Point(at.position.T, at.log_density, at.gradient.T)
        now = LaneState(jnp.broadcast_to(draw, (target.count,)), at, ())
        return now._replace(own=self.machine.rest(now, keys, target))

    def tick(
        self, now: LaneState, active: Array, target: LaneTarget, tuning: Any, keys: Keys
    ) -> tuple[LaneState, Array, Any]:
        """Move all lanes on; `active` lanes may start and end draws. As `Machine.tick`, in the types of before."""
        target.count_coordinates()
        if "metric" in tuning._fields:
            tuning = tuning._replace(metric=LaneMetric.of(tuning.metric, target))
        new, done, info = self.machine.tick(now, active, keys, target, tuning)
        new = jax.tree.map(lambda leaf, before: jnp.asarray(leaf, before.dtype), new, now)
        return new, done, jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (target.count,)), info)

    def rest(self, now: LaneState) -> Rest:
        """Return where the draws under way begin. A lane within a trajectory makes it again when it is resumed."""
        at = Start(now.at.position.T.by_variable(), now.at.log_density, now.at.gradient.T.by_variable())
        own = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), now.own) if self.is_of_one_chain else ()
        return Rest(now.draw, at, own)

    def resume(self, target: LaneTarget, rest: Rest, keys: Keys) -> LaneState:
        """The inverse of `rest`: lanes that make the very same draws."""
        position, gradient = map(target.layout.vector, (rest.at.position, rest.at.gradient))
        now = self.start(target, Point(position, rest.at.log_density, gradient), keys, rest.draw)
        if not self.is_of_one_chain:
            return now
        return now._replace(own=jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), rest.own))

    @property
    def is_of_one_chain(self) -> bool:
        """Whether the machine runs an algorithm written for one chain, whose state is more than its position."""
        return isinstance(self.machine, PerChain)

    def moved(self, now: LaneState, take: Callable[[Array, int], Array]) -> LaneState:
        """Lanes at rest that go on at the positions of others, on the host; `take(leaf, axis)` takes those."""
        return now._replace(at=jax.tree.map(lambda leaf: take(leaf, -1), now.at))


def lane_specs(state: Any) -> Any:
    """How what lanes keep is laid out over the mesh."""

    def of(node: Any) -> Any:
        if not isinstance(node, Vector):
            return PartitionSpec(*[None] * (node.ndim - 1), CHAIN)
        assert node.layout is not None
        specs: Any = tuple(
            PartitionSpec(*[None] * (part.ndim - 2), axes or None, CHAIN)
            for part, axes in zip(node.parts, node.layout.groups, strict=False)  # an unused gradient has no parts
        )
        return Vector(specs, node.layout)

    return jax.tree.map(of, state, is_leaf=lambda node: isinstance(node, Vector))
