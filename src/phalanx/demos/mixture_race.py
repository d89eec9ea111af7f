"""Time and memory of the same sampling by a loop in NumPy, by a plain loop in JAX and by Phalanx."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from phalanx.demos.models.mixture_density import log_density, log_density_in_numpy
from phalanx.run.device.executables import WIDE

BUDGET = 20.0
"""Maximal seconds of a run, estimated as ten times those of the smaller run before; slower runs are skipped."""

Points = dict[str, list[tuple[int, float, float]]]
"""Runs by name of the sampler: size, seconds of compiling, seconds of sampling."""

PhalanxWays = Mapping[str, Callable[[int, int], tuple[float, float]]]
"""Functions, by name, that run a number of chains and draws and return seconds of compiling and of sampling."""


class Race:
    """Race of several ways to run random-walk Metropolis on the mixture.

    Args:
        step_size: standard deviation of proposals.
        seed: seed of all runs.
        phalanx_ways: runs of Phalanx, by name.
    """

    def __init__(self, step_size: float, seed: int, phalanx_ways: PhalanxWays):
        self._step_size, self._seed = step_size, seed
        self._ways = {"NumPy": self._numpy, "JAX, one loop": self._jax, **phalanx_ways}

    def by_samples(self, most: int) -> Points:
        """Time 1,000 chains with increasing numbers of draws, up to `most` draws over all chains."""
        return self._points([(10**k, 1000, 10**k) for k in range(3, 7) if 10 ** (k + 3) <= most])

    def by_chains(self, most: int) -> Points:
        """Time 1,000 draws of increasing numbers of chains, up to `most` draws over all chains."""
        return self._points([(10**k, 10**k, 1000) for k in range(1, 7) if 10 ** (k + 3) <= most])

    def memory(self, most: int) -> list[tuple[int, float]]:
        """Return draws and resident MB after runs of 10,000 chains; empty if the system does not report memory."""
        found = []
        for samples in (10**k for k in range(6, 10) if 10**k <= most):
            self._ways["Phalanx"](10_000, samples // 10_000)
            if (resident := resident_bytes()) is not None:
                found.append((samples, resident / 1e6))
        return found

    def _points(self, sizes: list[tuple[int, int, int]]) -> Points:
        found: Points = {}
        for name, way in self._ways.items():
            found[name], expected = [], 0.0
            for size, chains, draws in sizes:
                if expected > BUDGET:
                    break
                compiling, sampling = way(chains, draws)
                found[name].append((size, compiling, sampling))
                expected = 10 * sampling
        return found

    def _numpy(self, chains: int, draws: int) -> tuple[float, float]:
        """Run a loop over draws of all chains at once, with running sums for the moments."""
        generator, x = np.random.default_rng(self._seed), np.zeros(chains, np.float32)
        height = log_density_in_numpy(x)
        total, squares = np.zeros(chains), np.zeros(chains)
        began = time.perf_counter()
        for _ in range(draws):
            proposal = x + self._step_size * generator.standard_normal(chains, np.float32)
            proposed = log_density_in_numpy(proposal)
            accept = np.log1p(-generator.random(chains, np.float32)) < proposed - height
            x, height = np.where(accept, proposal, x), np.where(accept, proposed, height)
            total, squares = total + x, squares + x**2
        return 0.0, time.perf_counter() - began

    def _jax(self, chains: int, draws: int) -> tuple[float, float]:
        """Run one jitted `fori_loop` over draws, compiled with the flags of Phalanx, with sums for the moments."""

        def step(number: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
            key, x, height, total, squares = carry
            key, propose, decide = random.split(key, 3)
            proposal = x + self._step_size * random.normal(propose, x.shape)
            proposed = log_density(proposal)
            accept = jnp.log(random.uniform(decide, x.shape)) < proposed - height
            x, height = jnp.where(accept, proposal, x), jnp.where(accept, proposed, height)
            return key, x, height, total + x, squares + x**2

        x = jnp.zeros(chains)
        begin = random.key(self._seed), x, log_density(x), x, x
        began = time.perf_counter()
        loop = jax.jit(lambda begin: lax.fori_loop(0, draws, step, begin)).lower(begin).compile(WIDE)
        compiled = time.perf_counter()
        jax.block_until_ready(loop(begin))
        return compiled - began, time.perf_counter() - compiled


def resident_bytes() -> int | None:
    """Return the resident memory of this process, or None if the system does not report it."""
    status = Path("/proc/self/statm")
    if not status.exists():
        return None
    return int(status.read_text().split()[1]) * 4096
