"""Any kernel as a machine whose lanes keep in step: a tick is a whole draw of every lane."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from phalanx.kernels.kernel import Ended, Kernel, Rest, Start
from phalanx.kernels.lanes import Lanes
from phalanx.mesh.chains import over_lanes
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.keys import Keys, as_key
from phalanx.programs.target import Target


class Underway(NamedTuple):
    """The number of the next draw, `(lanes,)`, and the kernel's states, whose arrays have lanes first."""

    draw: Any
    state: Any


@dataclass(frozen=True)
class InStep:
    """A machine made of a kernel's `init` and `step`. All lanes are active, or none is."""

    kernel: Kernel
    skips: ClassVar[int] = 0

    def start(self, lanes: Lanes, start: Start, keys: Keys, draw: Array) -> Underway:
        """The kernel's state at every lane's position."""
        draws = jnp.broadcast_to(draw, (lanes.count,))
        init = over_lanes(lambda key, u: self.kernel.init(key, u, lanes.density), lanes.count)
        return Underway(draws, init(as_key(keys.of_draw(draws)), start.position))

    def tick(
        self, underway: Underway, active: Array, abandon: Array, lanes: Lanes, tuning: Any, keys: Keys
    ) -> tuple[Underway, Ended]:
        """One step of every lane. The tuning is shared: it is closed over, not mapped."""
        step = over_lanes(lambda key, state: self.kernel.step(key, state, lanes.density, tuning), lanes.count)
        new, info = step(as_key(keys.of_draw(underway.draw)), underway.state)
        new = jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), new, underway.state)
        info = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (lanes.count,)), info)
        ended = Ended(jnp.ones(lanes.count, bool), lanes.flatten(new.position), (), new.log_density, info)
        return Underway(underway.draw + 1, new), ended

    def moved(self, underway: Underway, take: Callable[[Array, int], Array]) -> Underway:
        """Lanes that go on in others' states."""
        return underway._replace(state=jax.tree.map(lambda leaf: take(leaf, 0), underway.state))

    def rest(self, lanes: Lanes, underway: Underway) -> Rest:
        """The kernel's states."""
        return Rest(underway.draw, underway.state)

    def resume(self, lanes: Lanes, rest: Rest, keys: Keys) -> Underway:
        """Lanes in these states."""
        return Underway(rest.draw, rest.state)

    def layout(self, target: Target, underway: Callable[[], Any]) -> Any:
        """Chains first; a dict by variable is laid out as positions are."""
        position = target.position_specs(CHAIN)
        if not any(latent.spread.axes for latent in target.shares.latents):
            return PartitionSpec(CHAIN)

        def is_position(node: Any) -> bool:
            return isinstance(node, dict) and set(node) == set(position)

        return jax.tree.map(
            lambda node: dict(position) if is_position(node) else PartitionSpec(CHAIN), underway(), is_leaf=is_position
        )
