"""Rates at which the verdict on a run errs: clean runs called "not good", spoiled runs called "good".

Clean runs sample posteriors that NUTS handles well, with 4 to 8 chains of 300 to 1,000 draws, and new data for each
seed. Spoiled runs have a known defect: too short a warm-up from far away, a chain that cannot move, modes between which
chains do not cross, a funnel, steps much too small, an improper posterior, Cauchy tails. Each model is compiled once.
Eight schools, the first model that most people try, is counted apart, non-centred and centred.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import side_by_side

import phalanx as phx

ALLOWED = 0.02
"""Largest share of clean runs that are "not good", and of spoiled runs that are "good"."""

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], np.float32)
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], np.float32)


def normals(scale):
    phx.sample("x", dist.Normal(0.0, scale).to_event(1))


def correlated(root):
    phx.sample("x", dist.MultivariateNormal(jnp.zeros(len(root)), scale_tril=root))


def regression(x, y):
    b = phx.sample("b", dist.Normal(jnp.zeros(x.shape[1]), 10.0))
    s = phx.sample("s", dist.HalfNormal(5.0))
    phx.sample("y", dist.Normal(x @ b, s), obs=y)


def logistic(x, y):
    b = phx.sample("b", dist.Normal(jnp.zeros(x.shape[1]), 2.0))
    phx.sample("y", dist.Bernoulli(logits=x @ b), obs=y)


def hierarchy(group, y):
    mean = phx.sample("mean", dist.Normal(0.0, 5.0))
    spread = phx.sample("spread", dist.HalfNormal(2.0))
    z = phx.sample("z", dist.Normal(jnp.zeros(10), 1.0))
    phx.sample("y", dist.Normal(mean + spread * z[group], 1.0), obs=y)


def responses(item, person, y):
    ability = phx.sample("ability", dist.Normal(jnp.zeros(60), 1.0))
    difficulty = phx.sample("difficulty", dist.Normal(jnp.zeros(15), 2.0))
    phx.sample("y", dist.Bernoulli(logits=ability[person] - difficulty[item]), obs=y)


def mixture(y):
    mean = phx.sample("mean", dist.TransformedDistribution(
        dist.Normal(jnp.zeros(2), 5.0).to_event(1), dist.transforms.OrderedTransform()
    ))  # fmt: skip
    share = phx.sample("share", dist.Beta(2.0, 2.0))
    both = dist.Categorical(jnp.stack([share, 1.0 - share]))
    phx.sample("y", dist.MixtureSameFamily(both, dist.Normal(mean, 1.0)), obs=y)


def modes():
    x = phx.sample("x", dist.Normal(0.0, 20.0))
    phx.factor("modes", jnp.logaddexp(-0.5 * (x - 10.0) ** 2, -0.5 * (x + 10.0) ** 2))


def quartic():
    x = phx.sample("x", dist.Normal(jnp.zeros(3), 2.0))
    phx.factor("quartic", -0.1 * jnp.sum(x**4))


def funnel():
    y = phx.sample("y", dist.Normal(0.0, 3.0))
    phx.sample("x", dist.Normal(jnp.zeros(9), jnp.exp(y / 2.0)))


def unidentified(y):
    a = phx.sample("a", dist.ImproperUniform(dist.constraints.real, (), ()))
    b = phx.sample("b", dist.ImproperUniform(dist.constraints.real, (), ()))
    phx.sample("y", dist.Normal(a + b, 1.0), obs=y)


def tails():
    phx.sample("x", dist.Cauchy(jnp.zeros(3), 1.0))


def schools():
    mean = phx.sample("mean", dist.Normal(0.0, 5.0))
    spread = phx.sample("spread", dist.HalfCauchy(5.0))
    z = phx.sample("z", dist.Normal(jnp.zeros(8), 1.0))
    phx.sample("effects", dist.Normal(mean + spread * z, ERRORS), obs=EFFECTS)


def centred_schools():
    mean = phx.sample("mean", dist.Normal(0.0, 5.0))
    spread = phx.sample("spread", dist.HalfCauchy(5.0))
    theta = phx.sample("theta", dist.Normal(jnp.full(8, mean), spread))
    phx.sample("effects", dist.Normal(theta, ERRORS), obs=EFFECTS)


def of_scales(random):
    return {"scale": np.exp(random.normal(size=10)).astype(np.float32)}


def of_units(random):
    return {"scale": np.ones(100, np.float32)}


def of_root(random):
    root = np.tril(random.normal(size=(8, 8))) * 0.5 + np.eye(8) * 2
    return {"root": root.astype(np.float32)}


def of_regression(random):
    x = random.normal(size=(100, 5))
    return {"x": x.astype(np.float32), "y": (x @ random.normal(size=5) + random.normal(size=100)).astype(np.float32)}


def of_logistic(random):
    x = random.normal(size=(200, 6))
    y = random.random(200) < 1 / (1 + np.exp(-x @ random.normal(size=6)))
    return {"x": x.astype(np.float32), "y": y.astype(np.float32)}


def of_hierarchy(random):
    group = np.repeat(np.arange(10), 3)
    y = 1.0 + random.normal(size=10)[group] + random.normal(size=30)
    return {"group": group, "y": y.astype(np.float32)}


def of_responses(random):
    item, person = (part.ravel() for part in np.meshgrid(np.arange(15), np.arange(60)))
    logits = random.normal(size=60)[person] - random.normal(size=15)[item]
    return {"item": item, "person": person, "y": (random.random(900) < 1 / (1 + np.exp(-logits))).astype(np.float32)}


def of_mixture(random):
    return {"y": (np.where(random.random(200) < 0.4, -2.0, 2.0) + random.normal(size=200)).astype(np.float32)}


def of_nothing(random):
    return {}


@dataclass(frozen=True)
class Case:
    """A kind of run: model, data by seed, and options."""

    name: str
    model: Callable[..., Any]
    data: Callable[[np.random.Generator], dict[str, Any]] = of_nothing
    options: Mapping[str, Any] = field(default_factory=dict)


def chains(*places: float, size: int | None = None) -> np.ndarray:
    """Return initial values of one variable for all chains."""
    starts = np.array(places, np.float32)
    return starts if size is None else np.repeat(starts[:, None], size, axis=1)


CLEAN = (
    Case("normals of ten scales", normals, of_scales, {"num_samples": 500}),
    Case("100 normals", normals, of_units, {"num_samples": 300}),
    Case("correlated normals, 8 chains", correlated, of_root, {"num_chains": 8, "num_samples": 400}),
    Case("linear regression", regression, of_regression, {"num_samples": 300}),
    Case("logistic regression", logistic, of_logistic, {"num_samples": 500}),
    Case("hierarchy, non-centred", hierarchy, of_hierarchy, {"num_samples": 1000}),
    Case("responses to items", responses, of_responses, {"num_samples": 300}),
    Case("ordered mixture", mixture, of_mixture, {"num_samples": 500}),
)

SPOILED = (
    Case("far starts, no time to arrive", regression, of_regression,
         {"num_warmup": 4, "num_samples": 300, "init": {"b": np.full(5, 300.0, np.float32)}}),
    Case("a chain that cannot move", quartic, of_nothing,
         {"kernel": phx.nuts(step_size=0.5), "num_warmup": 0, "num_samples": 500,
          "init": {"x": chains(0.0, 0.5, -0.5, 200.0, size=3)}}),
    Case("two modes, kept apart", modes, of_nothing, {"num_samples": 500, "init": {"x": chains(-10, -10, -10, 10)}}),
    Case("funnel", funnel, of_nothing, {"num_samples": 1000}),
    Case("random walk of tiny steps", normals, of_scales, {"kernel": phx.rwmh(step_size=0.02), "num_samples": 1000}),
    Case("HMC of tiny steps", normals, of_scales,
         {"kernel": phx.hmc(num_steps=3, step_size=0.02), "num_samples": 1000}),
    Case("improper posterior", unidentified, lambda random: {"y": random.normal(size=10).astype(np.float32)},
         {"num_samples": 500}),
    Case("Cauchy tails", tails, of_nothing, {"num_samples": 1000}),
)  # fmt: skip

SCHOOLS = (Case("eight schools, non-centred", schools), Case("eight schools, centred", centred_schools))


def grades(case: Case, seeds: int) -> tuple[Counter[str], Counter[str]]:
    """Count the grades of runs, and the topics of their findings, one run per seed."""
    grades, topics = Counter(), Counter()
    compiled_in = {name: case.options[name] for name in {"kernel", "num_chains"} & set(case.options)}
    of_a_run = {name: value for name, value in case.options.items() if name not in compiled_in}
    sampler = phx.compile(case.model, case.data(np.random.default_rng(0)), **compiled_in)
    for seed in range(seeds):
        data = case.data(np.random.default_rng(seed))
        verdict = sampler.run(seed, data, progress=False, **of_a_run).verdict()
        grades[verdict.grade] += 1
        topics.update({finding.topic for finding in verdict.findings})
    return grades, topics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=25, help="runs of each kind")
    parser.add_argument("--results", type=Path, default=side_by_side.RESULTS, help="folder for the JSON file")
    options = parser.parse_args()
    watch, rows, rates = side_by_side.Watch(), [], {}
    for group, cases, wrong in (("clean", CLEAN, "not good"), ("spoiled", SPOILED, "good"), ("schools", SCHOOLS, "")):
        total: Counter[str] = Counter()
        for case in cases:
            found, topics = grades(case, options.seeds)
            total.update(found)
            rows.append({"group": group, "what": case.name, "grades": dict(found), "topics": dict(topics)})
            print(json.dumps(rows[-1]), flush=True)
        if wrong:
            rate = total[wrong] / total.total()
            rates[group] = {"runs": total.total(), "wrong": total[wrong], "rate": rate, "met": rate <= ALLOWED}
        settings = {"seeds": options.seeds, "allowed": ALLOWED, "rates": rates}
        side_by_side.save("verdicts", [], settings, watch, options.results, runs=rows, table=table(rows))
    print(json.dumps(rates))


def table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the rows for `README.md`."""
    levels = ["good", "usable", "not good"]
    lines = [
        [row["group"], row["what"], *(str(row["grades"].get(level, 0)) for level in levels),
         ", ".join(f"{topic} {count}" for topic, count in row["topics"].items())]
        for row in rows
    ]  # fmt: skip
    return {"columns": ["group", "run", *levels, "runs with a finding"], "lines": lines}


if __name__ == "__main__":
    main()
