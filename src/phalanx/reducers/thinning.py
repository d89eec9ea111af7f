"""Draws taken evenly from a run: of each chain one from each of equally many spans, which grow longer with it.

A span of `w` draws is represented by one of them, each with the same chance, drawn as the span goes by: its `i`-th draw
takes the place of the one before with a chance of one in `i`. When a chain has no room for more spans, two and two
become one, and either's draw stays with a chance of one half. What is taken depends on nothing but how many draws
there are, so that equal runs give equal answers; and it is not every `w`-th, which chains that swing would fool.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from phalanx.reducers.shifted import at_lanes, sum_type

TAKEN = 4096
"""Draws taken from a stretch, of all chains together, at most; but two of each chain at least."""

COINS = 2**24
"""From here on, whole numbers are those of spans and not of draws."""


class Taken(NamedTuple):
    """Of each chain: draws, how often spans were doubled, and the draw of each span, `(chains, spans, ...)`."""

    count: Any
    doubled: Any
    values: Any


class Kept(NamedTuple):
    """Draws taken in all `(n, ...)`, how many draws each stands for, and how many there were."""

    values: np.ndarray
    weight: int
    draws: int


class Room(NamedTuple):
    """Room for draws: `taken` of a stretch at most, and two of each chain at least."""

    taken: int = TAKEN

    def empty(self, example: Array) -> Taken:
        """Of no draws."""
        sum_type(example.dtype)
        chains = example.shape[0]
        spans = 2 * -(-self.taken // (2 * chains))
        zero = jnp.zeros(chains, jnp.int32)
        return Taken(zero, zero, jnp.zeros((chains, spans, *example.shape[1:]), example.dtype))


def take(state: Taken, draw: Array, where: Array) -> Taken:
    """With a draw of those chains `where` there is one."""
    place = state.count & ((1 << state.doubled) - 1)
    chosen = where & (_hash(state.count) % (place + 1).astype(jnp.uint32) == 0)
    count = state.count + where
    full = where & (count == state.values.shape[1] << state.doubled)
    return lax.cond(chosen.any() | full.any(), _put, _leave, state, draw, chosen, full, count)


def _leave(state: Taken, draw: Array, chosen: Array, full: Array, count: Array) -> Taken:
    return state._replace(count=count)


def _put(state: Taken, draw: Array, chosen: Array, full: Array, count: Array) -> Taken:
    lanes, span = jnp.arange(len(chosen)), state.count >> state.doubled
    values = state.values
    values = values.at[lanes, span].set(jnp.where(at_lanes(chosen, draw), draw, values[lanes, span]))
    spans = values.shape[1]
    coin = _hash(COINS + jnp.arange(spans // 2)[None] + spans * state.doubled[:, None]) % 2 == 0
    stays = jnp.where(at_lanes(coin, values[:, ::2]), values[:, ::2], values[:, 1::2])
    halved = jnp.concatenate([stays, jnp.zeros_like(stays)], axis=1)
    return Taken(count, state.doubled + full, jnp.where(at_lanes(full, values), halved, values))


def _hash(number: Array) -> Array:
    """A whole number as if drawn at random (Appleby's finaliser of MurmurHash3)."""
    mixed = number.astype(jnp.uint32) * jnp.uint32(0x9E3779B9) + jnp.uint32(0x7F4A7C15)
    mixed = (mixed ^ (mixed >> 16)) * jnp.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> 13)) * jnp.uint32(0xC2B2AE35)
    return mixed ^ (mixed >> 16)


def kept(state: Taken | Kept) -> Kept:
    """What a stretch has taken, chain after chain in the order of their draws, each standing for as many."""
    if isinstance(state, Kept):
        return state
    count, doubled, values = (np.asarray(part) for part in state)
    length = np.int64(1) << doubled[:, None].astype(np.int64)
    lengths = np.clip(count[:, None] - np.arange(values.shape[1]) * length, 0, length)
    draws, weight = int(count.sum(dtype=np.int64)), int(length[count > 0].max(initial=1))
    # a span that is shorter than others stays with a chance of as much
    chance = random_of(draws, weight).random(lengths.shape) * weight
    return Kept(values[(lengths > 0) & (chance < lengths)], weight, draws)


def random_of(*numbers: int) -> np.random.Generator:
    """Random numbers that depend on these alone."""
    return np.random.default_rng([abs(int(number)) for number in numbers])
