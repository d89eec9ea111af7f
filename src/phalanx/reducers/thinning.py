"""Draws taken evenly from a run: of each chain one from each of equally many spans, which grow longer with it.

A span of `w` draws is represented by one of them, each with the same chance, which is chosen when the span begins, for
each chain anew. When a chain has no room for more spans, two and two become one, and either's draw stays with a chance
of one half. What is taken depends on nothing but how many draws there are, so that equal runs give equal answers; and
it is not every `w`-th, which chains that swing would fool. A draw costs a comparison; spans end all at once, or rarely.
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
"""Draws taken from a stretch, of all chains together, at most; but two of each chain at least."""

COINS = 2**24
"""From here on, whole numbers are those of spans and not of draws."""


class Taken(NamedTuple):
    """Of each chain: draws, spans that are over, how often spans were doubled, and the draws of spans.

    `pick` is the draw, by its number, that is taken of the span under way, and `held` that draw once it was made;
    `values` those of spans that are over, `(chains, spans, ...)`.
    """

    count: Any
    spans: Any
    doubled: Any
    pick: Any
    held: Any
    values: Any


class Kept(NamedTuple):
    """Draws taken in all `(n, ...)`, how many draws each stands for, and how many there were."""

    values: np.ndarray
    weight: int
    draws: int


class Room(NamedTuple):
    """Room for draws: `taken` of a stretch at most, and two of each chain at least."""

    taken: int = TAKEN

    def __call__(self, example: Shaped[Array, "chains *shape"]) -> Taken:
        """Of no draws."""
        sum_type(example.dtype)
        chains = example.shape[0]
        spans = 2 * -(-self.taken // (2 * chains))
        zero = jnp.zeros(chains, jnp.int32)
        values = jnp.zeros((chains, spans, *example.shape[1:]), example.dtype)
        return Taken(zero, zero, zero, zero, jnp.zeros(example.shape, example.dtype), values)


def take(state: Taken, draw: Shaped[Array, "chains *shape"], where: Bool[Array, "chains"]) -> Taken:
    """With a draw of those chains `where` there is one."""
    held = jnp.where(at_lanes(where & (state.count == state.pick), draw), draw, state.held)
    count = state.count + where
    over = where & (count == (state.spans + 1) << state.doubled)
    return lax.cond(over.any(), _put, lambda state, _: state, state._replace(count=count, held=held), over)


def _put(state: Taken, over: Bool[Array, "chains"]) -> Taken:
    """Put by the draws of spans that are `over`, and choose which is taken of the next."""
    lanes, room, values = jnp.arange(len(over)), state.values.shape[1], state.values
    here = jnp.where(at_lanes(over, state.held), state.held, values[lanes, state.spans])
    values = values.at[lanes, state.spans].set(here)
    full = over & (state.spans == room - 1)
    values = lax.cond(full.any(), _halved, lambda state, _: state.values, state._replace(values=values), full)
    spans, doubled = jnp.where(full, room // 2, state.spans + over), state.doubled + full
    within = _hash(_hash(lanes) + state.count) & ((1 << doubled) - 1).astype(jnp.uint32)
    pick = jnp.where(over, (spans << doubled) + within.astype(jnp.int32), state.pick)
    return Taken(state.count, spans, doubled, pick, state.held, values)


def _halved(state: Taken, full: Bool[Array, "chains"]) -> Shaped[Array, "chains spans *shape"]:
    """Of two and two spans the draw of one, for chains that are `full`."""
    lanes, pairs = jnp.arange(len(full))[:, None], jnp.arange(state.values.shape[1] // 2)[None]
    coin = _hash(_hash(lanes) + COINS + pairs + state.count[:, None]) >> 31 == 0
    stays = jnp.where(at_lanes(coin, state.values[:, ::2]), state.values[:, ::2], state.values[:, 1::2])
    halved = jnp.concatenate([stays, jnp.zeros_like(stays)], axis=1)
    return jnp.where(at_lanes(full, state.values), halved, state.values)


def _hash(number: Integer[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """A whole number as if drawn at random (Appleby's finaliser of MurmurHash3)."""
    mixed = number.astype(jnp.uint32) * jnp.uint32(0x9E3779B9) + jnp.uint32(0x7F4A7C15)
    mixed = (mixed ^ (mixed >> 16)) * jnp.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> 13)) * jnp.uint32(0xC2B2AE35)
    return mixed ^ (mixed >> 16)


def kept(state: Taken | Kept) -> Kept:
    """What a stretch has taken, chain after chain in the order of their draws, each standing for as many."""
    if isinstance(state, Kept):
        return state
    count, spans, doubled, pick, held, values = (np.asarray(part) for part in state)
    # a span that is not over counts where its draw was made: of `l` draws out of `w`, with a chance of l / w
    values = np.concatenate([values, held[:, None]], axis=1)
    number = np.arange(values.shape[1])[None]
    there = np.where(number < values.shape[1] - 1, number < spans[:, None], (pick < count)[:, None])
    length = np.int64(1) << doubled.astype(np.int64)
    draws, weight = int(count.sum(dtype=np.int64)), int(length[count > 0].max(initial=1))
    chance = random_of(draws, weight).random(there.shape) * weight
    return Kept(values[there & (chance < length[:, None])], weight, draws)


def random_of(*numbers: int) -> np.random.Generator:
    """Random numbers that depend on these alone."""
    return np.random.default_rng([abs(int(number)) for number in numbers])
