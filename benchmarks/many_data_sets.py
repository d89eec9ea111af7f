"""One model on many data sets of 30 rows: one run with `each=`, against a compiled sampler on one after the other;
and the same for fits of a mean-field normal.

Two models: a normal hierarchy of five groups, and a logistic regression of three columns. The sampler runs on some of
the data sets, and both times are given for one data set.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpyro.distributions as dist
import side_by_side

import phalanx as phx

GROUPS = np.repeat(np.arange(5), 6)
SIZES = {"num_warmup": 300, "num_samples": 300, "progress": False}


def hierarchy(group: Any, y: Any) -> None:
    mean = phx.sample("mean", dist.Normal(0.0, 5.0))
    between = phx.sample("between", dist.HalfNormal(2.0))
    within = phx.sample("within", dist.HalfNormal(2.0))
    z = phx.sample("z", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
    phx.sample("y", dist.Normal(mean + between * z[group], within), obs=y)


def regression(x: Any, y: Any) -> None:
    weights = phx.sample("weights", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
    phx.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def of_hierarchy(sets: int) -> tuple[dict[str, Any], dict[str, int]]:
    random = np.random.default_rng(0)
    y = random.normal(size=(sets, 1)) + random.normal(size=(sets, 5))[:, GROUPS] + random.normal(size=(sets, 30))
    return {"group": GROUPS, "y": y.astype(np.float32)}, {"y": 0}


def of_regression(sets: int) -> tuple[dict[str, Any], dict[str, int]]:
    random = np.random.default_rng(0)
    x = random.normal(size=(sets, 30, 3)).astype(np.float32)
    logits = (x * random.normal(size=(sets, 1, 3))).sum(-1)
    y = (random.uniform(size=(sets, 30)) < 1 / (1 + np.exp(-logits))).astype(int)
    return {"x": x, "y": y}, {"x": 0, "y": 0}


MODELS: dict[str, tuple[Any, Callable[[int], tuple[dict[str, Any], dict[str, int]]]]] = {
    "hierarchy": (hierarchy, of_hierarchy),
    "regression": (regression, of_regression),
}


def fitted(model: Any, data: Any, seed: int, **options: Any) -> Any:
    return phx.fit(model, phx.guides.mean_field(), data, seed=seed, progress=False, **options)


def main() -> None:
    parser = side_by_side.arguments(__doc__ or "", rounds=3)
    parser.add_argument("--sets", type=int, default=10_000)
    parser.add_argument("--alone", type=int, default=30, help="data sets to run one after the other")
    options = parser.parse_args()
    phx.use_cpu_devices()
    watch, times, found = side_by_side.Watch(), {}, {}
    for name, (model, made) in MODELS.items():
        data, each = made(options.sets)
        one = {key: values[0] if key in each else values for key, values in data.items()}
        sampler = phx.compile(model, one, kernel=phx.nuts(metric="diagonal", relocate=False))
        sampler.run(0, one, **SIZES)
        for turn in range(options.rounds):
            began = time.perf_counter()
            posteriors: Any = phx.mcmc(model, data, each=each, seed=turn, **SIZES)
            seconds = time.perf_counter() - began
            times.setdefault(f"{name}, at once", []).append(seconds / options.sets)
            if not turn:
                grades = posteriors.verdicts()["grade"].value_counts().to_dict()
                found[name] = {"seconds": round(seconds, 1), "with_verdicts": round(time.perf_counter() - began, 1)}
                found[name] |= {"compiling": round(posteriors.timing.compile, 1), "grades": grades}
            began = time.perf_counter()
            for number in range(options.alone):
                own = {key: values[number] if key in each else values for key, values in data.items()}
                sampler.run(number, own, **SIZES)
            times.setdefault(f"{name}, one after the other", []).append((time.perf_counter() - began) / options.alone)
            fits: Any = fitted(model, data, turn, each=each)
            times.setdefault(f"{name}, fits at once", []).append(fits.timing.total / options.sets)
            if not turn:
                found[name] |= {"fits_seconds": round(fits.timing.total, 1), "fits_unsettled": len(fits.unsettled)}
            began = time.perf_counter()
            for number in range(options.alone):
                fitted(model, {key: values[number] if key in each else values for key, values in data.items()}, number)
            times.setdefault(f"{name}, fits one by one", []).append((time.perf_counter() - began) / options.alone)
    rows = [
        side_by_side.compare(
            f"a data set of 30 rows, {name}", f"{name}, at once", f"{name}, one after the other", times, at_most=0.1
        )
        for name in MODELS
    ] + [
        side_by_side.compare(
            f"a fit to 30 rows, {name}", f"{name}, fits at once", f"{name}, fits one by one", times, at_most=0.1
        )
        for name in MODELS
    ]
    settings = {"sets": options.sets, "rounds": options.rounds, "chains": 4, **SIZES}
    side_by_side.write("many_data_sets", rows, settings, watch, options.results, times, found=found)


if __name__ == "__main__":
    main()
