"""One model by NumPyro, a device for each chain; arguments as for `run_phalanx.py`."""

from __future__ import annotations

import sys
import time

import jax
import numpy as np
import numpyro
import numpyro_models
from numpyro.infer import MCMC, NUTS

numpyro.enable_validation(False)  # starts where an equation overflows are tried again, not refused
name, data, out, seed = sys.argv[1:]
arrays = {key: np.asarray(value, np.float32) for key, value in np.load(data).items()}
# garch11 has a support that depends on another variable; NumPyro keeps its transform from one parallel call to the next
# and fails in the second
method = "vectorized" if name == "garch11" else "parallel"
mcmc = MCMC(
    NUTS(getattr(numpyro_models, name)), num_warmup=1000, num_samples=1000, num_chains=4, chain_method=method,
    progress_bar=False,
)  # fmt: skip
mcmc.warmup(jax.random.key(int(seed)), **arrays)
began = time.perf_counter()
mcmc.run(mcmc.post_warmup_state.rng_key, extra_fields=("diverging",), **arrays)
draws = jax.block_until_ready(mcmc.get_samples(group_by_chain=True))
seconds = time.perf_counter() - began
np.savez(out, **{key: np.asarray(value) for key, value in draws.items()})
print(seconds, int(mcmc.get_extra_fields()["diverging"].sum()))
