"""An algorithm written for one chain, as `init` and `step` on positions by variable, as a machine for many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array, random

from phalanx.kernels.kernel import LaneState
from phalanx.kernels.lane_target import LaneTarget
from phalanx.kernels.vector import Vector
from phalanx.mesh.chains import over_lanes
from phalanx.mesh.keys import Keys, as_key
from phalanx.mesh.space import Position
from phalanx.mesh.total import Total
from phalanx.programs.target import Density


@dataclass(frozen=True)
class PerChain:
    """Lanes that each have a state of their own, and make whole draws together.

    It knows no mesh, as the algorithm does not, and no chain of it may be put elsewhere, since of its state nothing is
    known.

    Attributes:
        init: `init(key, position, density) -> state`, whose `position` and `log_density` are told.
        step: `step(key, state, density, tuning) -> (state, info)`.
    """

    init: Callable[[Array, Position, Density], Any]
    step: Callable[[Array, Any, Density, Any], tuple[Any, Any]]
    in_lock_step: ClassVar[bool] = True

    def rest(self, now: LaneState, keys: Keys, target: LaneTarget) -> Any:
        """The algorithm's state at every lane's position."""
        lanes = target.lanes

        def one(key: Array, position: Position) -> Any:
            return self.init(random.fold_in(key, 0), position, lanes.density)  # the key itself is the first draw's

        position = lanes.unflatten(tuple(part.T for part in now.at.position.parts))
        return _lanes_last(over_lanes(one, lanes.count)(as_key(keys.of_draw(now.draw)), position))

    def tick(
        self, now: LaneState, active: Array, keys: Keys, target: LaneTarget, tuning: Any
    ) -> tuple[LaneState, Array, Any]:
        """One step of every lane. The tuning is shared: it is closed over, not mapped."""
        lanes = target.lanes
        before = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), now.own)
        step = over_lanes(lambda key, state: self.step(key, state, lanes.density, tuning), lanes.count)
        state, info = step(as_key(keys.of_draw(now.draw)), before)
        position = Vector(tuple(part.T for part in lanes.flatten(state.position)))
        # the algorithm keeps its gradients to itself, and nobody asks for them
        at = now.at._replace(position=position, log_density=Total.of(state.log_density))
        return LaneState(now.draw + 1, at, _lanes_last(state)), jnp.ones(target.count, bool), info


def _lanes_last(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), tree)
