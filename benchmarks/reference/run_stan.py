"""One model by Stan through PyStan; arguments as for `run_phalanx.py`. Compiled models are kept by httpstan."""

from __future__ import annotations

import re
import sys

import numpy as np
import stan
from stan_programs import program

name, path, out, seed = sys.argv[1:]
code, data = program(name, path)
model = stan.build(code, data=data, random_seed=int(seed))
fit = model.sample(num_chains=4, num_warmup=1000, num_samples=1000)
draws = {key: fit[key].reshape(*fit[key].shape[:-1], 1000, 4) for key in fit.param_names}
draws = {key: np.moveaxis(value, (-1, -2), (0, 1)) for key, value in draws.items()}
np.savez(out, **{key: value[..., 0] if not dims and value.ndim == 3 else value
                 for (key, value), dims in zip(draws.items(), fit.dims, strict=True)})  # fmt: skip
said = b"".join(fit.stan_outputs).decode()
seconds = [float(found) for found in re.findall(r"([0-9.e+-]+) seconds \(Sampling\)", said)]
print(max(seconds) if seconds else float("nan"), int(fit["divergent__"].sum()))
