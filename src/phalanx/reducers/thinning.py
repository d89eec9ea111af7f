"""Draws taken evenly from a run: one of each span of a chain, where spans grow longer as the chain does.

A span of `w` draws is represented by one of them, chosen uniformly at random when the span begins, for each chain anew.
When a chain has no room for more spans, neighbours are merged in pairs, and either's draw stays with probability one
half. The choice depends on the number of draws alone, so that equal runs give equal answers; every `w`-th draw would be
biased for chains that oscillate. A draw costs a comparison; spans end in all chains at once, or rarely.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from phalanx.reducers.shifted import at_lanes, sum_type

if TYPE_CHECKING:
    from jaxtyping import Bool, Integer, Shaped, UInt32

TAKEN = 4096
"""The most draws taken from a batch of draws, of all chains together; but at least two of each chain."""

COINS = 2**24
"""First counter of the hashes for spans; those for draws are lower."""


class ThinnedDraws(NamedTuple):
    """State by chain: draws, complete spans, how often spans were doubled, and the draws of spans.

    `pick` is the number of the draw that represents the span under way, and `held` that draw once it is made; `values`
    are the draws of complete spans, `(chains, spans, ...)`.
    """

    count: Any
    spans: Any
    doubled: Any
    pick: Any
    held: Any
    values: Any


class Kept(NamedTuple):
    """Draws taken altogether, `(n, ...)`, the number of draws that each represents, and the number of all draws."""

    values: np.ndarray
    weight: int
    draws: int


class Room(NamedTuple):
    """Initial state with room for at most `taken` draws of a batch of draws, and at least two of each chain."""

    taken: int = TAKEN

    def __call__(self, example: Shaped[Array, "chains *shape"]) -> ThinnedDraws:
        """Return the state of no draws."""
        sum_type(example.dtype)
        chains = example.shape[0]
        spans = 2 * -(-self.taken // (2 * chains))
        zero = jnp.zeros(chains, jnp.int32)
        values = jnp.zeros((chains, spans, *example.shape[1:]), example.dtype)
        return ThinnedDraws(zero, zero, zero, zero, jnp.zeros(example.shape, example.dtype), values)


def take(state: ThinnedDraws, draw: Shaped[Array, "chains *shape"], where: Bool[Array, "chains"]) -> ThinnedDraws:
    """Add a draw of the chains that are true in `where`."""
    held = jnp.where(at_lanes(where & (state.count == state.pick), draw), draw, state.held)
    count = state.count + where
    over = where & (count == (state.spans + 1) << state.doubled)
    return lax.cond(over.any(), _put, lambda state, _: state, state._replace(count=count, held=held), over)


def _put(state: ThinnedDraws, over: Bool[Array, "chains"]) -> ThinnedDraws:
    """Store the draws of spans that are `over`, and choose the draw of the next span."""
    lanes, room, values = jnp.arange(len(over)), state.values.shape[1], state.values
    here = jnp.where(at_lanes(over, state.held), state.held, values[lanes, state.spans])
    values = values.at[lanes, state.spans].set(here)
    full = over & (state.spans == room - 1)
    values = lax.cond(full.any(), _halved, lambda state, _: state.values, state._replace(values=values), full)
    spans, doubled = jnp.where(full, room // 2, state.spans + over), state.doubled + full
    within = _hash(_hash(lanes) + state.count) & ((1 << doubled) - 1).astype(jnp.uint32)
    pick = jnp.where(over, (spans << doubled) + within.astype(jnp.int32), state.pick)
    return ThinnedDraws(state.count, spans, doubled, pick, state.held, values)


def _halved(state: ThinnedDraws, full: Bool[Array, "chains"]) -> Shaped[Array, "chains spans *shape"]:
    """Merge spans in pairs, each of which keeps the draw of one, for chains that are `full`."""
    lanes, pairs = jnp.arange(len(full))[:, None], jnp.arange(state.values.shape[1] // 2)[None]
    coin = _hash(_hash(lanes) + COINS + pairs + state.count[:, None]) >> 31 == 0
    stays = jnp.where(at_lanes(coin, state.values[:, ::2]), state.values[:, ::2], state.values[:, 1::2])
    halved = jnp.concatenate([stays, jnp.zeros_like(stays)], axis=1)
    return jnp.where(at_lanes(full, state.values), halved, state.values)


def _hash(number: Integer[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """Return a hash of a whole number (Appleby's finaliser of MurmurHash3)."""
    mixed = number.astype(jnp.uint32) * jnp.uint32(0x9E3779B9) + jnp.uint32(0x7F4A7C15)
    mixed = (mixed ^ (mixed >> 16)) * jnp.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> 13)) * jnp.uint32(0xC2B2AE35)
    return mixed ^ (mixed >> 16)


def kept(state: ThinnedDraws | Kept) -> Kept:
    """Return the draws taken from a batch of draws, by chain and in order; each represents the same number."""
    if isinstance(state, Kept):
        return state
    count, spans, doubled, pick, held, values = (np.asarray(part) for part in state)
    # an incomplete span of `l` out of `w` draws counts if its draw was made, which has probability l / w
    values = np.concatenate([values, held[:, None]], axis=1)
    number = np.arange(values.shape[1])[None]
    there = np.where(number < values.shape[1] - 1, number < spans[:, None], (pick < count)[:, None])
    length = np.int64(1) << doubled.astype(np.int64)
    draws, weight = int(count.sum(dtype=np.int64)), int(length[count > 0].max(initial=1))
    chance = random_of(draws, weight).random(there.shape) * weight
    return Kept(values[there & (chance < length[:, None])], weight, draws)


def random_of(*numbers: int) -> np.random.Generator:
    """Return a generator of random numbers that depend on these numbers alone."""
    return np.random.default_rng([abs(int(number)) for number in numbers])
