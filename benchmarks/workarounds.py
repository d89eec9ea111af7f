"""Work-arounds for slow code of XLA on CPUs: each on against off, on the model that it helps most.

A process with the work-around on and one with it off (`PHALANX_WORKAROUNDS`) take turns. A work-around without gain can
be deleted. `lapack-in-pieces`, for a fault, has a cost instead, measured on one device, where the fault does not show.
Not measured are `hashes-apart`, without which compiling never ends there, and `group-sums`, for GPUs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import side_by_side

AT_MOST = 1.0
RANDOM = np.random.default_rng(0)


def schools_and_data() -> tuple[Callable[..., None], dict[str, np.ndarray]]:
    """Return the model and data of eight schools, whose gradient is a few operations."""
    import numpyro.distributions as dist

    import phalanx as phx

    def model(y: Any, sigma: Any) -> None:
        mu = phx.sample("mu", dist.Normal(0.0, 5.0))
        tau = phx.sample("tau", dist.HalfCauchy(5.0))
        theta = phx.sample("theta", dist.Normal(0.0, 1.0).expand([8]))
        phx.sample("y", dist.Normal(mu + tau * theta, sigma), obs=y)

    data = {
        "y": np.array([28, 8, -3, 7, -1, 1, 18, 12], np.float32),
        "sigma": np.array([15, 10, 16, 11, 9, 11, 10, 18], np.float32),
    }
    return model, data


def schools(kernel: str, chains: int, draws: int) -> Callable[[], Any]:
    """Return a run of eight schools, whose leapfrog is a few operations on every lane."""
    import phalanx as phx

    made = {"nuts": phx.nuts, "hmc": partial(phx.hmc, 10)}[kernel](step_size=0.3)
    return _run(*schools_and_data(), made, chains, draws)


def mixture(chains: int, draws: int) -> Callable[[], Any]:
    """Return a run of a random walk on a mixture in one dimension, without storing draws."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    import phalanx as phx

    def model() -> None:
        parts = dist.Normal(jnp.array([-3.0, 0.0, 2.0, 5.0]), jnp.array([0.5, 1.0, 0.4, 0.8]))
        phx.sample("x", dist.MixtureSameFamily(dist.Categorical(jnp.full(4, 0.25)), parts))

    return _run(model, {}, phx.rwmh(0.8), chains, draws, keep=[], reducers={"mean": phx.reducers.moments()})


def regression(chains: int, rows: int, draws: int, classes: int = 1, block: int | None = None) -> Callable[[], Any]:
    """Return a run of a linear, logistic or softmax regression (0, 1 or more classes), on request in blocks."""
    import numpyro.distributions as dist

    import phalanx as phx

    columns = 20 if classes < 2 else 785
    kind = {0: lambda mean: dist.Normal(mean, 1.0), 1: lambda logits: dist.Bernoulli(logits=logits)}
    of_rows = kind.get(classes, lambda logits: dist.CategoricalLogits(logits))

    def model(x: Any, y: Any) -> None:
        w = phx.sample("w", dist.Normal(0.0, 1.0).expand([columns] if classes < 2 else [columns, classes]))
        made = phx.blocked(lambda x: of_rows(x @ w), x, block=block) if block else of_rows(x @ w)
        phx.sample("y", made, obs=y)

    data = {
        "x": RANDOM.normal(size=(rows, columns)).astype(np.float32),
        "y": RANDOM.integers(max(classes, 2), size=rows),
    }
    return _run(model, data, phx.hmc(10, step_size=1e-3), chains, draws)


