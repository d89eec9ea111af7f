"""Block that advances chains tick by tick and passes their draws to sinks.

Warm-up, stored draws and reduced draws use this loop with different sinks. Lanes may be advanced in tiles, one after
the other; since lanes are independent, the draws do not depend on the tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.chains import lane_chains
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.position import choose
from phalanx.mesh.random_numbers import Keys
from phalanx.mesh.specs import PyTree
from phalanx.run.device.blocks import Blocks, ChainState
from phalanx.run.device.sink import Draws, Sink

if TYPE_CHECKING:
    from jaxtyping import Bool, Int, Shaped


class BlockArguments(NamedTuple):
    """Arguments of a block. Fields are arrays, their shapes, or their partitions.

    Attributes:
        ticks: maximal number of ticks.
        draws: draws that each chain should keep, `(chain,)`; the block ends when all have them.
        thin: draws of the kernel per kept draw.
        ahead: draws that a chain may make beyond `draws` while other chains are not done.
        later: step size of draws beyond `draws`; unused if a tick is a whole draw.
        at_least_one: true to make one tick even if no draws are due.
    """

    ticks: Any
    draws: Any
    thin: Any
    ahead: Any
    later: Any
    at_least_one: Any

    def ask_for_more(self, num_draws: Int[Array, "lanes"], ticks: Int[Array, ""]) -> Bool[Array, ""]:
        """Return True if the block makes another tick after `ticks` ticks, with `num_draws` in each lane."""
        return (ticks < self.ticks) & ((num_draws < self.draws).any() | (self.at_least_one & (ticks == 0)))


class SinkState(NamedTuple):
    """State of the sinks: number of kept draws of each lane since the sinks were empty, and the state of each sink."""

    count: Any
    states: Any


class Advanced(NamedTuple):
    """Result of a block; `ticks` has one number for each device along the chains."""

    chains: Any
    sinks: Any
    ticks: Any


@dataclass(frozen=True)
class Advance:
    """Function of a block that advances chains, before it is compiled.

    Attributes:
        blocks: functions of the other blocks.
        sinks: sinks that receive the draws.
        tile: number of lanes that a device advances together.
    """

    blocks: Blocks
    sinks: tuple[Sink, ...]
    tile: int

    def __call__(
        self,
        seed: Array,
        arrays: Sequence[Array],
        tuning: PyTree,
        block_arguments: BlockArguments,
        chains: ChainState,
        sinks: SinkState,
    ) -> Advanced:
        """Advance the chains, tile by tile, until they have their draws or the ticks are used up."""

        def one(part: PyTree) -> Advanced:
            chains, sinks, numbers, draws = part
            target = self.blocks.lanes(arrays, numbers)
            keys = self.blocks.keys(seed, numbers)
            later = self.blocks.of_lanes(block_arguments.later, numbers)
            of_tile = block_arguments._replace(draws=draws, later=later)
            return self._tile(target, keys, self.blocks.of_lanes(tuning, numbers), of_tile, chains, sinks)

        whole = chains, sinks, lane_chains(self.blocks.count), block_arguments.draws
        axes = _lane_axes(self.blocks.chain_specs(), chains), _lane_axes(self.sink_specs, sinks), 0, 0
        sizes = jax.tree.map(lambda leaf, axis: leaf.shape[axis], whole, axes)
        # a reducer may have one state for all lanes, as a histogram has, which tiles cannot share
        tiles = -(-self.blocks.count // self.tile) if {*jax.tree.leaves(sizes)} == {self.blocks.count} else 1
        if tiles == 1:
            return one(whole)
        lane_tiles = jax.tree.map(partial(cut_lanes, tiles=tiles, tile=self.tile), whole, axes)
        ends = lax.map(one, lane_tiles)
        lanes = partial(join_lanes, lanes=self.blocks.count)
        chains, sinks, _ = jax.tree.map(lanes, ends._replace(ticks=()), _lane_axes(self.specs, ends)._replace(ticks=()))
        return Advanced(chains, sinks, ends.ticks.max(0))

    def empty(self, arrays: Sequence[Array], before: Int[Array, "lanes"]) -> SinkState:
        """Return empty sinks, given the number of draws of each chain that were reduced before."""
        target = self.blocks.lanes(arrays)
        states = tuple(sink.empty(target, before) for sink in self.sinks)
        return SinkState(jnp.zeros(self.blocks.count, jnp.int32), states)

    def _tile(
        self,
        target: LaneTarget,
        keys: Keys,
        tuning: PyTree,
        block_arguments: BlockArguments,
        chains: ChainState,
        sinks: SinkState,
    ) -> Advanced:
        adapter = self.blocks.adapter

        def body(now: Advanced) -> Advanced:
            (lane_state, since), (count, states), ticks = now
            active = count < block_arguments.draws + block_arguments.ahead
            lane_tuning = self._by_lane(tuning, block_arguments, count)
            next_state, has_ended, info = adapter.step(lane_state, active, keys, target, lane_tuning)
            has_ended &= active
            if self.blocks.groups is not None:  # machines of whole draws move all lanes, and groups wait for others
                next_state = choose(active, next_state, lane_state)
            since = since.after(has_ended, info)
            keeps_draw = since.draws >= block_arguments.thin
            draws = Draws(has_ended, keeps_draw, count, next_state.at, info, since)
            states = tuple(sink.update(state, draws, target) for sink, state in zip(self.sinks, states, strict=True))
            return Advanced(
                ChainState(next_state, since.restarted(keeps_draw)), SinkState(count + keeps_draw, states), ticks + 1
            )

        start = Advanced(chains, sinks, jnp.int32(0))
        end = lax.while_loop(lambda now: block_arguments.ask_for_more(now.sinks.count, now.ticks), body, start)
        return end._replace(ticks=end.ticks[None])

    def _by_lane(self, tuning: PyTree, block_arguments: BlockArguments, count: Int[Array, "lanes"]) -> PyTree:
        """Return the tuning of each lane's next draw; draws beyond `block_arguments.draws` have the later step size."""
        if self.blocks.kernel.machine.makes_whole_draws or "step_size" not in tuning._fields:
            return tuning
        is_due = count < block_arguments.draws
        return tuning._replace(step_size=jnp.where(is_due, tuning.step_size, block_arguments.later))

    @property
    def specs(self) -> Advanced:
        """Partition of a block's result over the mesh."""
        return Advanced(self.blocks.chain_specs(), self.sink_specs, PartitionSpec(CHAIN))

    @property
    def sink_specs(self) -> SinkState:
        """Partition of the state of sinks over the mesh."""
        return SinkState(PartitionSpec(CHAIN), tuple(sink.specs for sink in self.sinks))


