"""Programs of fits of many data sets: those of one fit, for each lane with the data and the seed of its data set."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from phalanx.learning.compiled import Compiled, Compiler
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.specs import PyTree
from phalanx.run.each.model_on_sets import ModelOnSets
from phalanx.variational.data_checks import DataChecks
from phalanx.variational.drawing import Drawn, one_draw, quartiles_of, stream_key
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
        own = self.on_sets.own
        mesh = self.on_sets.mesh
        return tuple(
            jax.device_put(np.asarray(array)[numbers], NamedSharding(mesh, OF_LANES))
            if number in own
            else jax.device_put(array, NamedSharding(mesh, SHARED))
            for number, array in enumerate(self.on_sets.arrays)
        )

    def begun(
        self, seeds: UInt32[np.ndarray, "lanes"], arrays: Sequence[Array], given: Params
    ) -> tuple[Params, Misfits, Misfits]:
        """Return initial parameters on the real line, and flags of values of `init=` that do not fit."""

        def of_lanes(seeds: Array, arrays: Sequence[Array], given: Params) -> PyTree:
            return self._mapped(lambda seed, own: first_values(self.pair, seed, own, given), arrays)(seeds)

        return self._call(of_lanes, (OF_LANES, self._specs, SHARED), OF_LANES, seeds, arrays, given)

    def invalid(self, checks: DataChecks, arrays: Sequence[Array]) -> Bool[np.ndarray, "lanes"]:
        """Return True for lanes whose data may have an index or a value out of range."""
        if not checks.apply:
            return np.zeros(len(next(arrays[number] for number in self.on_sets.own)), bool)

        def of_lanes(arrays: Sequence[Array]) -> Array:
            return self._mapped(checks.any_outside, arrays)()

        return np.asarray(self._call(of_lanes, (self._specs,), OF_LANES, arrays))

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
            made = StepBounds(*(jnp.full((room, lanes), jnp.nan) for _ in range(2)))

            def one(state: FitState, seed: Array, moves: Array, rate: Array, own: Sequence[Array]) -> PyTree:
                key = step_key(seed, state.step)
                after, bound = steps.one(state, steps.noise(key), self.pair.problem.step_data(own, key), rate)
                moves = moves & (state.failing < PATIENCE)
                after = jax.tree.map(lambda new, old: jnp.where(moves, new, old), after, state)
                found = StepBounds(bound.mean(), steps.error(bound))
                return after, jax.tree.map(lambda x: jnp.where(moves, x, jnp.nan), found)

            def step(carry: tuple[Array, FitState, StepBounds]) -> tuple[Array, FitState, StepBounds]:
                number, state, made = carry
                move = self._mapped(lambda *of_lane: one(*of_lane), arrays)
                state, found = move(state, seeds, order.moves, order.rate)
                return number + 1, state, jax.tree.map(lambda all_, one: all_.at[number].set(one), made, found)

            return lax.while_loop(lambda carry: carry[0] < order.count, step, (jnp.int32(0), state, made))[1:]

        orders: Any = (SHARED, OF_LANES, OF_LANES, OF_LANES)
        specs = (OF_LANES, OF_LANES, self._specs, LaneOrder(*orders))
        made_by = OF_LANES, PartitionSpec(None, CHAIN)
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), state)
        state, made = self._call(
            of_lanes, specs, made_by, state, seeds, arrays, order, identity=lambda: steps.identity(one)
        )
        count = int(np.asarray(order.count))
        return state, jax.tree.map(lambda bounds: np.asarray(bounds)[:count].copy(), made)  # a view keeps all the room

    def quartiles(
        self, count: int, free: Params, seeds: UInt32[np.ndarray, "lanes"], arrays: Sequence[Array]
    ) -> Float[np.ndarray, "lanes 3 coordinate"]:
        """Return the quartiles of `count` draws from each lane's guide."""
        of_one = quartiles_of(self.pair, count)

        def of_lanes(free: Params, seeds: Array, arrays: Sequence[Array]) -> Array:
            return self._mapped(lambda free, seed, own: of_one(free, seed, own), arrays)(free, seeds)

        specs = (OF_LANES, OF_LANES, self._specs)
        return np.asarray(self._call(of_lanes, specs, OF_LANES, free, seeds, arrays, what=count))

    def values(self, free: Params) -> dict[str, Any]:
        """Return the values of parameters, given them on the real line."""

        def of_lanes(free: Params) -> dict[str, Any]:
            return jax.vmap(self.pair.learned.constrain)(free)

        return self._call(of_lanes, (OF_LANES,), OF_LANES, free)

    def draws(
        self,
        free: Params,
        seeds: UInt32[np.ndarray, "lanes"],
        numbers: UInt32[np.ndarray, "draw"],
        arrays: Sequence[Array],
    ) -> Drawn:
        """Return draws of these numbers from the guide of each lane, arrays `(lane, draw, ...)`."""

        def of_lanes(free: Params, seeds: Array, numbers: Array, arrays: Sequence[Array]) -> Drawn:
            def one(free: Params, seed: Array, own: Sequence[Array]) -> Drawn:
                data = self.pair.problem.arguments.join(own)
                base = stream_key(seed)
                each = jax.vmap(lambda number: one_draw(self.pair, free, random.fold_in(base, number), data))
                return self.pair.problem.alone(lambda: each(numbers))

            return self._mapped(one, arrays)(free, seeds)

        specs = (OF_LANES, OF_LANES, SHARED, self._specs)
        return self._call(of_lanes, specs, OF_LANES, free, seeds, numbers, arrays)

    def _mapped(self, f: Callable[..., Any], arrays: Sequence[Array]) -> Callable[..., Any]:
        """Return `f(*of_lane, arrays)` over lanes, which have their own entries of some arrays."""
        own = [0 if number in self.on_sets.own else None for number in range(len(arrays))]
        return lambda *of_lanes: jax.vmap(f, in_axes=(*[0] * len(of_lanes), own))(*of_lanes, list(arrays))

    @property
    def _specs(self) -> tuple[PartitionSpec, ...]:
        arrays = self.on_sets.arrays
        return tuple(OF_LANES if number in self.on_sets.own else SHARED for number in range(len(arrays)))

    def _call(
        self,
        f: Callable[..., Any],
        in_specs: PyTree,
        out_specs: PyTree,
        *arguments: PyTree,
        what: Any = None,
        identity: Callable[[], Hashable | None] | None = None,
    ) -> PyTree:
        """Call a program, which is compiled once for each shape of its arguments and for each `what`.

        The pair determines it, unless there is another `identity`.
        """
        is_spec = {"is_leaf": lambda node: isinstance(node, PartitionSpec)}
        layouts = jax.tree.map(lambda spec: NamedSharding(self.on_sets.mesh, spec), in_specs, **is_spec)
        arguments = jax.device_put(arguments, layouts)  # of the host or of other lanes: the program knows one layout
        key = (f.__qualname__, what, *(np.shape(leaf) for leaf in jax.tree.leaves(arguments)))
        if key not in self._known:
            mapped = jax.shard_map(f, mesh=self.on_sets.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
            of_one = key_of(self.pair) if identity is None else identity()
            known = None if of_one is None else (of_one, f.__qualname__, what, self.on_sets.own, self.on_sets.mesh)
            self._known[key] = self.compiler(mapped, *arguments, identity=known, explicit=True)
        return self._known[key](*arguments)


def room_of(lanes: int) -> int:
    """Return the most steps of a block."""
    return max(16, min(ROOM, NUMBERS // lanes))
