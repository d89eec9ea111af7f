"""Eight schools from a fresh process, import included: how long until 4 chains of 1,000 + 1,000 draws are in hand.

Three cases: no compilation cache, a warm one, and another seed in the same process. NumPyro has no cache of its own; it
is timed without one, as it comes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import side_by_side

OURS = """
import time
import numpy as np, numpyro.distributions as dist, phalanx as phx
y = np.array([28, 8, -3, 7, -1, 1, 18, 12], np.float32)
sigma = np.array([15, 10, 16, 11, 9, 11, 10, 18], np.float32)
def model(y, sigma):
    mu = phx.sample("mu", dist.Normal(0.0, 5.0))
    tau = phx.sample("tau", dist.HalfCauchy(5.0))
    z = phx.sample("z", dist.Normal(0.0, 1.0).expand([8]).to_event(1))
    phx.sample("y", dist.Normal(mu + tau * z, sigma).to_event(1), obs=y)
run = lambda seed: phx.mcmc(model, {"y": y, "sigma": sigma}, num_chains=4, seed=seed, progress=False)
run(0)
began = time.perf_counter()
run(1)
print(time.perf_counter() - began)
"""

THEIRS = """
import time
import jax, numpy as np, numpyro, numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
y = np.array([28, 8, -3, 7, -1, 1, 18, 12], np.float32)
sigma = np.array([15, 10, 16, 11, 9, 11, 10, 18], np.float32)
def model(y, sigma):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([8]).to_event(1))
    numpyro.sample("y", dist.Normal(mu + tau * z, sigma).to_event(1), obs=y)
mcmc = MCMC(NUTS(model), num_warmup=1000, num_samples=1000, num_chains=4, chain_method="vectorized", progress_bar=False)
mcmc.run(jax.random.key(0), y=y, sigma=sigma)
jax.block_until_ready(mcmc.get_samples())
began = time.perf_counter()
mcmc.run(jax.random.key(1), y=y, sigma=sigma)
jax.block_until_ready(mcmc.get_samples())
print(time.perf_counter() - began)
"""


def timed(script: str, cache: str) -> tuple[float, float]:
    """Seconds of the process up to its first draws, and of the second run in it."""
    began = time.perf_counter()
    environment = os.environ | {"PHALANX_CACHE": cache}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    again = float(done.stdout)
    return time.perf_counter() - began - again, again


def main() -> None:
    options = side_by_side.arguments(__doc__ or "", rounds=5).parse_args()
    watch = side_by_side.Watch()
    times: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        times.setdefault(name, []).append(seconds)

    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as cache:
            for name in ("Phalanx, empty cache", "Phalanx, warm cache"):
                first, again = timed(OURS, cache)
                note(name, first)
                note("Phalanx, another seed", again)
        first, again = timed(THEIRS, "off")
        note("NumPyro", first)
        note("NumPyro, another seed", again)
    times["Phalanx, another seed"] = times["Phalanx, another seed"][::2]
    rows = [
        side_by_side.compare("a fresh process", "Phalanx, empty cache", "NumPyro", times, at_most=0.5),
        side_by_side.compare("a fresh process, warm cache", "Phalanx, warm cache", "NumPyro", times, at_most=0.5),
        side_by_side.compare(
            "another seed", "Phalanx, another seed", "NumPyro, another seed", times, at_most=float("inf")
        )
        | {"at_most": "any"},
    ]
    settings = {
        "rounds": options.rounds,
        "chains": 4,
        "warmup": 1000,
        "draws": 1000,
        "model": "eight schools, non-centred",
    }
    side_by_side.write(Path(__file__).stem, rows, settings, watch, options.results, times)


if __name__ == "__main__":
    main()
