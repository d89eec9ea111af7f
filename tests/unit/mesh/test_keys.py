"""Keys: one for each draw of each chain, and no two alike."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.mesh.keys import chain_key, draw_key


def test_no_two_draws_share_a_key():
    seeds = jnp.arange(3, dtype=jnp.uint32)
    keys = jax.vmap(
        lambda seed: jax.vmap(
            lambda chain: jax.vmap(lambda draw: jax.random.key_data(draw_key(chain_key(seed, chain), draw)))(
                jnp.arange(20)
            )
        )(jnp.arange(10))
    )(seeds)
    words = np.asarray(keys).reshape(-1, 2)
    assert len(words) == 600
    assert len(np.unique(np.asarray(words), axis=0)) == 600


def test_a_key_depends_on_seed_chain_and_draw_alone():
    one = draw_key(chain_key(jnp.uint32(5), 3), 7)
    several = jax.vmap(lambda chain: draw_key(chain_key(jnp.uint32(5), chain), 7))(jnp.arange(2, 6))
    assert (jax.random.key_data(several[1]) == jax.random.key_data(one)).all()
