"""Verdicts of fits of known posteriors: counts of wrong fits called good, and of right fits flagged.

A fit is right when every mean of its draws is within a tenth of the posterior's standard deviation and every standard
deviation within 15%. The evidence covers the truth when it is refused or within four of its stated errors.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import phalanx as phx

OUTCOMES = [f"{truth} and {grade}" for truth in ("right", "wrong") for grade in ("good", "usable", "not good")]
FOLDER, SIZE, TOLERATED = Path(__file__).parent, 200_000, 4.0
RANDOM = np.random.default_rng(0)
Draws = dict[str, np.ndarray]


class Case(NamedTuple):
    """A posterior: the model, exact draws of it, and its log evidence.

    Attributes:
        exact: returns exact draws, or the images of a fit's draws if a symmetry leaves the posterior unchanged.
    """

    model: Callable[..., Any]
    exact: Callable[..., Draws]
    evidence: float | None = 0.0
    data: Mapping[str, Any] = {}
    by_symmetry: bool = False


def correlated(size: int, correlation: float) -> Case:
    """Return a case of correlated normals."""
    covariance = np.full((size, size), correlation) + (1 - correlation) * np.eye(size)

    def model() -> None:
        phx.sample("x", dist.MultivariateNormal(jnp.zeros(size), jnp.asarray(covariance, jnp.float32)))

    return Case(model, lambda r: {"x": r.multivariate_normal(np.zeros(size), covariance, SIZE)})


def banana() -> None:
    """Draw from a normal bent along a parabola."""
    a = phx.sample("a", dist.Normal(0.0, 1.0))
    phx.sample("b", dist.Normal(0.7 * a**2, 0.7))


def banana_draws(r: np.random.Generator) -> Draws:
    """Return exact draws."""
    a = r.normal(size=SIZE)
    return {"a": a, "b": 0.7 * a**2 + 0.7 * r.normal(size=SIZE)}


def sparse(p: Any = None) -> None:
    """Draw counts with sparse probabilities."""
    p = phx.sample("p", dist.Dirichlet(jnp.full(4, 0.2)))
    phx.factor("y", 5.0 * jnp.log(p[0]))


def two_modes(size: int, distance: float, share: float) -> Case:
    """Return a case of two normals of unit width, `distance` apart in each coordinate."""
    ends = np.array([-distance / 2, distance / 2])

    def model() -> None:
        normals = dist.Normal(jnp.broadcast_to(jnp.asarray(ends)[:, None], (2, size)), 1.0).to_event(1)
        phx.sample("x", dist.MixtureSameFamily(dist.Categorical(jnp.array([1 - share, share])), normals))

    return Case(
        model, lambda r: {"x": ends[(r.random(SIZE) < share).astype(int)][:, None] + r.normal(size=(SIZE, size))}
    )


def labels(count: int) -> Case:
    """Return a case of a mixture with exchangeable components."""
    y = (np.arange(90) % count * 4.0 + RANDOM.normal(size=90)).astype(np.float32)

    def model(y: Any) -> None:
        share = phx.sample("share", dist.Dirichlet(jnp.full(count, 5.0)))
        mean = phx.sample("mean", dist.Normal(4.0, 5.0).expand([count]))
        phx.sample("y", dist.MixtureSameFamily(dist.Categorical(share), dist.Normal(mean, 1.0)), obs=y)

    def images(draws: Draws) -> Draws:
        orders = [np.roll(np.arange(count), i) for i in range(count)]
        return {n: np.concatenate([draws[n][:, order] for order in orders]) for n in ("share", "mean")}

    return Case(model, images, None, {"y": y}, True)


def independent(distribution: Any, draw: Callable[[np.random.Generator], np.ndarray], size: int = 3) -> Case:
    """Return a case of independent variables of one distribution."""

    def model() -> None:
        phx.sample("x", distribution.expand([size]))

    return Case(model, lambda r: {"x": draw(r)})


def counts(y: Any) -> None:
    """Draw from a conjugate model."""
    phx.sample("y", dist.Poisson(phx.sample("rate", dist.Gamma(2.0, 1.0))), obs=y)


def shape(size: int = 3) -> tuple[int, int]:
    """Return the shape of exact draws."""
    return SIZE, size


CASES = {
    "normal": correlated(3, 0.0),
    "correlated normal": correlated(5, 0.9),
    "20 correlated": correlated(20, 0.7),
    "banana": Case(banana, banana_draws),
    "sparse Dirichlet": Case(sparse, lambda r: {"p": r.dirichlet([5.2, 0.2, 0.2, 0.2], SIZE)}, None),
    "InverseGamma(2.5, 1)": independent(dist.InverseGamma(2.5, 1.0), lambda r: 1.0 / r.gamma(2.5, 1.0, shape(1)), 1),
    "InverseGamma(8, 1)": independent(dist.InverseGamma(8.0, 1.0), lambda r: 1.0 / r.gamma(8.0, 1.0, shape(1)), 1),
    "Beta(.5, 5)": independent(dist.Beta(0.5, 5.0), lambda r: r.beta(0.5, 5.0, shape())),
    "Beta(3, 6)": independent(dist.Beta(3.0, 6.0), lambda r: r.beta(3.0, 6.0, shape())),
    "Gamma(10, 5)": independent(dist.Gamma(10.0, 5.0), lambda r: r.gamma(10.0, 0.2, shape())),
    "Gamma(1, 1)": independent(dist.Gamma(1.0, 1.0), lambda r: r.gamma(1.0, 1.0, shape())),
    "StudentT(5)": independent(dist.StudentT(5.0, 0.0, 1.0), lambda r: r.standard_t(5.0, shape())),
    "LogNormal": independent(dist.LogNormal(0.0, 0.5), lambda r: np.exp(0.5 * r.normal(size=shape()))),
    "conjugate": Case(counts, lambda r: {"rate": r.gamma(14.0, 0.25, SIZE)}, None, {"y": np.array([3, 5, 4])}),
    "two modes": two_modes(1, 10.0, 0.5),
    "modes of .9 and .1": two_modes(1, 8.0, 0.1),
    "two modes in 20 dimensions": two_modes(20, 6.0, 0.5),
    "labels of 2": labels(2),
    "labels of 3": labels(3),
}
METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    "mean_field": (phx.guides.mean_field(), {}),
    "full_rank": (phx.guides.full_rank(), {}),
    "laplace": (phx.guides.laplace(), {}),
    "pathfinder": (phx.guides.pathfinder(), {}),
    "batch_and_match": (phx.guides.full_rank(), {"optimizer": "batch-and-match"}),
}


def truth_of(case: Case, draws: Draws) -> Draws:
    """Return exact draws for comparison with the draws of a fit."""
    return case.exact(draws if case.by_symmetry else np.random.default_rng(1))


def is_right(draws: Draws, exact: Draws) -> tuple[bool, float, float]:
    """Return True if all moments are right, and the largest errors of means and standard deviations."""
    shift = growth = 0.0
    for name, truth in exact.items():
        mine = np.asarray(draws[name], float)
        shift = max(shift, float(np.max(np.abs(mine.mean(0) - truth.mean(0)) / truth.std(0))))
        growth = max(growth, float(np.max(np.abs(mine.std(0) / truth.std(0) - 1.0))))
    return shift <= 0.1 and growth <= 0.15, shift, growth


def row(name: str, method: str, seed: int) -> dict[str, Any]:
    """Return the row of one fit."""
    case, (guide, options), began = CASES[name], METHODS[method], time.perf_counter()
    fields: dict[str, Any] = {"posterior": name, "method": method, "seed": seed}
    try:
        fit = phx.fit(case.model, guide, case.data, seed=seed, progress=False, **options)
    except ValueError as refused:
        return {**fields, "outcome": "refused", "why": str(refused)[:60]}
    fitted = time.perf_counter() - began
    verdict, evidence = fit.verdict(), fit.evidence()
    judged = time.perf_counter() - began - fitted
    draws = fit.sample(seed=1, n=20_000)
    right, shift, growth = is_right(draws, truth_of(case, draws))
    grade = getattr(verdict, "grade", "good" if verdict.good else "not good")
    off = None if case.evidence is None else abs(evidence.log_evidence - case.evidence) / evidence.error
    is_near = off is None or off < TOLERATED or off * evidence.error < 1e-3
    covers = is_near or not evidence.reliable
    k_hat = round(evidence.k_hat, 2) if np.isfinite(evidence.k_hat) else None
    return {
        **fields, "outcome": f"{'right' if right else 'wrong'} and {grade}", "shift": round(shift, 3),
        "growth": round(growth, 3), "k_hat": k_hat, "evidence_covers": bool(covers),
        "findings": [finding.topic for finding in verdict.findings],
        "fit": round(fitted, 1), "judged": round(judged, 1),
    }  # fmt: skip


def main() -> None:
    """Fit all posteriors, or those named."""
    file, *names = sys.argv[1:] or [str(FOLDER / "results" / "fit_verdicts.json")]
    runs = []
    for name in names or CASES:
        for method in METHODS:
            for seed in range(2 if method == "pathfinder" else 1):
                runs.append(row(name, method, seed))
                print("  ".join(f"{key}={value}" for key, value in runs[-1].items()), flush=True)
                Path(file).write_text(json.dumps(summed(runs), indent=1) + "\n")
    print(summed(runs)["totals"])


def summed(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return all fits, the number of fits by outcome, and the table for README.md."""
    totals = Counter(one["outcome"] for one in runs)
    off = sum(not one.get("evidence_covers", True) for one in runs)
    by_method = [(name, Counter(one["outcome"] for one in runs if one["method"] == name)) for name in METHODS]
    lines = [[name, *(str(of[outcome]) for outcome in OUTCOMES)] for name, of in (*by_method, ("all", totals))]
    return {
        "name": "fit_verdicts", "fits": len(runs), "totals": {**totals, "evidence off and called reliable": off},
        "jax": jax.__version__, "runs": runs, "table": {"columns": ["fit", *OUTCOMES], "lines": lines},
    }  # fmt: skip


if __name__ == "__main__":
    main()
