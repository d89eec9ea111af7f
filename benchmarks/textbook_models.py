"""Eight textbook models in NumPyro's language, each in a process with an empty cache, by Phalanx and by NumPyro.

A turn is a whole process, import included: 4 chains of 500 + 500 draws. NumPyro runs with chains vectorised, and with
one device per chain; the better way counts.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import side_by_side

SIZES: dict[str, Any] = {"num_chains": 4, "num_warmup": 500, "num_samples": 500}
WAYS = ("Phalanx", "NumPyro, vectorized", "NumPyro, parallel")
Model = tuple[Callable[..., None], dict[str, Any]]


def radon(random: np.random.Generator, sample: Any) -> Model:
    """Return varying slopes of 85 counties, correlated with their intercepts."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    def model(county: Any, floor: Any, y: Any) -> None:
        mean = sample("mean", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
        spread = sample("spread", dist.HalfNormal(1.0).expand([2]).to_event(1))
        corr = sample("corr", dist.LKJCholesky(2, 2.0))
        z = sample("z", dist.Normal(0.0, 1.0).expand([85, 2]).to_event(2))
        effects = mean + z @ (spread[:, None] * corr).T
        noise = sample("noise", dist.HalfNormal(1.0))
        sample("y", dist.Normal(effects[county, 0] + effects[county, 1] * floor, noise), obs=y)

    county, floor = random.integers(0, 85, 919), (random.random(919) < 0.2).astype(np.float32)
    y = 1.4 + 0.3 * random.normal(size=85)[county] - 0.7 * floor + 0.7 * random.normal(size=919)
    return model, {"county": jnp.asarray(county), "floor": jnp.asarray(floor), "y": jnp.asarray(y, jnp.float32)}


def item_response(random: np.random.Generator, sample: Any) -> Model:
    """Return answers of 300 persons to 20 items with two parameters each."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    def model(correct: Any) -> None:
        ability = sample("ability", dist.Normal(0.0, 1.0).expand([300]).to_event(1))
        difficulty = sample("difficulty", dist.Normal(0.0, 2.0).expand([20]).to_event(1))
        discrimination = sample("discrimination", dist.LogNormal(0.0, 0.5).expand([20]).to_event(1))
        logits = discrimination * (ability[:, None] - difficulty)
        sample("correct", dist.Bernoulli(logits=logits).to_event(2), obs=correct)

    logits = random.normal(size=(300, 1)) - random.normal(size=20)
    return model, {"correct": jnp.asarray(random.random((300, 20)) < 1 / (1 + np.exp(-logits)), jnp.int32)}


def volatility(random: np.random.Generator, sample: Any) -> Model:
    """Return 500 returns whose log volatility is a random walk."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    def model(y: Any) -> None:
        step = sample("step", dist.Exponential(50.0))
        level = sample("level", dist.GaussianRandomWalk(step, 500))
        df = sample("df", dist.Exponential(0.1))
        sample("y", dist.StudentT(df, 0.0, jnp.exp(level)).to_event(1), obs=y)

    return model, {"y": jnp.asarray(np.exp(np.cumsum(0.05 * random.normal(size=500))) * random.normal(size=500))}


def hidden_markov(random: np.random.Generator, sample: Any) -> Model:
    """Return 300 steps of a hidden chain of three states, summed out by the forward algorithm."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    def model(y: Any) -> None:
        move = sample("move", dist.Dirichlet(jnp.ones((3, 3)) + 4 * jnp.eye(3)).to_event(1))
        mean = sample("mean", dist.Normal(jnp.array([-3.0, 0.0, 3.0]), 1.0).to_event(1))
        emitted = dist.Normal(mean, 1.0).log_prob(y[:, None])

        def step(forward: Any, here: Any) -> tuple[Any, None]:
            return jax.nn.logsumexp(forward[:, None] + jnp.log(move), 0) + here, None

        forward, _ = jax.lax.scan(step, emitted[0] - jnp.log(3.0), emitted[1:])
        numpyro.factor("y", jax.nn.logsumexp(forward))

    state = np.cumsum(random.random(300) < 0.1) % 3
    return model, {"y": jnp.asarray(3.0 * (state - 1) + random.normal(size=300), jnp.float32)}


def process(random: np.random.Generator, sample: Any) -> Model:
    """Return a Gaussian process at 100 points."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    def model(x: Any, y: Any) -> None:
        height = sample("height", dist.LogNormal(0.0, 1.0))
        length = sample("length", dist.InverseGamma(5.0, 5.0))
        noise = sample("noise", dist.HalfNormal(1.0))
        covariance = height**2 * jnp.exp(-0.5 * ((x[:, None] - x) / length) ** 2)
        covariance = covariance + (noise**2 + 1e-5) * jnp.eye(100)
        sample("y", dist.MultivariateNormal(jnp.zeros(100), covariance), obs=y)

    x = np.sort(random.uniform(0, 10, 100))
    y = np.sin(x) + 0.3 * random.normal(size=100)
    return model, {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32)}


