"""Sink that passes draws to the user's reducers on the device, without storing them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array, lax

from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.chains import lane_chains
from phalanx.mesh.row_sharding import GLOBAL
from phalanx.mesh.specs import PyTree
from phalanx.reducers.reducer import density_name
from phalanx.reducers.reductions import Reductions, States
from phalanx.run.device.blocks import Blocks
from phalanx.run.device.recorder import Rows
from phalanx.run.device.sink import Draws
from phalanx.run.device.state_layout import DrawValues, ReducedRows, StatePlacements, reduced_rows

if TYPE_CHECKING:
    from jaxtyping import Int


@dataclass(frozen=True)
class Reducing:
    """Sink of reducers, which also reduces recorded draws.

    Attributes:
        blocks: functions of the run.
        reductions: the reducers.
        names: variables that may be reduced.
        observed: observed variables; reducers receive the log density of each of their observations.
    """

    blocks: Blocks
    reductions: Reductions
    names: tuple[str, ...]
    observed: tuple[str, ...] = ()

    def empty(self, target: LaneTarget, before: Int[Array, "lanes"]) -> States:
        """Return states without draws, given the number of draws of each chain that were reduced before."""
        values = self._values(target)(target.layout.zeros(target.count))
        return self.on_rows.reductions.init(values, before, lane_chains(target.count))

    def update(self, state: States, draws: Draws, target: LaneTarget) -> States:
        """Return the states after a tick."""
        values = self._values(target)(draws.at.position.T.by_variable())
        return self.on_rows.reductions.update(state, values, draws.kept)

    @property
    def specs(self) -> PyTree:
        """Partition of the states; the state of an array with sharded rows is sharded like the rows."""
        return jax.tree.map(lambda placement: placement.spec, self.placements)

    def of_rows(
        self, arrays: Sequence[Array], rows: Rows, count: Int[Array, "lanes"], before: Int[Array, "lanes"]
    ) -> States:
        """Return the states of the first `count` recorded draws of each chain, after `before` earlier ones.

        If draws are recorded anyway, this is faster than `update`, since most ticks of a trajectory end no draw.
        """
        position = self.blocks.row_layout.vector(rows, 0).by_variable()
        values = jax.vmap(self._values(self.blocks.lanes(arrays)))(position)

        reductions = self.on_rows.reductions

        def add(states: States, slot: tuple[Array, Mapping[str, Array]]) -> tuple[States, None]:
            number, draw = slot
            return reductions.update(states, draw, number < count), None

        first = {name: value[0] for name, value in values.items()}
        states = reductions.init(first, before, lane_chains(len(before)))
        return lax.scan(add, states, (jnp.arange(len(rows[0])), values))[0]

    @property
    def placements(self) -> StatePlacements:
        """Placement of every array of the states."""
        return self.on_rows.placements

    @cached_property
    def on_rows(self) -> ReducedRows:
        """The reducers on one device's rows."""
        if not self.reductions.entries:
            return ReducedRows(self.reductions, {})
        target = self.blocks.target
        shardings = {name: target.sharding(name) for name in self.names}
        shardings |= {density_name(name): target.sites.observations.get(name, GLOBAL) for name in self.observed}
        rows = target.sites.rows if target.sites.is_divided else None
        return reduced_rows(self.reductions, DrawValues(self.shapes, shardings, rows))

    @cached_property
    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes of the values of one draw on a device."""
        target = self.blocks.target

        def values(arrays: Sequence[Array]) -> dict[str, Array]:
            one = LaneTarget(target.on_device(arrays), 1)
            return {name: value[0] for name, value in self._values(one)(one.layout.zeros(1)).items()}

        sizes = target.sizes
        arrays = target.arguments.local_shapes()
        return jax.make_jaxpr(values, axis_env=list(sizes.items()), return_shape=True)(arrays)[1]

    def _values(self, target: LaneTarget) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
        """Return a function from positions `(lanes, ...)` to the values of variables."""

        def one(position: Mapping[str, Array], lane_data: Mapping[int, Array]) -> dict[str, Array]:
            density = target.density.with_lane_data(lane_data)
            constrained = density.constrain(position)
            values = {name: constrained[name] for name in self.names}
            densities = density.observations(position) if self.observed else {}
            return values | {density_name(name): densities[name] for name in self.observed}

        return lambda position: jax.vmap(one)(position, target.lane_data_first)
