"""One model by nutpie, from PyMC's model compiled by Numba; arguments as for `run_phalanx.py`. nutpie's own warm-up."""

from __future__ import annotations

import sys
import time

import numpy as np
import nutpie
import pymc as pm
import pymc_models

name, data, out, seed = sys.argv[1:]
with pm.Model() as model:
    getattr(pymc_models, name)(**dict(np.load(data)))
compiled = nutpie.compile_pymc_model(model)
began = time.perf_counter()
trace = nutpie.sample(compiled, chains=4, seed=int(seed), progress_bar=False, save_warmup=True)
seconds = time.perf_counter() - began
steps = [group["n_steps"].sum().item() for group in (trace.sample_stats, trace.warmup_sample_stats)]
np.savez(out, **{key: values.values for key, values in trace.posterior.items()})
print(seconds * steps[0] / sum(steps), int(trace.sample_stats["diverging"].sum()))
