"""Blocks that store no draw: what each one says goes into reducers, on the device, and it is forgotten.

The lanes of a device are worked on in tiles, one after the other, each as small as to stay in a core's cache with all
that a draw needs: of tens of thousands of lanes at once every operation would wait for memory. Lanes do not depend on
one another, so that the draws are the same however they are cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from phalanx.kernels.lanes import Lanes
from phalanx.mesh.chains import lane_chains
from phalanx.mesh.devices import CHAIN, axes_but_chain
from phalanx.mesh.keys import Keys
from phalanx.run.blocks import Blocks, Order
from phalanx.run.reductions import Reductions, States
from phalanx.run.state_layout import Values, places_of

CACHE_BYTES = 2**17
"""What a tile's state may take of a core's cache. The rest is for what a draw computes on its way."""

MOST_DRAWS = 2**16
"""Draws of a chain, at most, after which states go to the host: of so many, sums in float32 are good to some 1e-5."""

LEAST_DRAWS = 2**10
"""Draws of a chain, at least, after which they go, so that adding up states takes no time to speak of."""

ENOUGH_DRAWS = 2**26
"""Draws of all chains after which they go: a number of draws and not a time, so that equal runs give equal answers."""


class Tally(NamedTuple):
    """What each lane has done in a block.

    Attributes:
        made: draws made.
        draws: draws that went into the reducers.
        since: draws since the last of those.
        acceptance: sum of acceptance rates, over all draws.
        num_steps: evaluations.
        diverging: draws that diverged.
    """

    made: Any
    draws: Any
    since: Any
    acceptance: Any
    num_steps: Any
    diverging: Any

    @classmethod
    def none(cls, count: int) -> Tally:
        """Nothing yet."""
        zero = jnp.zeros(count, jnp.int32)
        return cls(zero, zero, zero, jnp.zeros(count, jnp.float32), zero, zero)


class Fold(NamedTuple):
    """What is known of the draws since the states were last handed over: what the lanes have done, and the states."""

    tally: Any
    states: Any


class Folded(NamedTuple):
    """Where chains are after a block, what is known of their draws, and ticks for each chain group."""

    underway: Any
    fold: Any
    ticks: Any


@dataclass(frozen=True)
class Folding:
    """Blocks that store no draw, ready to be compiled.

    Attributes:
        blocks: the run.
        reductions: what becomes of the draws.
        names: variables that may be reduced.
        tile: lanes of a device worked on together.
    """

    blocks: Blocks
    reductions: Reductions
    names: tuple[str, ...]
    tile: int

    @cached_property
    def places(self) -> Any:
        """Where every array of the reducers' states lives."""
        if not self.reductions.entries:
            return {}
        target = self.blocks.target
        sizes = axes_but_chain(target.mesh)

        def values(arrays: Sequence[Array]) -> dict[str, Array]:
            lanes = Lanes(target.on_device(arrays), 1)
            zeros = {v.name: jnp.zeros(v.unconstrained_shape, v.dtype) for v in lanes.latents}
            return self._values(lanes)(zeros)

        arrays = target.arguments.local_shapes()
        _, shapes = jax.make_jaxpr(values, axis_env=list(sizes.items()), return_shape=True)(arrays)
        return places_of(self.reductions, Values(shapes, {n: target.spread(n) for n in self.names}, sizes))

    def empty(self, arrays: Sequence[Array]) -> Fold:
        """What is known before the first draw."""
        tiles = self.blocks.count // self.tile
        fold = self._empty_tile(Lanes(self.blocks.target.on_device(arrays, self.tile), self.tile))
        return jax.tree.map(lambda leaf: jnp.concatenate([leaf] * tiles), fold)

    def fold(
        self, seed: Array, arrays: Sequence[Array], tuning: Any, order: Order, underway: Any, fold: Fold
    ) -> Folded:
        """Move the chains, tile by tile, until they have their draws or the ticks are used up."""
        tiles, axes = self.blocks.count // self.tile, self._lane_axes(underway)
        chains = lane_chains(self.blocks.count)

        def one(part: Any) -> Folded:
            underway, fold, chains, draws = part
            keys = Keys.of_chains(seed, chains)
            return self._fold_tile(keys, arrays, tuning, order._replace(draws=draws), underway, fold)

        if tiles == 1:
            return one((underway, fold, chains, order.draws))
        cut = jax.tree.map(lambda leaf, axis: _cut(leaf, axis, tiles), underway, axes)
        rest = jax.tree.map(lambda leaf: _cut(leaf, 0, tiles), (fold, chains, order.draws))
        folded = lax.map(one, (cut, *rest))
        return Folded(
            jax.tree.map(_join, folded.underway, axes),
            jax.tree.map(lambda leaf: _join(leaf, 0), folded.fold),
            folded.ticks.max(0),
        )

    def reduce(self, arrays: Sequence[Array], rows: Sequence[Array], count: Array) -> States:
        """What the reducers make of the rows that a block has stored, the first `count` of each chain."""
        lanes = self.blocks.lanes(arrays)
        position = lanes.unflatten(self.blocks.row_layout.vectors(rows, 0))
        values = jax.vmap(jax.vmap(self._values(lanes)))(position)

        def add(states: States, slot: tuple[Array, Mapping[str, Array]]) -> tuple[States, None]:
            number, draw = slot
            return self.reductions.update(states, draw, number < count), None

        states = self.reductions.init({name: value[0] for name, value in values.items()})
        return lax.scan(add, states, (jnp.arange(len(rows[0])), values))[0]

    def _empty_tile(self, lanes: Lanes) -> Fold:
        zeros = {v.name: jnp.zeros((self.tile, *v.unconstrained_shape), v.dtype) for v in lanes.latents}
        return Fold(Tally.none(self.tile), self.reductions.init(jax.vmap(self._values(lanes))(zeros)))

    def _fold_tile(
        self, keys: Keys, arrays: Sequence[Array], tuning: Any, order: Order, underway: Any, fold: Fold
    ) -> Folded:
        lanes = Lanes(self.blocks.target.on_device(arrays, self.tile), self.tile)
        machine, read = self.blocks.machine, jax.vmap(self._values(lanes))

        def go_on(carry: tuple[Any, Fold, Array]) -> Array:
            _, fold, ticks = carry
            return (ticks < order.ticks) & order.asks(fold.tally.draws, ticks)

        def body(carry: tuple[Any, Fold, Array]) -> tuple[Any, Fold, Array]:
            now, (tally, states), ticks = carry
            active = tally.draws < order.draws
            now, ended = machine.tick(now, active, order.abandons(ticks), lanes, tuning, keys)
            done = ended.done & active
            since = tally.since + done
            kept = since == order.thin
            states = self.reductions.update(states, read(lanes.unflatten(ended.position)), kept)
            tally = Tally(
                tally.made + done,
                tally.draws + kept,
                jnp.where(kept, 0, since),
                tally.acceptance + jnp.where(done, ended.info.acceptance_rate, 0.0).astype(jnp.float32),
                tally.num_steps + jnp.where(done, ended.info.num_steps, 0),
                tally.diverging + (done & ended.info.diverging),
            )
            return now, Fold(tally, states), ticks + 1

        now, fold, ticks = lax.while_loop(go_on, body, (underway.machine, fold, jnp.int32(0)))
        return Folded(underway._replace(machine=now), fold, ticks[None])

    def _values(self, lanes: Lanes) -> Any:
        def values(u: Mapping[str, Array]) -> dict[str, Array]:
            found = lanes.density.constrain(u)
            return {name: found[name] for name in self.names}

        return values

    def _lane_axes(self, underway: Any) -> Any:
        """Which dimension of each array is that of the lanes."""
        specs = self.blocks.underway_specs()
        return jax.tree.map(
            lambda spec, part: jax.tree.map(lambda _: tuple(spec).index(CHAIN), part),
            specs, underway, is_leaf=lambda node: isinstance(node, PartitionSpec),
        )  # fmt: skip

    @property
    def stores_draws(self) -> bool:
        """Whether blocks store draws, or their statistics, or everything goes into the reducers."""
        return bool(self.blocks.names) or not self.reductions.entries

    # -- how it is laid out over the mesh ---------------------------------------------------------------------

    def folded_specs(self) -> Folded:
        """Layout of what a block has done."""
        return Folded(self.blocks.underway_specs(), self.fold_specs(), PartitionSpec(CHAIN))

    def fold_specs(self) -> Fold:
        """Layout of what is known."""
        return Fold(PartitionSpec(CHAIN), self.state_specs())

    def state_specs(self) -> Any:
        """Layout of the reducers' states."""
        return jax.tree.map(lambda place: place.spec, self.places)


def tile_of(count: int, bytes_per_lane: int) -> int:
    """Lanes worked on together: as many as a core's cache holds, and a divisor of all there are."""
    most = max(1, CACHE_BYTES // max(bytes_per_lane, 1))
    found = next(tile for tile in range(min(count, most), 0, -1) if count % tile == 0)
    return found if 8 * found >= min(count, most) else count  # of a prime number of lanes no tile is worth while


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
