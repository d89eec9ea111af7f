"""One model by stanli, Stan without a compiler; arguments as for `run_phalanx.py`."""

from __future__ import annotations

import sys
import time

import numpy as np
import stanli
from stan_programs import program

DRAWS = 1000

name, path, out, seed = sys.argv[1:]
code, data = program(name, path)
model = stanli.Model(stan_code=code, data=data, seed=int(seed))
began = time.perf_counter()
fit = model.sample(chains=4, warmup=1000, samples=DRAWS, seed=int(seed), save_warmup=True, refresh=0)
seconds = time.perf_counter() - began
np.savez(out, **{key: fit.draws(key)[:, -DRAWS:] for key in fit.variables})
steps, diverging = (np.asarray(fit[key]).reshape(4, -1) for key in ("n_leapfrog__", "divergent__"))
print(seconds * steps[:, -DRAWS:].sum() / steps.sum(), int(diverging[:, -DRAWS:].sum()))
