"""Keys of a run. Every draw's key is a function of (seed, chain, draw) alone.

A chain is therefore the same chain whatever the number of lanes, blocks or devices, and no key feeds two draws: draw 0
is the chain's initial position, draws 1, 2, ... its steps, warm-up first.
"""

from __future__ import annotations

from jax import Array, random

INITIAL_POSITION = 0
"""The draw number of a chain's initial position."""


def chain_key(seed: Array, chain: Array | int) -> Array:
    """The key of a chain."""
    return random.fold_in(random.key(seed, impl="threefry2x32"), chain)


def draw_key(chain_key: Array, draw: Array | int) -> Array:
    """The key of one draw of a chain."""
    return random.fold_in(chain_key, draw)