def horseshoe(random: np.random.Generator, sample: Any) -> Model:
    """Return a regression on 100 columns, of which few count."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    def model(x: Any, y: Any) -> None:
        overall = sample("overall", dist.HalfCauchy(0.1))
        local = sample("local", dist.HalfCauchy(1.0).expand([100]).to_event(1))
        z = sample("z", dist.Normal(0.0, 1.0).expand([100]).to_event(1))
        noise = sample("noise", dist.HalfNormal(1.0))
        sample("y", dist.Normal(x @ (z * local * overall), noise), obs=y)

    x = random.normal(size=(200, 100))
    y = x[:, :5] @ np.array([2.0, -2.0, 1.5, 1.0, -1.0]) + random.normal(size=200)
    return model, {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32)}


def lotka_volterra(random: np.random.Generator, sample: Any) -> Model:
    """Return predators and prey of 21 years, which follow a differential equation."""
    import jax.numpy as jnp
    import numpyro.distributions as dist
    from jax.experimental.ode import odeint

    def change(z: Any, _: Any, rate: Any) -> Any:
        return jnp.stack([(rate[0] - rate[1] * z[1]) * z[0], (rate[3] * z[0] - rate[2]) * z[1]])

    def solved(start: Any, rate: Any) -> Any:
        return odeint(change, start, jnp.arange(21.0), rate, rtol=1e-6, atol=1e-5, mxstep=1000)

    def model(y: Any) -> None:
        middle, width = jnp.array([1.0, 0.05, 1.0, 0.05]), jnp.array([0.5, 0.05, 0.5, 0.05])
        rate = sample("rate", dist.TruncatedNormal(middle, width, low=0.0).to_event(1))
        start = sample("start", dist.LogNormal(jnp.log(10.0), 1.0).expand([2]).to_event(1))
        noise = sample("noise", dist.LogNormal(-1.0, 1.0).expand([2]).to_event(1))
        level = jnp.log(jnp.maximum(solved(start, rate), 1e-6))
        sample("y", dist.LogNormal(level, noise).to_event(2), obs=y)

    truth = np.asarray(solved(jnp.array([30.0, 6.0]), jnp.array([0.55, 0.028, 0.84, 0.026])))
    return model, {"y": jnp.asarray(truth * np.exp(0.25 * random.normal(size=(21, 2))), jnp.float32)}


def inflated_counts(random: np.random.Generator, sample: Any) -> Model:
    """Return 250 counts with too many zeros."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    def model(x: Any, y: Any) -> None:
        weight = sample("weight", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        gate = sample("gate", dist.Beta(1.0, 1.0))
        sample("y", dist.ZeroInflatedPoisson(gate, jnp.exp(x @ weight)), obs=y)

    x = np.column_stack([np.ones(250), random.normal(size=(250, 2))])
    y = random.poisson(np.exp(x @ [0.8, 0.5, -0.3])) * (random.random(250) < 0.7)
    return model, {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.int32)}


MODELS: dict[str, Callable[[np.random.Generator, Any], Model]] = {
    "radon with varying slopes": radon,
    "item response, 300 x 20": item_response,
    "stochastic volatility, 500 steps": volatility,
    "hidden Markov, 300 steps": hidden_markov,
    "Gaussian process, 100 points": process,
    "horseshoe, 100 columns": horseshoe,
    "Lotka-Volterra": lotka_volterra,
    "zero-inflated counts": inflated_counts,
}


def run_alone(name: str, way: str) -> None:
    """Run one model by one way in this process, and print the seconds of compiling that it reports."""
    import numpyro

    if way == "Phalanx":
        import phalanx as phx

        phx.use_cpu_devices()
        model, data = MODELS[name](np.random.default_rng(0), numpyro.sample)
        print(phx.mcmc(model, data, **SIZES, progress=False).timing.compile)
        return
    if way.endswith("parallel"):
        numpyro.set_host_device_count(4)
    import jax
    from numpyro.infer import MCMC, NUTS

    model, data = MODELS[name](np.random.default_rng(0), numpyro.sample)
    mcmc = MCMC(NUTS(model), chain_method=way.split()[-1], **SIZES, progress_bar=False)
    mcmc.run(jax.random.key(0), **data)
    jax.block_until_ready(mcmc.get_samples())
    print(0.0)


def timed(name: str, way: str) -> tuple[float, float]:
    """Return the seconds of a process, and those of compiling that it reports."""
    command = [sys.executable, __file__, "--alone", name, way]
    began = time.perf_counter()
    done = subprocess.run(
        command, env=os.environ | {"PHALANX_CACHE": "off"}, stdout=subprocess.PIPE, text=True, check=True
    )
    return time.perf_counter() - began, float(done.stdout.split()[-1])


def main() -> None:
    parser = side_by_side.arguments(__doc__ or "", rounds=3)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    options = parser.parse_args()
    watch, rows, taken, lines = side_by_side.Watch(), [], {}, []
    settings = {"rounds": options.rounds, **SIZES}
    for name in options.models:
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        compiling: list[float] = []
        for number in range(options.rounds):
            for way in WAYS if number % 2 else WAYS[::-1]:
                seconds, spent = timed(name, way)
                times[way].append(seconds)
                compiling += [spent] * (way == "Phalanx")
        best = side_by_side.fastest(times, "NumPyro")
        rows.append(side_by_side.compare(f"{name}, empty cache", "Phalanx", best, times, at_most=1.0))
        taken |= {f"{name}, {way}": seconds for way, seconds in times.items()}
        medians = [statistics.median(found) for found in (*times.values(), compiling)]
        lines.append([name, *(f"{median:.1f}" for median in medians)])
        table = {"columns": ["seconds of a process", *WAYS, "Phalanx, of it compiling"], "lines": lines}
        print(lines[-1], flush=True)
        side_by_side.save(Path(__file__).stem, rows, settings, watch, options.results, taken, table=table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--alone"]:
        run_alone(*sys.argv[2:])
    else:
        main()
