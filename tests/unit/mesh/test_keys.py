"""Keys: one for each draw of each chain, and no two alike."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.mesh.random_numbers import Keys, as_key


def test_no_two_draws_share_a_key():
    keys = [
        jax.random.key_data(as_key(Keys.of_chains(jnp.uint32(seed), jnp.arange(10)).of_draw(draw)))
        for seed in range(3)
        for draw in range(20)
    ]
    words = np.asarray(keys).reshape(-1, 2)
    assert len(words) == 600
    assert len(np.unique(np.asarray(words), axis=0)) == 600


def test_a_key_depends_on_seed_chain_and_draw_alone():
    one = as_key(Keys.of_chains(jnp.uint32(5), jnp.array(3)).of_draw(jnp.int32(7)))
    several = as_key(Keys.of_chains(jnp.uint32(5), jnp.arange(2, 6)).of_draw(jnp.arange(6, 10)))
    assert (jax.random.key_data(several[1]) == jax.random.key_data(one)).all()


def test_keys_are_those_of_fold_in():
    keys = as_key(Keys.of_chains(jnp.uint32(5), jnp.arange(3)).of_draw(jnp.int32(7)))
    folded = jax.vmap(lambda chain: jax.random.fold_in(jax.random.fold_in(jax.random.key(5), chain), 7))(jnp.arange(3))
    assert (jax.random.key_data(keys) == jax.random.key_data(folded)).all()
