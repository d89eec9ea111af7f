"""One model by BlackJAX, its log density from NumPyro's model, a device for each chain; arguments for `run_phalanx.py`.

Each chain is warmed up by `window_adaptation`, as its documentation has it, and then runs with its own tuning.
"""

from __future__ import annotations

import sys
import time
from functools import partial

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro_models
from numpyro.infer.util import initialize_model

WARMUP, DRAWS, CHAINS = 1000, 1000, 4

numpyro.enable_validation(False)  # starts where an equation overflows are tried again, not refused
name, data, out, seed = sys.argv[1:]
arrays = {key: np.asarray(value, np.float32) for key, value in np.load(data).items()}
key_init, key_warm, key_draw = jax.random.split(jax.random.key(int(seed)), 3)
starts, potential, constrain, _ = initialize_model(
    jax.random.split(key_init, CHAINS), getattr(numpyro_models, name), model_kwargs=arrays, dynamic_args=True
)


def density_of(arrays):
    potential_of_data = potential(**arrays)
    return lambda position: -potential_of_data(position)


@partial(jax.pmap, in_axes=(0, 0, None))
def warm_up(key, position, arrays):
    (state, parameters), _ = blackjax.window_adaptation(blackjax.nuts, density_of(arrays)).run(key, position, WARMUP)
    return state, parameters


@partial(jax.pmap, in_axes=(0, 0, 0, None))
def draw(key, state, parameters, arrays):
    density, kernel = density_of(arrays), blackjax.nuts.build_kernel()

    def step(state, key):
        state, info = kernel(key, state, density, **parameters)
        return state, (constrain(**arrays)(state.position), info.is_divergent)

    return jax.lax.scan(step, state, jax.random.split(key, DRAWS))[1]


keys = partial(jax.random.split, num=CHAINS)
states, parameters = jax.block_until_ready(warm_up(keys(key_warm), starts.z, arrays))
compiled = draw.lower(keys(key_draw), states, parameters, arrays).compile()
began = time.perf_counter()
draws, diverging = jax.block_until_ready(compiled(keys(key_draw), states, parameters, arrays))
seconds = time.perf_counter() - began
np.savez(out, **{key: np.asarray(value) for key, value in draws.items()})
print(seconds, int(jnp.sum(diverging)))
