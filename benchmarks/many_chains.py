"""256 chains on every core against NumPyro's vectorised NUTS: time per effective sample, compilation apart.

Effective samples are those of the worst parameter, by the same function for both. "sampling" is the time of the draws
alone, after warm-up; "whole run" includes warm-up, of the same number of iterations for both.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import side_by_side
from side_by_side import Measured, Way

MODELS = ("eight schools, non-centred", "eight schools, centred", "logistic regression, 25-d", "funnel, 10-d")
AT_MOST = {name: 1 / 3 if "non-centred" in name else 1 / 4 for name in MODELS}
WARMUP = 200


def data_of(name: str) -> dict[str, np.ndarray]:
    if "schools" in name:
        y = np.array([28, 8, -3, 7, -1, 1, 18, 12], np.float32)
        return {"y": y, "sigma": np.array([15, 10, 16, 11, 9, 11, 10, 18], np.float32)}
    if "logistic" in name:
        random = np.random.default_rng(0)
        x = random.normal(size=(1000, 25)).astype(np.float32)
        p = 1 / (1 + np.exp(-x @ random.normal(size=25) * 0.5))
        return {"x": x, "y": (random.random(1000) < p).astype(np.int32)}
    return {}


def model_of(name: str, sample: Any) -> Any:
    """Return the model in the language of this `sample`; the models are equal otherwise."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    def non_centred(y, sigma):
        mu = sample("mu", dist.Normal(0.0, 5.0))
        tau = sample("tau", dist.HalfCauchy(5.0))
        z = sample("z", dist.Normal(0.0, 1.0).expand([8]).to_event(1))
        sample("y", dist.Normal(mu + tau * z, sigma).to_event(1), obs=y)

    def centred(y, sigma):
        mu = sample("mu", dist.Normal(0.0, 5.0))
        tau = sample("tau", dist.HalfCauchy(5.0))
        theta = sample("theta", dist.Normal(mu, tau).expand([8]).to_event(1))
        sample("y", dist.Normal(theta, sigma).to_event(1), obs=y)

    def logistic(x, y):
        w = sample("w", dist.Normal(0.0, 1.0).expand([25]).to_event(1))
        sample("y", dist.Bernoulli(logits=x @ w).to_event(1), obs=y)

    def funnel():
        v = sample("v", dist.Normal(0.0, 3.0))
        sample("x", dist.Normal(0.0, jnp.exp(v / 2)).expand([9]).to_event(1))

    return dict(zip(MODELS, (non_centred, centred, logistic, funnel), strict=True))[name]


def worst_ess(draws: dict[str, np.ndarray]) -> float:
    from phalanx.diagnostics import ess

    return min(float(np.min(ess(np.asarray(values)))) for values in draws.values())


def phalanx_ways(options: argparse.Namespace) -> dict[str, Way]:
    import phalanx as phx

    ways: dict[str, Way] = {}
    for name in options.models:
        sampler = phx.compile(model_of(name, phx.sample), data_of(name), num_chains=options.chains)
        seeds, efficiencies = iter(range(10**6)), []

        def run(sampler=sampler, seeds=seeds, whole=False, name=name, efficiencies=efficiencies):
            posterior = sampler.run(next(seeds), num_warmup=WARMUP, num_samples=options.draws, progress=False)
            timing = posterior.timing
            efficiencies.append(timing.lane_efficiency)
            notes = options.results / "many_chains_lanes"
            notes.mkdir(parents=True, exist_ok=True)
            (notes / f"{MODELS.index(name)}.json").write_text(json.dumps(efficiencies))
            return Measured(timing.sampling + whole * timing.warmup, worst_ess(posterior.draws))

        ways[f"Phalanx, {name}, sampling"] = Way(run)
        ways[f"Phalanx, {name}, whole run"] = Way(lambda run=run: run(whole=True))
    return ways


def numpyro_ways(options: argparse.Namespace) -> dict[str, Way]:
    import jax
    import numpyro
    from numpyro.infer import MCMC, NUTS

    ways: dict[str, Way] = {}
    for name in options.models:
        kernel = NUTS(model_of(name, numpyro.sample))
        mcmc = MCMC(
            kernel, num_warmup=WARMUP, num_samples=options.draws, num_chains=options.chains,
            chain_method="vectorized", progress_bar=False,
        )  # fmt: skip
        keys, data = iter(range(10**6)), data_of(name)

        def run(mcmc=mcmc, keys=keys, data=data, whole=False):
            key = jax.random.key(next(keys))
            began = time.perf_counter()
            mcmc.warmup(key, **data)
            warm = time.perf_counter()
            mcmc.run(mcmc.post_warmup_state.rng_key, **data)
            draws = jax.block_until_ready(mcmc.get_samples(group_by_chain=True))
            done = time.perf_counter()
            mcmc.post_warmup_state = None
            return Measured(done - (began if whole else warm), worst_ess(draws))

        ways[f"NumPyro, {name}, sampling"] = Way(run)
        ways[f"NumPyro, {name}, whole run"] = Way(lambda run=run: run(whole=True))
    return ways


def ways(options: argparse.Namespace) -> dict[str, Way]:
    # NumPyro's vectorised chains are one program on one device, whose threads use every core
    return numpyro_ways(options) if options.serve_on == 1 else phalanx_ways(options)


def main() -> None:
    parser = side_by_side.arguments(__doc__ or "", rounds=5)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--chains", type=int, default=256)
    parser.add_argument("--draws", type=int, default=200)
    options = parser.parse_args()
    devices = [1, max(2, side_by_side.machine()["cores"])]

    def rows(times: side_by_side.Times) -> list[dict[str, Any]]:
        found = []
        for name in options.models:
            for phase in ("sampling", "whole run"):
                row = side_by_side.compare(
                    f"an effective sample, {name}, {phase}", f"Phalanx, {name}, {phase}", f"NumPyro, {name}, {phase}",
                    times, at_most=round(AT_MOST[name], 3),
                )  # fmt: skip
                lanes = options.results / "many_chains_lanes" / f"{MODELS.index(name)}.json"
                found.append(row | {"lane_efficiency": round(float(np.median(json.loads(lanes.read_text()))), 3)})
        shutil.rmtree(options.results / "many_chains_lanes")
        return found

    def settings(options: argparse.Namespace) -> dict[str, Any]:
        return {"chains": options.chains, "draws": options.draws, "warmup": WARMUP, "rounds": options.rounds}

    side_by_side.run(str(Path(__file__)), parser, devices, ways, rows, settings)


if __name__ == "__main__":
    main()
