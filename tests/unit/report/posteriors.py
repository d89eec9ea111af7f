"""Made-up posteriors: chains that mix, drift or stand still, without running a sampler."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from phalanx.posterior.posterior import Posterior
from phalanx.posterior.record import RunRecord, Timing

RECORD = RunRecord(
    model="regression",
    kernel="hmc(num_steps=10)",
    num_chains=4,
    num_warmup=1000,
    num_samples=100,
    seed=7,
    mesh={"chain": 2, "data": 1, "model": 1},
    devices=["TFRT_CPU_0", "TFRT_CPU_1"],
    data={"x": "float32[50,3], sharded over data"},
    latents={"w": "float32[2,3], real"},
    versions={"phalanx": "0.1.0", "jax": "0.10.2"},
    started="2026-01-01T12:00:00",
    source="def regression(x):\n    return x < 3 & 4\n",
)


def make_posterior(chains: int = 4, draws: int = 100, *, seed: int = 0, variables: dict | None = None) -> Posterior:
    """A converged posterior of `w` (2, 3), `b` and the count `n`, or of the `variables` given."""
    random = np.random.default_rng(seed)
    size = (chains, draws)
    if variables is None:
        variables = {
            "w": random.normal(size=(*size, 2, 3)).astype(np.float32),
            "b": random.normal(size=size),
            "n": random.poisson(3.0, size=size),
        }
    log_density = random.normal(-100.0, 3.0, size=size).astype(np.float32)
    stats = {
        "acceptance_rate": random.beta(8, 2, size=size).astype(np.float32),
        "diverging": np.zeros(size, dtype=bool),
        "num_steps": np.full(size, 10, dtype=np.int32),
        "energy": (random.gamma(5.0, size=size) - log_density).astype(np.float32),
        "step_size": np.full(size, 0.1, dtype=np.float32),
        "log_density": log_density,
    }
    timing = Timing(compile=1.5, warmup=70.0, sampling=12.0, gradient_evaluations=44_000, compilations=2)
    return Posterior(variables, stats, timing, replace(RECORD, num_chains=chains, num_samples=draws))


def with_stats(posterior: Posterior, **stats: np.ndarray) -> Posterior:
    """The same posterior with some statistics replaced."""
    return replace(posterior, stats={**posterior.stats, **stats})


def with_divergences(posterior: Posterior, count: int) -> Posterior:
    """The same posterior with `count` divergent draws in its first chain."""
    diverging = np.zeros((posterior.num_chains, posterior.num_draws), dtype=bool)
    diverging[0, :count] = True
    return with_stats(posterior, diverging=diverging)
