"""Draws taken evenly from a run: one of each span of a chain, where spans are doubled when there is no room for more.

A span has $2^k$ draws, and begins at a multiple of $2^k$, counted from the first draw of the run. It is two shorter
spans, and its draw is that of one of them, chosen by a hash of the numbers of chain and span. The draws that represent
spans of a length are thus known beforehand: they do not depend on blocks, devices and lanes, and any of them represents
a shorter span, too. Every `w`-th draw would be biased for chains that oscillate. A draw costs a comparison; spans end
in all chains at once, or rarely.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from phalanx.reducers.shifted import at_lanes, sum_type

if TYPE_CHECKING:
    from jaxtyping import Bool, Int, Integer, Shaped, UInt32

DOUBLINGS = 31
"""The most doublings of spans, whose numbers have 32 bits."""


class ThinnedDraws(NamedTuple):
    """State by chain: draws, those before the first of them, number of the chain, doublings of spans, draws of spans.

    `pick` is the number of the draw that represents the span under way, and `held` that draw once it is made; `values`
    are the draws of complete spans, `(chains, spans, ...)`, beginning with an even span.
    """

    count: Any
    before: Any
    chain: Any
    doubled: Any
    pick: Any
    held: Any
    values: Any


class Room(NamedTuple):
    """Initial state with room for the draws of some spans of each chain, altogether `taken`.

    A state with `spare` spans of each chain, two at least, can begin at any draw of a run.
    """

    taken: int
    spare: int = 0

    def __call__(self, example: Shaped[Array, "chains *shape"]) -> ThinnedDraws:
        """Return the state of no draws."""
        chains = len(example)
        return self.begin(example, jnp.zeros(chains, jnp.int32), jnp.arange(chains, dtype=jnp.int32))

    def begin(
        self, example: Shaped[Array, "chains *shape"], before: Int[Array, "chains"], chain: Int[Array, "chains"]
    ) -> ThinnedDraws:
        """Return the state of no draws of these chains, which have made draws `before`."""
        sum_type(example.dtype)
        spans = 2 * -(-self.taken // (2 * len(example))) + self.spare
        values = jnp.zeros((len(example), spans, *example.shape[1:]), example.dtype)
        zero = jnp.zeros_like(before)
        return ThinnedDraws(zero, before, chain, zero, before, jnp.zeros(example.shape, example.dtype), values)


def take(state: ThinnedDraws, draw: Shaped[Array, "chains *shape"], where: Bool[Array, "chains"]) -> ThinnedDraws:
    """Add a draw of the chains that are true in `where`."""
    number = state.before + state.count
    held = jnp.where(at_lanes(where & (number == state.pick), draw), draw, state.held)
    ended = where & ((number + 1) & ((1 << state.doubled) - 1) == 0)
    state = state._replace(count=state.count + where, held=held)
    return lax.cond(ended.any(), _put, lambda state, _: state, state, ended)


def _put(state: ThinnedDraws, ended: Bool[Array, "chains"]) -> ThinnedDraws:
    """Store the draws of spans that have ended, and choose the draw of the next span."""
    lanes = jnp.arange(len(ended))
    room = state.values.shape[1]
    values = state.values
    span = (state.before + state.count) >> state.doubled
    slot = jnp.clip(span - 1 - first_span(state.before, state.doubled), 0, room - 1)
    here = jnp.where(at_lanes(ended, state.held), state.held, values[lanes, slot])
    values = values.at[lanes, slot].set(here)
    full = ended & (slot == room - 1)
    values = lax.cond(full.any(), _halved, lambda state, _: state.values, state._replace(values=values), full)
    doubled = state.doubled + full
    pick = jnp.where(ended, _pick(state.chain, span >> full, doubled), state.pick)
    return state._replace(values=values, doubled=doubled, pick=pick)


def _halved(state: ThinnedDraws, full: Bool[Array, "chains"]) -> Shaped[Array, "chains spans *shape"]:
    """Merge spans in pairs, each of which keeps the draw of one, for chains that are `full`."""
    pairs = jnp.arange(state.values.shape[1] // 2)[None]
    double = (first_span(state.before, state.doubled) >> 1)[:, None] + pairs
    second = _half(state.chain[:, None], double, state.doubled[:, None] + 1) == 1
    stays = jnp.where(at_lanes(second, state.values[:, ::2]), state.values[:, 1::2], state.values[:, ::2])
    halved = jnp.concatenate([stays, jnp.zeros_like(stays)], axis=1)
    odd = full & (double[:, 0] & 1 == 1)  # the first slot is that of an even span
    halved = jnp.where(at_lanes(odd, halved), jnp.roll(halved, 1, axis=1), halved)
    return jnp.where(at_lanes(full, state.values), halved, state.values)


def first_span(before: Array | np.ndarray, doubled: Array | np.ndarray) -> Any:
    """Return the number of the span in the first slot."""
    return before >> (doubled + 1) << 1


def _pick(chain: Int[Array, "chains"], span: Int[Array, "chains"], doubled: Int[Array, "chains"]) -> Array:
    """Return the number of the draw that represents a span."""
    return lax.fori_loop(0, doubled.max(), lambda i, number: _shorter(chain, number, doubled - i, jnp), span)


def _shorter(
    chain: Array | np.ndarray, span: Array | np.ndarray, doubled: Array | np.ndarray, numpy: ModuleType
) -> Any:
    """Return the half of a span whose draw represents it; the span itself where it is a single draw."""
    return numpy.where(doubled > 0, 2 * span + _half(chain, span, doubled), span)


def _half(chain: Array | np.ndarray, span: Array | np.ndarray, doubled: Array | np.ndarray) -> Any:
    """Return the half of a span whose draw represents it: 0 for the first one, 1 for the second."""
    return (hash_of(chain, doubled, span) >> np.uint32(31)).astype(np.int32)


def hash_of(*numbers: Integer[Any, "..."]) -> UInt32[Any, "..."]:
    """Return a hash of whole numbers, with JAX or NumPy (Appleby's finaliser of MurmurHash3)."""
    mixed: Any = np.uint32(0)
    for number in numbers:
        mixed = (mixed + number.astype(np.uint32)) * np.uint32(0x9E3779B9) + np.uint32(0x7F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        mixed = (mixed ^ (mixed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        mixed = mixed ^ (mixed >> np.uint32(16))
    return mixed


class TakenDraws(NamedTuple):
    """Draws of one state, on the host, by chain and in order: values `(n, ...)`, chains and numbers, and doublings."""

    values: np.ndarray
    chain: np.ndarray
    number: np.ndarray
    doubled: int


def taken(state: ThinnedDraws) -> TakenDraws:
    """Return the draws that represent spans of one length, the longest of any chain."""
    count, before, chain, doubled, pick, held, values = (np.asarray(part) for part in state)
    longest = int(doubled[count > 0].max(initial=0))
    end = before + count
    lanes = np.arange(len(count))
    current = (end >> doubled) - first_span(before, doubled)
    values = values.copy()
    values[lanes, current] = np.where(at_lanes(pick < end, held), held, values[lanes, current])
    chains = chain[:, None]
    spans = first_span(before, doubled)[:, None] + np.arange(values.shape[1])
    number = spans
    for i in range(longest):
        number = _shorter(chains, number, doubled[:, None] - i, np)
    there = (before[:, None] <= number) & (number < end[:, None])
    chains = np.broadcast_to(chains, there.shape)[there]
    number = number[there]
    values = values[there]
    longer = doublings(chains, number) >= longest
    return TakenDraws(values[longer], chains[longer], number[longer], longest)


def doublings(chain: Int[np.ndarray, "n"], number: Int[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
    """Return the doublings of the longest span that each draw represents."""
    most = np.zeros(number.shape, np.int64)
    represents = np.ones(number.shape, bool)
    for doubled in range(1, DOUBLINGS):
        half = _half(chain, number >> doubled, np.full(number.shape, doubled))
        represents &= (number >> (doubled - 1)) & 1 == half
        most += represents
    return most
