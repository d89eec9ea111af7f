"""Eight schools from a fresh process, import included: time until 4 chains have made 1,000 + 1,000 draws.

Four rows: without a compilation cache, with a warm one, another seed in the same process, and compilation alone (for
NumPyro the time of its first run less that of its second). NumPyro's warm cache is JAX's, which environment variables
switch on. NumPyro runs with chains vectorised, and with one device per chain. nutpie, with PyMC, and stanli take part
where they are installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
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
compiling = run(0).timing.compile
began = time.perf_counter()
run(1)
print(time.perf_counter() - began, compiling)
"""

THEIRS = """
import sys, time
import numpyro
if sys.argv[1] == "parallel":
    numpyro.set_host_device_count(4)
import jax, numpy as np, numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
y = np.array([28, 8, -3, 7, -1, 1, 18, 12], np.float32)
sigma = np.array([15, 10, 16, 11, 9, 11, 10, 18], np.float32)
def model(y, sigma):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([8]).to_event(1))
    numpyro.sample("y", dist.Normal(mu + tau * z, sigma).to_event(1), obs=y)
mcmc = MCMC(NUTS(model), num_warmup=1000, num_samples=1000, num_chains=4, chain_method=sys.argv[1], progress_bar=False)
def run(seed):
    began = time.perf_counter()
    mcmc.run(jax.random.key(seed), y=y, sigma=sigma)
    jax.block_until_ready(mcmc.get_samples())
    return time.perf_counter() - began
first = run(0)
second = run(1)
print(second, first - second)
"""

NUTPIE = """
import time
import nutpie, pymc as pm
with pm.Model() as model:
    mu, tau, z = pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0), pm.Normal("z", shape=8)
    pm.Normal("y", mu + tau * z, [15, 10, 16, 11, 9, 11, 10, 18], observed=[28, 8, -3, 7, -1, 1, 18, 12])
began = time.perf_counter()
compiled = nutpie.compile_pymc_model(model)
compiling = time.perf_counter() - began
def run(seed):
    began = time.perf_counter()
    nutpie.sample(compiled, chains=4, tune=1000, draws=1000, seed=seed, progress_bar=False)
    return time.perf_counter() - began
run(0)
print(run(1), compiling)
"""

STANLI = """
import time
import stanli
code = '''
data { vector[8] y; vector[8] sigma; }
parameters { real mu; real<lower=0> tau; vector[8] z; }
model { mu ~ normal(0, 5); tau ~ cauchy(0, 5); z ~ std_normal(); y ~ normal(mu + tau * z, sigma); }
'''
data = {"y": [28, 8, -3, 7, -1, 1, 18, 12], "sigma": [15, 10, 16, 11, 9, 11, 10, 18]}
began = time.perf_counter()
model = stanli.Model(stan_code=code, data=data, seed=0)
compiling = time.perf_counter() - began
def run(seed):
    began = time.perf_counter()
    model.sample(chains=4, warmup=1000, samples=1000, seed=seed, refresh=0)
    return time.perf_counter() - began
run(0)
print(run(1), compiling)
"""

PEERS = {"nutpie": (NUTPIE, ("nutpie", "pymc")), "stanli": (STANLI, ("stanli",))}
"""Scripts of other systems, and the packages they need."""

METHODS = "vectorized", "parallel"
"""How NumPyro runs chains."""


def timed(script: str, cache: str, *arguments: str) -> tuple[float, float, float]:
    """Return the seconds of a process up to its first draws, of its second run, and of compilation."""
    began = time.perf_counter()
    environment = os.environ | {"PHALANX_CACHE": cache}
    if script is THEIRS and cache != "off":
        environment |= {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    again, compiling = map(float, done.stdout.split())
    return time.perf_counter() - began - again, again, compiling


def installed_peers() -> dict[str, str]:
    """Return the scripts of those of `PEERS` whose packages are installed, by name."""
    return {name: script for name, (script, needs) in PEERS.items() if all(find_spec(package) for package in needs)}


def rows(times: side_by_side.Times) -> list[dict]:
    """Return a row for each way of NumPyro's and each peer; for compilation, of the way that compiles once."""
    compared = [
        (what, f"NumPyro, {way}, {method}", f"Phalanx, {way}", at_most)
        for method in METHODS
        for what, way, at_most in (
            ("a fresh process", "empty cache", 0.5),
            ("a fresh process, warm cache", "warm cache", 1.0),
            ("another seed", "another seed", 1.0),
        )
    ]
    compared += [
        (what, f"{peer}, {theirs}", f"Phalanx, {ours}", 1.0)
        for peer in PEERS
        if f"{peer}, a fresh process" in times
        for what, theirs, ours in (
            ("a fresh process, warm cache", "a fresh process", "warm cache"),
            ("another seed", "another seed", "another seed"),
        )
    ]
    compared.append(("compiling, 10 parameters", "NumPyro, compiling, vectorized", "Phalanx, compiling", 0.5))
    return [
        side_by_side.compare(what, ours, theirs, times, at_most=at_most) for what, theirs, ours, at_most in compared
    ]


def main() -> None:
    options = side_by_side.arguments(__doc__ or "", rounds=5).parse_args()
    watch = side_by_side.Watch()
    times: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        times.setdefault(name, []).append(seconds)

    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as cache:
            first, _, compiling = timed(OURS, cache)
            note("Phalanx, empty cache", first)
            note("Phalanx, compiling", compiling)
            first, again, _ = timed(OURS, cache)
            note("Phalanx, warm cache", first)
            note("Phalanx, another seed", again)
        for method in METHODS:
            first, again, compiling = timed(THEIRS, "off", method)
            note(f"NumPyro, empty cache, {method}", first)
            note(f"NumPyro, another seed, {method}", again)
            if method == "vectorized":  # with a device for each chain every run compiles
                note("NumPyro, compiling, vectorized", compiling)
            with tempfile.TemporaryDirectory() as cache:
                timed(THEIRS, cache, method)
                note(f"NumPyro, warm cache, {method}", timed(THEIRS, cache, method)[0])
        for name, script in installed_peers().items():
            first, again, _ = timed(script, "off")
            note(f"{name}, a fresh process", first)
            note(f"{name}, another seed", again)
    settings = {
        "rounds": options.rounds,
        "chains": 4,
        "warmup": 1000,
        "draws": 1000,
        "model": "eight schools, non-centred",
    }
    side_by_side.write(Path(__file__).stem, rows(times), settings, watch, options.results, times)


if __name__ == "__main__":
    main()
