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
    """State by chain.

    Attributes:
        count: draws since the state began.
        before: draws of the run before these.
        chain: number of the chain.
        doubled: times that the length of spans was doubled.
        pick: number of the draw that represents the span under way.
        held: that draw, once it is made.
        values: the draws that represent complete spans, `(chains, spans, ...)`, beginning with an even span.
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
    picked_draws = jnp.where(at_lanes(where & (number == state.pick), draw), draw, state.held)
    span_ends = where & ((number + 1) & ((1 << state.doubled) - 1) == 0)
    state = state._replace(count=state.count + where, held=picked_draws)
    return lax.cond(span_ends.any(), _put, lambda state, _: state, state, span_ends)


def _put(state: ThinnedDraws, span_ends: Bool[Array, "chains"]) -> ThinnedDraws:
    """Store the draws of spans that have ended, and choose the draw of the next span."""
    lanes = jnp.arange(len(span_ends))
    room = state.values.shape[1]
    values = state.values
    span = (state.before + state.count) >> state.doubled
    slot = jnp.clip(span - 1 - first_span(state.before, state.doubled), 0, room - 1)
    here = jnp.where(at_lanes(span_ends, state.held), state.held, values[lanes, slot])
    values = values.at[lanes, slot].set(here)
    full = span_ends & (slot == room - 1)
    values = lax.cond(full.any(), _halved, lambda state, _: state.values, state._replace(values=values), full)
    num_doublings = state.doubled + full
    pick = jnp.where(span_ends, _pick(state.chain, span >> full, num_doublings), state.pick)
    return state._replace(values=values, doubled=num_doublings, pick=pick)


def _halved(state: ThinnedDraws, full: Bool[Array, "chains"]) -> Shaped[Array, "chains spans *shape"]:
    """Merge spans in pairs, each of which keeps the draw of one, for chains that are `full`."""
    pairs = jnp.arange(state.values.shape[1] // 2)[None]
    double = (first_span(state.before, state.doubled) >> 1)[:, None] + pairs
    second = _half(state.chain[:, None], double, state.doubled[:, None] + 1) == 1
    stays = jnp.where(at_lanes(second, state.values[:, ::2]), state.values[:, 1::2], state.values[:, ::2])
    merged_spans = jnp.concatenate([stays, jnp.zeros_like(stays)], axis=1)
    odd = full & (double[:, 0] & 1 == 1)  # the first slot is that of an even span
    merged_spans = jnp.where(at_lanes(odd, merged_spans), jnp.roll(merged_spans, 1, axis=1), merged_spans)
    return jnp.where(at_lanes(full, state.values), merged_spans, state.values)


def first_span(before: Array | np.ndarray, num_doublings: Array | np.ndarray) -> Any:
    """Return the number of the span in the first slot."""
    return before >> (num_doublings + 1) << 1


def _pick(chain: Int[Array, "chains"], span: Int[Array, "chains"], num_doublings: Int[Array, "chains"]) -> Array:
    """Return the number of the draw that represents a span."""
    return lax.fori_loop(
        0, num_doublings.max(), lambda i, number: _shorter(chain, number, num_doublings - i, jnp), span
    )


def _shorter(
    chain: Array | np.ndarray, span: Array | np.ndarray, num_doublings: Array | np.ndarray, numpy: ModuleType
) -> Any:
    """Return the half of a span whose draw represents it; the span itself where it is a single draw."""
    return numpy.where(num_doublings > 0, 2 * span + _half(chain, span, num_doublings), span)


def _half(chain: Array | np.ndarray, span: Array | np.ndarray, num_doublings: Array | np.ndarray) -> Any:
    """Return the half of a span whose draw represents it: 0 for the first one, 1 for the second."""
    return (hash_of(chain, num_doublings, span) >> np.uint32(31)).astype(np.int32)


def hash_of(*numbers: Integer[Any, "..."]) -> UInt32[Any, "..."]:
    """Return a hash of whole numbers, with JAX or NumPy (Appleby's finaliser of MurmurHash3)."""
    hash_value: Any = np.uint32(0)
    for number in numbers:
        hash_value = (hash_value + number.astype(np.uint32)) * np.uint32(0x9E3779B9) + np.uint32(0x7F4A7C15)
        hash_value = (hash_value ^ (hash_value >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        hash_value = (hash_value ^ (hash_value >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        hash_value = hash_value ^ (hash_value >> np.uint32(16))
    return hash_value


class TakenDraws(NamedTuple):
    """Draws of one state, on the host, by chain and in order: values `(n, ...)`, chains and numbers, and doublings."""

    values: np.ndarray
    chain: np.ndarray
    number: np.ndarray
    doubled: int


def taken(state: ThinnedDraws) -> TakenDraws:
    """Return the draws that represent spans of one length, the longest of any chain."""
    count, before, chain, num_doublings, pick, picked_draws, values = (np.asarray(part) for part in state)
    longest = int(num_doublings[count > 0].max(initial=0))
    end = before + count
    lanes = np.arange(len(count))
    current = (end >> num_doublings) - first_span(before, num_doublings)
    values = values.copy()
    values[lanes, current] = np.where(at_lanes(pick < end, picked_draws), picked_draws, values[lanes, current])
    chains = chain[:, None]
    spans = first_span(before, num_doublings)[:, None] + np.arange(values.shape[1])
    number = spans
    for i in range(longest):
        number = _shorter(chains, number, num_doublings[:, None] - i, np)
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
    for num_doublings in range(1, DOUBLINGS):
        half = _half(chain, number >> num_doublings, np.full(number.shape, num_doublings))
        represents &= (number >> (num_doublings - 1)) & 1 == half
        most += represents
    return most
