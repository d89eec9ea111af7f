"""Effective samples per gradient of hierarchies: written centred, non-centred, and centred with `centring="auto"`.

Each entry has medians over seeds: effective samples of the worst quantity per gradient, and the time of a call that
compiles nothing, relative to the model written centred; and the verdicts. The ways take turns. The last model has no
hierarchy, so that `centring="auto"` has nothing to choose.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import side_by_side

SCHOOLS = {
    "y": np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], np.float32),
    "error": np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], np.float32),
}

Model = Callable[..., None]


def group(name: str, location: Any, scale: Any, size: int, centred: bool) -> Any:
    """Sample a variable of `size` groups, centred or not."""
    import numpyro.distributions as dist

    import phalanx as phx

    if centred:
        return phx.sample(name, dist.Normal(location, scale).expand([size]).to_event(1))
    z = phx.sample(f"{name}_z", dist.Normal(0.0, 1.0).expand([size]).to_event(1))
    return phx.deterministic(name, location + scale * z)


def schools(centred: bool) -> tuple[Model, dict[str, Any]]:
    """Eight schools: the data say little of each."""
    import numpyro.distributions as dist

    import phalanx as phx

    def model(y: Any, error: Any) -> None:
        mu, tau = phx.sample("mu", dist.Normal(0.0, 5.0)), phx.sample("tau", dist.HalfCauchy(5.0))
        phx.sample("y", dist.Normal(group("theta", mu, tau, 8, centred), error).to_event(1), obs=y)

    return model, SCHOOLS


def funnel(centred: bool) -> tuple[Model, dict[str, Any]]:
    """Neal's funnel in ten dimensions: there are no data."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    import phalanx as phx

    def model() -> None:
        group("x", 0.0, jnp.exp(phx.sample("omega", dist.Normal(0.0, 3.0)) / 2), 9, centred)

    return model, {}


def machines(centred: bool) -> tuple[Model, dict[str, Any]]:
    """Ten machines of 200 measurements: the data say nearly all of each."""
    import numpyro.distributions as dist

    import phalanx as phx

    rng = np.random.default_rng(0)
    y = rng.normal(size=10)[:, None] + 0.5 * rng.normal(size=(10, 200))

    def model(y: Any) -> None:
        mu, tau = phx.sample("mu", dist.Normal(0.0, 2.0)), phx.sample("tau", dist.HalfNormal(2.0))
        theta, noise = group("theta", mu, tau, 10, centred), phx.sample("noise", dist.HalfNormal(1.0))
        phx.sample("y", dist.Normal(theta[:, None], noise).expand([10, 200]), obs=y)

    return model, {"y": y.astype(np.float32)}


def uneven(centred: bool) -> tuple[Model, dict[str, Any]]:
    """Thirty groups of 1 to 300 rows: some of each kind."""
    import numpyro.distributions as dist

    import phalanx as phx

    rng = np.random.default_rng(1)
    rows = np.round(np.geomspace(1, 300, 30)).astype(int)
    of_row = np.repeat(np.arange(30), rows)
    y = 0.5 * rng.normal(size=30)[of_row] + 2.0 * rng.normal(size=len(of_row))

    def model(y: Any) -> None:
        mu, tau = phx.sample("mu", dist.Normal(0.0, 2.0)), phx.sample("tau", dist.HalfNormal(1.0))
        theta = group("theta", mu, tau, 30, centred)
        phx.sample("y", dist.Normal(theta[of_row], 2.0).to_event(1), obs=y)

    return model, {"y": y.astype(np.float32)}


