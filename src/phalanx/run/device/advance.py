"""The block that moves chains: tick by tick, what they draw goes into sinks.

There is one such loop. Warm-up, draws that are stored and draws that are folded differ in their sinks alone. Lanes may
be worked on in tiles, one after the other: they do not depend on one another, so that the draws are the same however
they are cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from phalanx.mesh.chains import lane_chains
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.keys import Keys
from phalanx.run.device.blocks import Blocks, ChainState
from phalanx.run.device.sink import Draws, Sink


class Order(NamedTuple):
    """How far a block is to go.

    Attributes:
        ticks: the most ticks.
        draws: draws each chain is to keep, `(chain,)`; the block ends when all have them.
        thin: draws of the kernel per draw that is kept.
        ahead: draws that a chain may make beyond these while others are not done.
        later: step size of the draws beyond, where chains do not draw in lock-step.
        rests: whether lanes that are to make no draw rest for a tick.
    """

    ticks: Any
    draws: Any
    thin: Any
    ahead: Any
    later: Any
    rests: Any

    def asks(self, kept: Array, ticks: Array) -> Array:
        """Whether there is something to do for lanes that have `kept` draws, after these ticks."""
        return (ticks < self.ticks) & ((kept < self.draws).any() | (self.rests & (ticks == 0)))


class SinkState(NamedTuple):
    """Sinks since they were emptied: the draws kept of each lane, and the state of each sink."""

    count: Any
    states: Any


class Advanced(NamedTuple):
    """Result of a block; `ticks` has one number for each chain group."""

    chains: Any
    sinks: Any
    ticks: Any


@dataclass(frozen=True)
class Advance:
    """The block, ready to be compiled.

    Attributes:
        blocks: the run.
        sinks: where draws go.
        tile: lanes of a device worked on together.
    """

    blocks: Blocks
    sinks: tuple[Sink, ...]
    tile: int

    def __call__(
        self, seed: Array, arrays: Sequence[Array], tuning: Any, order: Order, chains: ChainState, sinks: SinkState
    ) -> Advanced:
        """Move the chains, tile by tile, until they have their draws or the ticks are used up.

        The draws are added to those that `sinks` holds.
        """
        tiles = self.blocks.count // self.tile

        def one(part: Any) -> Advanced:
            chains, sinks, numbers, draws = part
            keys = Keys.of_chains(seed, numbers)
            return self._tile(keys, arrays, tuning, order._replace(draws=draws), chains, sinks)

        whole = chains, sinks, lane_chains(self.blocks.count), order.draws
        if tiles == 1:
            return one(whole)
        axes = _lane_axes(self.blocks.chain_specs(), chains), _lane_axes(self.sink_specs, sinks), 0, 0
        cut = jax.tree.map(lambda leaf, axis: _cut(leaf, axis, tiles), whole, axes)
        made = lax.map(one, cut)
        joined = jax.tree.map(_join, made, _lane_axes(self.specs, made))
        return joined._replace(ticks=made.ticks.max(0))

    def empty(self, arrays: Sequence[Array], before: Array) -> SinkState:
        """Return sinks without draws, of chains that have made so many `before`, `(lanes,)`."""
        target = self.blocks.lanes(arrays)
        states = tuple(sink.empty(target, before) for sink in self.sinks)
        return SinkState(jnp.zeros(self.blocks.count, jnp.int32), states)

    def _tile(
        self, keys: Keys, arrays: Sequence[Array], tuning: Any, order: Order, chains: ChainState, sinks: SinkState
    ) -> Advanced:
        target, machine = self.blocks.lanes(arrays, self.tile), self.blocks.machine

        def body(now: Advanced) -> Advanced:
            (lane_state, since), (count, states), ticks = now
            active = count < order.draws + order.ahead
            tuned = self._by_lane(tuning, order, count)
            lane_state, done, info = machine.tick(lane_state, active, target, tuned, keys)
            done &= active
            since = since.after(done, info)
            kept = since.draws >= order.thin
            draws = Draws(done, kept, count, lane_state.at, info, since)
            states = tuple(sink.update(state, draws, target) for sink, state in zip(self.sinks, states, strict=True))
            return Advanced(ChainState(lane_state, since.restarted(kept)), SinkState(count + kept, states), ticks + 1)

        begun = Advanced(chains, sinks, jnp.int32(0))
        made = lax.while_loop(lambda now: order.asks(now.sinks.count, now.ticks), body, begun)
        return made._replace(ticks=made.ticks[None])

    def _by_lane(self, tuning: Any, order: Order, count: Array) -> Any:
        """The tuning of each lane's next draw, of which draws beyond those asked for have another step size."""
        if self.blocks.kernel.machine.in_lock_step or "step_size" not in tuning._fields:
            return tuning
        return tuning._replace(step_size=jnp.where(count < order.draws, tuning.step_size, order.later))

    @property
    def specs(self) -> Advanced:
        """How what a block has done is laid out over the mesh."""
        return Advanced(self.blocks.chain_specs(), self.sink_specs, PartitionSpec(CHAIN))

    @property
    def sink_specs(self) -> SinkState:
        """How what sinks know is laid out over the mesh."""
        return SinkState(PartitionSpec(CHAIN), tuple(sink.specs for sink in self.sinks))


def _lane_axes(specs: Any, tree: Any) -> Any:
    """Which dimension of each array is that of the lanes; `specs` may stop above the arrays, or have more of them."""

    def of(spec: PartitionSpec, part: Any) -> Any:
        return jax.tree.map(lambda _: tuple(spec).index(CHAIN), part)

    return jax.tree.map(of, specs, tree, is_leaf=lambda node: isinstance(node, PartitionSpec))


def _cut(leaf: Array, axis: int, tiles: int) -> Array:
    """Tiles first."""
    shape = leaf.shape
    parted = leaf.reshape(*shape[:axis], tiles, shape[axis] // tiles, *shape[axis + 1 :])
    return jnp.moveaxis(parted, axis, 0)


def _join(leaf: Array, axis: int) -> Array:
    """The inverse of `_cut`."""
    parted = jnp.moveaxis(leaf, 0, axis)
    shape = parted.shape
    return parted.reshape(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