def _lane_axes(specs: PyTree, tree: PyTree) -> PyTree:
    """Return the dimension of the lanes in each array; `specs` may be a prefix of the tree."""

    def of(spec: PartitionSpec, part: PyTree) -> PyTree:
        return jax.tree.map(lambda _: tuple(spec).index(CHAIN), part)

    return jax.tree.map(of, specs, tree, is_leaf=lambda node: isinstance(node, PartitionSpec))


def cut_lanes(leaf: Shaped[Array, "..."], axis: int, tiles: int, tile: int) -> Shaped[Array, "{tiles} ..."]:
    """Split the lanes of an array into tiles, as a new first dimension; copies of the last lane fill the last tile."""
    shape = leaf.shape
    if missing := tiles * tile - shape[axis]:
        leaf = jnp.pad(leaf, [(0, missing * (number == axis)) for number in range(leaf.ndim)], "edge")
    parted = leaf.reshape(*shape[:axis], tiles, tile, *shape[axis + 1 :])
    return jnp.moveaxis(parted, axis, 0)


def join_lanes(leaf: Shaped[Array, "tiles ..."], axis: int, lanes: int) -> Shaped[Array, "..."]:
    """Return the inverse of `cut_lanes`."""
    parted = jnp.moveaxis(leaf, 0, axis)
    shape = parted.shape
    lanes_in_tiles = parted.reshape(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
    return lax.slice_in_dim(lanes_in_tiles, 0, lanes, axis=axis)
