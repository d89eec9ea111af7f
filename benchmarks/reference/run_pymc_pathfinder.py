"""Multi-path Pathfinder of pymc-extras on one model: `model paths draws seed`; prints the seconds of the call."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pymc as pm
import pymc_extras
import pytensor.tensor as pt

sys.path.insert(0, str(Path(__file__).parents[1]))
from many_chains import MODELS, data_of

number, paths, draws, seed = map(int, sys.argv[1:])
with pm.Model() as model:
    if number == 0:
        data = data_of(MODELS[0])
        mu, tau, z = pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0), pm.Normal("z", shape=8)
        pm.Normal("y", mu + tau * z, data["sigma"], observed=data["y"])
    else:
        data = data_of(MODELS[2])
        w = pm.Normal("w", shape=25)
        pm.Bernoulli("y", logit_p=pt.dot(data["x"], w), observed=data["y"])
    began = time.perf_counter()
    pymc_extras.fit_pathfinder(
        model, num_paths=paths, num_draws=draws, random_seed=seed, display_summary=False, progressbar=False
    )
    print(time.perf_counter() - began)