def slopes(centred: bool) -> tuple[Model, dict[str, Any]]:
    """Radon in 85 counties: a correlated intercept and slope of each, with an LKJ prior."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    import phalanx as phx

    rng = np.random.default_rng(0)
    county = rng.choice(85, 919, p=rng.dirichlet(np.full(85, 0.8)))
    floor = (rng.random(919) < 0.17).astype(np.float32)
    level, effect = 1.5 + 0.3 * rng.normal(size=85), -0.7 + 0.3 * rng.normal(size=85)
    y = level[county] + effect[county] * floor + 0.75 * rng.normal(size=919)

    def model(y: Any) -> None:
        mean = phx.sample("mean", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        spread = phx.sample("spread", dist.HalfNormal(1.0).expand([2]).to_event(1))
        factor = spread[:, None] * phx.sample("factor", dist.LKJCholesky(2, 2.0))
        noise = phx.sample("noise", dist.HalfNormal(1.0))
        if centred:
            both = phx.sample("both", dist.MultivariateNormal(mean, scale_tril=factor).expand([85]).to_event(1))
        else:
            z = phx.sample("z", dist.Normal(0.0, 1.0).expand([85, 2]).to_event(2))
            both = phx.deterministic("both", mean + jnp.matmul(z, factor.T))
        phx.sample("y", dist.Normal(both[county, 0] + both[county, 1] * floor, noise).to_event(1), obs=y)

    return model, {"y": y.astype(np.float32)}


def many(centred: bool) -> tuple[Model, dict[str, Any]]:
    """A thousand groups of one row each: the data say little of each."""
    import numpyro.distributions as dist

    import phalanx as phx

    rng = np.random.default_rng(0)
    y = 1.0 + 0.3 * rng.normal(size=1000) + rng.normal(size=1000)

    def model(y: Any) -> None:
        mu, tau = phx.sample("mu", dist.Normal(0.0, 5.0)), phx.sample("tau", dist.HalfNormal(2.0))
        phx.sample("y", dist.Normal(group("theta", mu, tau, 1000, centred), 1.0).to_event(1), obs=y)

    return model, {"y": y.astype(np.float32)}


def regression(_: bool) -> tuple[Model, dict[str, Any]]:
    """A linear regression of 20 columns, without a hierarchy."""
    import numpyro.distributions as dist

    import phalanx as phx

    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 20))

    def model(x: Any, y: Any) -> None:
        weight = phx.sample("weight", dist.Normal(0.0, 1.0).expand([20]).to_event(1))
        phx.sample("y", dist.Normal(x @ weight, phx.sample("noise", dist.HalfNormal(1.0))).to_event(1), obs=y)

    y = x @ rng.normal(size=20) + rng.normal(size=500)
    return model, {"x": x.astype(np.float32), "y": y.astype(np.float32)}


MODELS = {
    "eight schools": schools, "Neal's funnel, 10-d": funnel, "10 machines x 200 rows": machines,
    "30 groups of 1 to 300 rows": uneven, "radon, varying slopes, LKJ": slopes, "1,000 groups of a row": many,
    "regression, 20 columns": regression,
}  # fmt: skip
WAYS = ("centred", "non-centred", "centring")


Run = tuple[float, str, float, float]
"""Effective samples per gradient of the worst quantity, the verdict's grade, lane efficiency, and seconds."""


def measured(name: str, options: Any) -> dict[str, list[Run]]:
    """Return the runs of all seeds by way; the ways take turns, after a first turn that compiles."""
    import phalanx as phx
    from phalanx.diagnostics import ess

    models = {way: MODELS[name](way != "non-centred") for way in WAYS}
    kernels = {way: phx.nuts(centring="auto" if way == "centring" else None) for way in WAYS}
    runs: dict[str, list[Run]] = {way: [] for way in WAYS}
    for seed in [0, *range(options.rounds)]:
        for way, (model, data) in models.items():
            began = time.perf_counter()
            run = phx.mcmc(
                model, data, kernel=kernels[way], seed=seed, num_chains=options.chains, num_samples=options.draws,
                progress=False,
            )  # fmt: skip
            seconds = time.perf_counter() - began
            own = {key: values for key, values in run.draws.items() if key not in ("factor",) and not key.endswith("z")}
            worst = min(float(np.min(ess(values))) for values in own.values())
            per_gradient = worst / float(run.stats["num_steps"].sum())
            runs[way].append((per_gradient, run.verdict().grade, run.timing.lane_efficiency, seconds))
    return {way: made[1:] for way, made in runs.items()}


def main() -> None:
    parser = side_by_side.arguments(__doc__ or "", rounds=5)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--draws", type=int, default=1000)
    options = parser.parse_args()
    watch, found = side_by_side.Watch(), {}
    for name in MODELS:
        found[name] = measured(name, options)
        print(name, {way: np.median([run[0] for run in runs]) for way, runs in found[name].items()}, flush=True)
    lines = [[name, *(_cell(found[name][way], found[name]["centred"]) for way in WAYS)] for name in MODELS]
    columns = [
        "effective samples per gradient, time (verdicts)",
        "written centred",
        "written non-centred",
        'centring="auto"',
    ]
    settings = {key: getattr(options, key) for key in ("rounds", "chains", "draws")}
    more = {"table": {"columns": columns, "lines": lines}, "runs": found}
    side_by_side.write(Path(__file__).stem, [], settings, watch, options.results, **more)


def _cell(runs: list[Run], centred: list[Run]) -> str:
    grades = Counter(run[1] for run in runs)
    said = ", ".join(f"{grades[grade]} {grade}" for grade in ("good", "usable", "not good") if grades[grade])
    time_ratio = np.median([run[3] / other[3] for run, other in zip(runs, centred, strict=True)])
    return f"{np.median([run[0] for run in runs]):.4f}, {time_ratio:.2f} ({said})"


if __name__ == "__main__":
    main()