def gaussian_process(chains: int, points: int, draws: int) -> Callable[[], Any]:
    """Return a run of a Gaussian process, which factorises one matrix per chain in every gradient."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    import phalanx as phx

    def model(x: Any, y: Any) -> None:
        scale = phx.sample("scale", dist.LogNormal(0.0, 0.5))
        kernel = jnp.exp(-0.5 * jnp.square((x[:, None] - x) / scale)) + 0.1 * jnp.eye(points)
        phx.sample("y", dist.MultivariateNormal(0.0, covariance_matrix=kernel), obs=y)

    x = np.linspace(0.0, 10.0, points, dtype=np.float32)
    return _run(model, {"x": x, "y": np.sin(x)}, phx.hmc(10, step_size=0.05), chains, draws)


def ensemble(members: int, steps: int) -> Callable[[], Any]:
    """Return the training of an ensemble of the network of `ensemble.py`, on one device."""
    import jax
    import optax

    import phalanx as phx
    from phalanx.demos.ensemble import make_cnn

    images = RANDOM.normal(size=(128 * steps, 28, 28)).astype(np.float32)
    labels = RANDOM.integers(10, size=len(images))

    def loss(logits: Any, labels: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    learner = phx.ensembles.nnx_learner(make_cnn(28, 10), loss, optax.sgd(0.01))
    mesh = phx.make_mesh(devices=jax.devices()[:1])
    trained = phx.ensemble(learner.init, learner.update, members, mesh=mesh)
    return lambda: list(trained.train((images, labels), batch_size=128))


def _run(model: Any, data: Any, kernel: Any, chains: int, draws: int, **options: Any) -> Callable[[], Any]:
    import jax

    import phalanx as phx

    one = phx.make_mesh(devices=jax.devices()[:1])
    sampler = phx.compile(model, data, kernel=kernel, num_chains=chains, mesh=one, **options)
    return partial(sampler.run, 0, num_warmup=0, num_samples=draws, progress=False)


def fit(steps: int) -> Callable[[], Any]:
    """Return steps of a fit of eight schools, compiled by the call before."""
    import phalanx as phx

    model, data = schools_and_data()
    return partial(
        phx.fit, model, phx.guides.full_rank(), data, optimizer=0.05, num_steps=steps, until=False, progress=False
    )


WORK: dict[str, tuple[str, Callable[[], Callable[[], Any]]]] = {
    "fused-loops": ("NUTS, eight schools, 4 chains", partial(schools, "nuts", 4, 4_000)),
    "wide-vectors": ("a random walk, 4,096 chains, reduced", partial(mixture, 4_096, 2_000)),
    "written-rows": ("NUTS, eight schools, 64 chains", partial(schools, "nuts", 64, 500)),
    "tiles": ("a random walk, 65,536 chains, reduced", partial(mixture, 65_536, 200)),
    "lanes-last": ("a logistic regression, 256 chains", partial(regression, 256, 500, 50)),
    "rows-of-lanes": ("a linear regression, 2 chains", partial(regression, 2, 5_000, 200, 0)),
    "products-as-they-are": ("a softmax regression in blocks, 1 chain", partial(regression, 1, 20_000, 5, 10, 2_000)),
    "written-out-products": ("HMC, eight schools, 64 chains", partial(schools, "hmc", 64, 1_000)),
    "written-out-hash": ("a random walk, 4,096 chains, reduced", partial(mixture, 4_096, 2_000)),
    "steps-in-branches": ("a full-rank fit, eight schools", partial(fit, 50_000)),
    "members-apart": ("an ensemble of 4, a step", partial(ensemble, 4, 5)),
    "lapack-in-pieces": ("a Gaussian process of 100 points, 8 chains", partial(gaussian_process, 8, 100, 20)),
}
"""Where each is measured."""

COSTS = {"lapack-in-pieces": 1.5}
"""The most that work-arounds for faults should cost, as a ratio."""


def main() -> None:
    parser = side_by_side.arguments(__doc__ or "", rounds=5)
    parser.add_argument("--only", nargs="+", choices=list(WORK), default=list(WORK))
    parser.add_argument("--name", choices=list(WORK), help=argparse.SUPPRESS)  # of the process that serves
    options = parser.parse_args()
    if options.serve_on:
        turned_off = os.environ.get("PHALANX_WORKAROUNDS")
        side_by_side.serve({"off" if turned_off else "on": side_by_side.Way(WORK[options.name][1]())})
        return
    watch, rows, times = side_by_side.Watch(), [], {}
    for name in options.only:
        found = side_by_side.take_turns_of(
            str(Path(__file__)), ["--name", name], [{}, {"PHALANX_WORKAROUNDS": name}], options.rounds
        )
        what = f"{name}: {WORK[name][0]}"
        of_this = {f"{what}, {way}": taken for way, taken in found.items()}
        at_most = COSTS.get(name, AT_MOST)
        rows.append(side_by_side.compare(what, f"{what}, on", f"{what}, off", of_this, at_most=at_most))
        times |= of_this
        print(rows[-1], file=sys.stderr)
    side_by_side.write(Path(__file__).stem, rows, {"rounds": options.rounds}, watch, options.results, times)


if __name__ == "__main__":
    main()
