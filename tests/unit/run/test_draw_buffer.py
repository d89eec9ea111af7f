"""Draws of a block go to their places among a chain's earlier draws."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.run.host.draw_buffer import Places

BLOCKS = st.integers(1, 5).flatmap(
    lambda chains: st.tuples(
        st.lists(st.integers(0, 4), min_size=chains, max_size=chains),  # draws that each chain has
        st.lists(st.integers(0, 6), min_size=chains, max_size=chains),  # draws of each in the block
        st.sampled_from([(), (3,), (2, 0)]),
        st.booleans(),
    )
)


@settings(max_examples=200, deadline=None)
@given(BLOCKS)
def test_every_draw_follows_those_of_its_chain(block):
    counts, made, shape, is_view = np.array(block[0]), np.array(block[1]), block[2], block[3]
    slots, chains, room = max(int(made.max()), 1), len(counts), int(counts.max() + made.max()) + 1
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(slots, chains, *shape))
    whole = rng.normal(size=(chains, room + 2, *shape))
    into = whole[:, 1:-1] if is_view else whole[:, :room].copy()  # a buffer may be a part of another
    expected = into.copy()
    for chain in range(chains):
        for slot in range(made[chain]):
            expected[chain, counts[chain] + slot] = rows[slot, chain]
    places = Places.of(np.arange(slots)[:, None] < made[None], counts)
    places.write(rows, into)
    np.testing.assert_array_equal(into, expected)
    assert (places.first is None) == ((made < slots).any() or (counts != counts[0]).any())
