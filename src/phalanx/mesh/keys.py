"""Keys of a run: every draw's key is a function of (seed, chain, draw) alone.

A chain is therefore the same for any number of lanes, blocks or devices, and no key is used for two draws: draw 0 is
the chain's initial position, draws 1, 2, ... its steps, warm-up first.

A key is two words, and `jax.random.fold_in` hashes a number under them. Here the hash is computed for all lanes in one
fused operation.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.typing import ArrayLike

from phalanx.mesh.random_numbers import Words, threefry

INITIAL_POSITION = 0
"""The draw number of a chain's initial position."""


class Keys(NamedTuple):
    """The keys of several chains, as words.

    Attributes:
        chain: the key of each chain.
    """

    chain: Words

    @classmethod
    def of_chains(cls, seed: ArrayLike, chains: ArrayLike) -> Keys:
        """Return the keys of the chains with these numbers."""
        seed, chains = jnp.asarray(seed, jnp.uint32), jnp.asarray(chains, jnp.uint32)
        return cls(threefry((jnp.zeros_like(seed), seed), jnp.zeros_like(chains), chains))

    def of_draw(self, draw: ArrayLike) -> Words:
        """Return the key of one draw of each chain; `draw` is a number, or one for each chain."""
        draw = jnp.asarray(draw, jnp.uint32)
        return threefry(self.chain, jnp.zeros_like(draw), draw)


def as_key(words: Words) -> Array:
    """Return words as a JAX key."""
    return random.wrap_key_data(jnp.stack(words, axis=-1), impl="threefry2x32")


def is_key(leaf: object) -> bool:
    """Return whether an array holds typed JAX keys, which NumPy cannot represent."""
    return jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key)


def check_seed(seed: object) -> None:
    """Raise unless `seed` is a whole number from 0 to 2**32 - 1."""
    if isinstance(seed, Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        raise TypeError("seed must be a whole number, such as seed=0, and not a key: keys are made from it.")
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise ValueError(f"seed must be a whole number from 0 to 2**32 - 1, got {seed!r}.")
