"""Machine for many lanes from an algorithm for one chain, as `init` and `step` on positions by variable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array, random

from phalanx.density.density import Density
from phalanx.kernels.protocol.kernel import LaneState, Machine
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.chains import over_lanes
from phalanx.mesh.position import ByVariable
from phalanx.mesh.random_numbers import Keys, as_key
from phalanx.mesh.specs import PyTree
from phalanx.mesh.total import Total

if TYPE_CHECKING:
    from jaxtyping import Bool


@dataclass(frozen=True)
class PerChain(Machine):
    """Lanes that each have a state of the algorithm, and make whole draws together.

    The algorithm sees one device, so that its variables are global. Its chains cannot be relocated, since the form of
    its state is unknown.

    Attributes:
        init_chain: `init(key, position, density) -> state`, with attributes `position` and `log_density`.
        step_chain: `step(key, state, density, tuning) -> (state, info)`.
    """

    init_chain: Callable[[Array, ByVariable, Density], Any]
    step_chain: Callable[[Array, Any, Density, Any], tuple[Any, Any]]
    knows_mesh: ClassVar[bool] = False

    def init(self, now: LaneState, keys: Keys, target: LaneTarget) -> PyTree:
        """Return the algorithm's state at every lane's position."""

        def one(key: Array, position: ByVariable) -> PyTree:
            return self.init_chain(
                random.fold_in(key, 0), position, target.density
            )  # the key itself is the first draw's

        position = now.at.position.T.by_variable()
        return _lanes_last(over_lanes(one, target.count)(as_key(keys.of_draw(now.draw)), position))

    def step(
        self, now: LaneState, active: Bool[Array, "lanes"], keys: Keys, target: LaneTarget, tuning: PyTree
    ) -> tuple[LaneState, Bool[Array, "lanes"], PyTree]:
        """Make one step of every lane. The tuning is shared: it is closed over, not mapped."""
        before = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), now.kernel_state)
        step = over_lanes(lambda key, state: self.step_chain(key, state, target.density, tuning), target.count)
        state, info = step(as_key(keys.of_draw(now.draw)), before)
        position = target.layout.vector(state.position).T
        # the gradient stays as it is: the algorithm has its own, and the run does not read it
        at = now.at._replace(position=position, log_density=Total.of(state.log_density))
        return LaneState(now.draw + 1, at, _lanes_last(state)), jnp.ones(target.count, bool), info


def _lanes_last(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), tree)
