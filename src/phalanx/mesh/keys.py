"""Keys of a run. Every draw's key is a function of (seed, chain, draw) alone.

A chain is therefore the same chain whatever the number of lanes, blocks or devices, and no key feeds two draws: draw 0
is the chain's initial position, draws 1, 2, ... its steps, warm-up first.
"""

from __future__ import annotations

import jax
from jax import Array, random

INITIAL_POSITION = 0
"""The draw number of a chain's initial position."""


def draw_key(seed_key: Array, chain: Array | int, draw: Array | int) -> Array:
    """The key of one draw of one chain."""
    return random.fold_in(random.fold_in(seed_key, chain), draw)


def row_keys(key: Array, rows: Array) -> Array:
    """One key per row, from the row's number in the whole array: a row keeps its randomness wherever it lives."""
    return jax.vmap(lambda row: random.fold_in(key, row))(rows)
