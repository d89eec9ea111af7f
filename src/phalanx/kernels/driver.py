"""A machine as the blocks of a run drive it: from positions by variable, to draws as rows, laid out over the mesh.

Whatever a machine keeps has lanes last, and vectors are told from other arrays by their type. That is enough to lay all
of it out over a mesh, to keep lanes in tiles, and to put chains elsewhere: no kernel need know of any of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from phalanx.kernels.kernel import LaneState, Machine, Point
from phalanx.kernels.lane_target import LaneTarget
from phalanx.kernels.lanes import Lanes
from phalanx.kernels.low_rank import LaneMetric
from phalanx.kernels.per_chain import PerChain
from phalanx.kernels.vector import Vector
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.keys import Keys
from phalanx.mesh.space import Position
from phalanx.mesh.total import Total


class Start(NamedTuple):
    """Where chains begin, by variable `(lanes, ...)`; the gradient is empty for kernels without."""

    position: Position
    log_density: Any
    gradient: Position


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


class Ended(NamedTuple):
    """What the lanes of a device drew in a tick.

    Attributes:
        done: which lanes ended a draw, `(lanes,)`; what the others show here counts for nothing.
        position, gradient: of the draw, by group of coordinates, `(lanes, coordinates)`; a kernel without gradients
            has none.
        log_density: at the position, `(lanes,)`.
        info: what the draws did, `(lanes,)`.
    """

    done: Array
    position: tuple[Array, ...]
    gradient: tuple[Array, ...]
    log_density: Total
    info: Any


@dataclass(frozen=True)
class Driver:
    """A kernel's machine, driven."""

    machine: Machine

    def start(self, lanes: Lanes, start: Start, keys: Keys, draw: Array) -> LaneState:
        """Lanes at rest, about to make the draw of this number, or of these."""
        position, gradient = (
            Vector(tuple(part.T for part in lanes.flatten(by_name)) if by_name else ())
            for by_name in (start.position, start.gradient)
        )
        at = Point(position, start.log_density, gradient)
        now = LaneState(jnp.broadcast_to(draw, (lanes.count,)), at, ())
        return now._replace(own=self.machine.rest(now, keys, LaneTarget.of(lanes)))

    def tick(self, now: LaneState, active: Array, lanes: Lanes, tuning: Any, keys: Keys) -> tuple[LaneState, Ended]:
        """Move all lanes on; `active` lanes may start and end draws."""
        target = LaneTarget.of(lanes)
        if "metric" in tuning._fields:
            tuning = tuning._replace(metric=LaneMetric.of(tuning.metric, lanes))
        new, done, info = self.machine.tick(now, active, keys, target, tuning)
        new = jax.tree.map(lambda leaf, before: jnp.asarray(leaf, before.dtype), new, now)
        info = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (lanes.count,)), info)
        position, gradient = (tuple(part.T for part in x.parts) for x in (new.at.position, new.at.gradient))
        return new, Ended(done, position, gradient, new.at.log_density, info)

    def rest(self, lanes: Lanes, now: LaneState) -> Rest:
        """Where lanes are that are between two draws; of a lane within a trajectory it tells nothing of use."""

        def by_variable(vector: Vector) -> Position:
            return lanes.unflatten(tuple(part.T for part in vector.parts)) if vector.parts else {}

        at = Start(by_variable(now.at.position), now.at.log_density, by_variable(now.at.gradient))
        own = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), now.own) if self.is_of_one_chain else ()
        return Rest(now.draw, at, own)

    def resume(self, lanes: Lanes, rest: Rest, keys: Keys) -> LaneState:
        """The inverse of `rest`: lanes that make the very same draws."""
        now = self.start(lanes, rest.at, keys, rest.draw)
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


def layout(state: Any, groups: Sequence[tuple[str, ...]]) -> Any:
    """How what lanes keep is laid out over the mesh, given the axes that each part of a vector is spread over."""

    def of(node: Any) -> Any:
        if not isinstance(node, Vector):
            return PartitionSpec(*[None] * (node.ndim - 1), CHAIN)
        specs: Any = tuple(
            PartitionSpec(*[None] * (part.ndim - 2), axes or None, CHAIN)
            for part, axes in zip(node.parts, groups, strict=False)  # a gradient that is not used has no parts
        )
        return Vector(specs)

    return jax.tree.map(of, state, is_leaf=lambda node: isinstance(node, Vector))
