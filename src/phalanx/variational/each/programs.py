"""Programs of fits of many data sets: those of one fit, for each lane with the data and the seed of its data set."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from phalanx.learning.compiled import Compiled, Compiler
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.specs import PyTree, is_spec
from phalanx.run.each.model_on_sets import ModelOnSets
from phalanx.variational.data_checks import DataChecks
from phalanx.variational.drawing import Drawn, draws_of, quartiles_of
from phalanx.variational.guides.guide_and_model import Pair, key_of
from phalanx.variational.guides.learned import Params
from phalanx.variational.methods.step import PATIENCE, ROOM, FitState, StepBounds, Steps, step_key
from phalanx.variational.start import Misfits, first_values

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, UInt32

OF_LANES = PartitionSpec(CHAIN)
SHARED = PartitionSpec()

NUMBERS = 2**22
"""Most bounds of a block, over all lanes."""


class LaneOrder(NamedTuple):
    """Arguments of a block: the number of steps, and of each lane whether it moves, its rate, and if averages begin."""

    count: ArrayLike
    moves: Bool[Array | np.ndarray, "lanes"]
    rate: Float[Array | np.ndarray, "lanes"]
    anew: Bool[Array | np.ndarray, "lanes"]


@dataclass(frozen=True)
class LanePrograms:
    """Programs over lanes, compiled when they are first called, for each number of lanes.

    Attributes:
        pair: guide and model, with the data of one data set, on one device.
        on_sets: the model on many data sets, and the mesh, over whose devices lanes are sharded.
        compiler: compiles the programs.
    """

    pair: Pair
    on_sets: ModelOnSets
    compiler: Compiler
    _known: dict[tuple[Any, ...], Compiled] = field(default_factory=dict)

    def lanes_for(self, sets: int) -> int:
        """Return the number of lanes for so many data sets: a multiple of the devices."""
        devices = self.on_sets.mesh.shape[CHAIN]
        return -(-sets // devices) * devices

    def arrays(self, numbers: Int[np.ndarray, "lanes"]) -> tuple[Array, ...]:
        """Return the arrays on the mesh: a lane has those of the data set with its number."""
        per_set = self.on_sets.per_lane_data
        mesh = self.on_sets.mesh
        return tuple(
            jax.device_put(np.asarray(array)[numbers], NamedSharding(mesh, OF_LANES))
            if number in per_set
            else jax.device_put(array, NamedSharding(mesh, SHARED))
            for number, array in enumerate(self.on_sets.arrays)
        )

    @property
    def lanes(self) -> Int[np.ndarray, "lanes"]:
        """The data set of each lane of a program for all: the first data sets again fill the devices up."""
        count = self.on_sets.sets.count
        return np.arange(self.lanes_for(count)) % count

    def begun(
        self, seeds: UInt32[np.ndarray, "lanes"], arrays: Sequence[Array], init: Params
    ) -> tuple[Params, Misfits, Misfits]:
        """Return initial parameters on the real line, and flags of values of `init=` that do not fit."""
        specs = (OF_LANES, self._specs, SHARED)
        return self._of_each("begun", partial(first_values, self.pair), specs, seeds, arrays, init)

    def invalid(self, checks: DataChecks, arrays: Sequence[Array]) -> Bool[np.ndarray, "lanes"]:
        """Return True for lanes whose data may have an index or a value out of range."""
        if not checks.apply:
            return np.zeros(len(next(arrays[number] for number in self.on_sets.per_lane_data)), bool)
        return np.asarray(self._of_each("invalid", checks.any_outside, (self._specs,), arrays))

    def block(
        self,
        steps: Steps,
        state: FitState,
        seeds: UInt32[np.ndarray, "lanes"],
        arrays: Sequence[Array],
        order: LaneOrder,
    ) -> tuple[FitState, StepBounds]:
        """Make steps; return the state, and bounds `(step, lane)`, NaN of lanes that do not move."""
        room = room_of(len(seeds))

        def of_lanes(state: FitState, seeds: Array, arrays: Sequence[Array], order: LaneOrder) -> PyTree:
            lanes = seeds.shape[0]
            state = state._replace(averaged=jnp.where(order.anew, 0, state.averaged))
            step_bounds = StepBounds(*(jnp.full((room, lanes), jnp.nan) for _ in range(2)))

            def one(state: FitState, seed: Array, moves: Array, rate: Array, lane_data: Sequence[Array]) -> PyTree:
                key = step_key(seed, state.step)
                after, losses = steps.one(state, steps.noise(key), self.pair.problem.step_data(lane_data, key), rate)
                moves = moves & (state.failing < PATIENCE)
                after = jax.tree.map(lambda new, old: jnp.where(moves, new, old), after, state)
                return after, jax.tree.map(lambda x: jnp.where(moves, x, jnp.nan), losses)

            move: Callable[..., Any] = jax.vmap(one, (0, 0, 0, 0, _axes(self._specs)))

            def step(carry: tuple[Array, FitState, StepBounds]) -> tuple[Array, FitState, StepBounds]:
                number, state, step_bounds = carry
                state, losses = move(state, seeds, order.moves, order.rate, arrays)
                return number + 1, state, jax.tree.map(lambda all_, one: all_.at[number].set(one), step_bounds, losses)

            return lax.while_loop(lambda carry: carry[0] < order.count, step, (jnp.int32(0), state, step_bounds))[1:]

        orders: Any = (SHARED, OF_LANES, OF_LANES, OF_LANES)
        specs = (OF_LANES, OF_LANES, self._specs, LaneOrder(*orders))
        made_by = OF_LANES, PartitionSpec(None, CHAIN)
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), state)
        state, step_bounds = self._call(
            "block", of_lanes, specs, made_by, state, seeds, arrays, order, identity=lambda: steps.identity(one)
        )
        count = int(np.asarray(order.count))
        return state, jax.tree.map(
            lambda bounds: np.asarray(bounds)[:count].copy(), step_bounds
        )  # a view keeps all the room

    def quartiles(
        self, count: int, free: Params, seeds: UInt32[np.ndarray, "lanes"], arrays: Sequence[Array]
    ) -> Float[np.ndarray, "lanes 3 coordinate"]:
        """Return the quartiles of `count` draws from each lane's guide."""
        specs = (OF_LANES, OF_LANES, self._specs)
        return np.asarray(
            self._of_each(("quartiles", count), quartiles_of(self.pair, count), specs, free, seeds, arrays)
        )

    def values(self, free: Params) -> dict[str, Any]:
        """Return the values of parameters, given them on the real line."""
        return self._of_each("values", self.pair.learned.constrain, (OF_LANES,), free)

    def draws(
        self,
        free: Params,
        seeds: UInt32[np.ndarray, "lanes"],
        numbers: UInt32[np.ndarray, "draw"],
        arrays: Sequence[Array],
    ) -> Drawn:
        """Return draws of these numbers from the guide of each lane, arrays `(lane, draw, ...)`."""
        specs = (OF_LANES, OF_LANES, SHARED, self._specs)
        return self._of_each("draws", partial(draws_of, self.pair), specs, free, seeds, numbers, arrays)

    @property
    def _specs(self) -> tuple[PartitionSpec, ...]:
        arrays = self.on_sets.arrays
        return tuple(OF_LANES if number in self.on_sets.per_lane_data else SHARED for number in range(len(arrays)))

    def _of_each(self, what: Hashable, f: Callable[..., Any], specs: tuple[Any, ...], *arguments: PyTree) -> PyTree:
        """Return `f` of each lane."""
        of_lanes = jax.vmap(f, _axes(specs))
        return self._call(what, of_lanes, specs, OF_LANES, *arguments, identity=lambda: key_of(self.pair))

    def _call(
        self,
        what: Hashable,
        f: Callable[..., Any],
        in_specs: PyTree,
        out_specs: PyTree,
        *arguments: PyTree,
        identity: Callable[[], Hashable | None],
    ) -> PyTree:
        """Call a program, which is compiled once for each shape of its arguments and for each `what`.

        What `identity` returns determines it, with `what`, unless that is None.
        """
        layouts = jax.tree.map(lambda spec: NamedSharding(self.on_sets.mesh, spec), in_specs, is_leaf=is_spec)
        arguments = jax.device_put(arguments, layouts)  # of the host or of other lanes: the program knows one layout
        key = (what, *(np.shape(leaf) for leaf in jax.tree.leaves(arguments)))
        if key not in self._known:
            on_devices = jax.shard_map(
                f, mesh=self.on_sets.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
            )
            of_one = identity()
            program_key = None if of_one is None else (of_one, what, self.on_sets.per_lane_data, self.on_sets.mesh)
            self._known[key] = self.compiler(on_devices, *arguments, identity=program_key, explicit=True)
        return self._known[key](*arguments)


def _axes(specs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the axes of arguments along which there is an entry for each lane."""
    return jax.tree.map(lambda spec: 0 if spec == OF_LANES else None, specs, is_leaf=is_spec)


def room_of(lanes: int) -> int:
    """Return the most steps of a block."""
    return max(16, min(ROOM, NUMBERS // lanes))
