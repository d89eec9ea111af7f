"""The user's reducers as a sink: what each draw says goes into their states, on the device, and it is forgotten."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from phalanx.density.target import Density
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.devices import axes_but_chain
from phalanx.run.device.blocks import Blocks
from phalanx.run.device.reductions import Reductions, States
from phalanx.run.device.sink import Draws
from phalanx.run.device.state_layout import Values, places_of


@dataclass(frozen=True)
class Reducing:
    """The sink that reduces; it serves draws that were stored, too.

    Attributes:
        blocks: the run.
        reductions: what becomes of the draws.
        names: variables that may be reduced.
    """

    blocks: Blocks
    reductions: Reductions
    names: tuple[str, ...]

    def empty(self, target: LaneTarget, before: Array) -> States:
        """Return states of no draws, of chains that have made so many before, `(lanes,)`."""
        return self.reductions.init(self._values(target.density)(target.layout.zeros(target.count)), before)

    def update(self, state: States, draws: Draws, target: LaneTarget) -> States:
        """States after a tick."""
        values = self._values(target.density)(draws.at.position.T.by_variable())
        return self.reductions.update(state, values, draws.kept)

    @property
    def specs(self) -> Any:
        """States of rows that devices hold stay with them."""
        return jax.tree.map(lambda place: place.spec, self.places)

    def of_rows(self, arrays: Sequence[Array], rows: Sequence[Array], count: Array, before: Array) -> States:
        """What the reducers make of the rows that a block has stored, the first `count` of each chain.

        Each chain has made `before` draws before.

        Where draws are stored this is the cheaper way: in most ticks of a trajectory nothing is drawn.
        """
        position = self.blocks.row_layout.vector(rows, 0).by_variable()
        values = jax.vmap(self._values(self.blocks.target.on_device(arrays)))(position)

        def add(states: States, slot: tuple[Array, Mapping[str, Array]]) -> tuple[States, None]:
            number, draw = slot
            return self.reductions.update(states, draw, number < count), None

        states = self.reductions.init({name: value[0] for name, value in values.items()}, before)
        return lax.scan(add, states, (jnp.arange(len(rows[0])), values))[0]

    def check(self) -> None:
        """Raise where a function or a reducer mixes rows that devices hold; to be called before compiling."""
        _ = self.places

    @cached_property
    def places(self) -> Any:
        """Where every array of the states lives."""
        if not self.reductions.entries:
            return {}
        target = self.blocks.target
        sizes = axes_but_chain(target.mesh)

        def values(arrays: Sequence[Array]) -> dict[str, Array]:
            zeros = target.shares.layout.zeros(1)
            return {name: value[0] for name, value in self._values(target.on_device(arrays))(zeros).items()}

        arrays = target.arguments.local_shapes()
        _, shapes = jax.make_jaxpr(values, axis_env=list(sizes.items()), return_shape=True)(arrays)
        return places_of(self.reductions, Values(shapes, {n: target.sharding(n) for n in self.names}, sizes))

    def _values(self, density: Density) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
        """The variables at positions `(lanes, ...)`."""

        def one(position: Mapping[str, Array]) -> dict[str, Array]:
            found = density.constrain(position)
            return {name: found[name] for name in self.names}

        return jax.vmap(one)
