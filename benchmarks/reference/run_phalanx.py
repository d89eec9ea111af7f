"""One model by Phalanx: `run_phalanx.py MODEL DATA.npz DRAWS.npz SEED`; prints seconds of sampling and divergences."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import numpy as np

import phalanx as phx

sys.path.insert(0, str(Path(__file__).parents[2]))
name, data, out, seed = sys.argv[1:]
entry = import_module(f"tests.statistical.posteriordb.{name}").entry
posterior = phx.mcmc(entry.program, dict(np.load(data)), keep=entry.names, seed=int(seed), progress=False)
np.savez(out, **posterior.draws)
print(posterior.timing.sampling, posterior.num_divergences)
