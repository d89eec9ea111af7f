r"""Rate at which fits stop although the guide is further from the best one than the stopping rule allows.

The posteriors are normal, so that the gap between a guide and the best one of its family has a closed form, in nats:
with precision $\Lambda$ and the guide's mean $m$ (from the posterior's) and covariance $S$, it is $\frac12
[\operatorname{tr} \Lambda S - d - \log \det (\Lambda S) + m^\top \Lambda m]$, in which mean field has the diagonal of
$\Lambda$ but for its last term. Fits begin at a draw of three times the posterior's width, and narrow.

The rule looks for medians and widths that have not moved by more than a tolerance, `TOLERANCE`, at a rate and at half
of it. A guide with mean and width of every coordinate off by the tolerance has a gap of $\frac32$ of its square for
each coordinate. A stop is false if the gap is four times as large, as when everything is off by twice the tolerance. By
path derivatives a full-rank guide's gradients have no noise at the end, so fits are made by whole gradients too,
`elbo(path=False)`, whose noise stays. Fits that had not stopped after all their steps are counted apart, since they do
not claim to have settled.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import side_by_side

SIZES, CONDITIONS, GUIDES = (2, 10, 50), (1.0, 1e2, 1e4), ("mean_field", "full_rank")
ALLOWED = 0.05
"""Of the stops, the most that may be false."""


def model(scale_tril):
    import numpyro.distributions as dist

    import phalanx as phx

    phx.sample("x", dist.MultivariateNormal(np.zeros(scale_tril.shape[0], np.float32), scale_tril=scale_tril))


def posterior_of(size: int, condition: float, seed: int) -> np.ndarray:
    """Return a covariance with random axes and variances from 1 to `condition`, evenly in logarithms."""
    random = np.random.default_rng([seed, size])
    axes, _ = np.linalg.qr(random.normal(size=(size, size)))
    return (axes * np.geomspace(1.0, condition, size)) @ axes.T


def short_of(params: dict[str, Any], covariance: np.ndarray) -> float:
    """Return the gap, in nats, between the guide's bound and that of the best guide of its family."""
    precision = np.linalg.inv(covariance)
    held = {name: np.asarray(value, np.float64) for name, value in params.items()}
    if "x.loc" in held:
        mean, terms = held["x.loc"], np.diagonal(precision) * held["x.scale"] ** 2
        spread, log_det = terms.sum(), np.log(terms).sum()
    else:
        mean, tril = held["loc"], held["scale_tril"]
        spread = np.trace(precision @ tril @ tril.T)
        log_det = np.linalg.slogdet(precision)[1] + 2.0 * np.log(np.diagonal(tril)).sum()
    return 0.5 * float(spread - len(mean) - log_det + mean @ precision @ mean)


def one(guide: str, path: bool, size: int, condition: float, seed: int) -> tuple[float, int, bool]:
    """Return a fit's gap in nats, its steps, and True if it stopped by itself."""
    import phalanx as phx

    covariance = posterior_of(size, condition, seed)
    tril = np.linalg.cholesky(covariance)
    begins = {"x": (3.0 * tril @ np.random.default_rng(seed).normal(size=size)).astype(np.float32)}
    fit = phx.fit(
        model, getattr(phx.guides, guide)(), {"scale_tril": tril.astype(np.float32)}, init=begins, seed=seed,
        objective=phx.guides.elbo(path=path), progress=False,
    )  # fmt: skip
    return short_of(fit.params, covariance), fit.steps, fit.settled


def at_most(false: int, stops: int) -> float:
    """Return the upper 95% confidence bound on the rate of false stops (Clopper, Pearson 1934)."""
    from scipy.stats import beta

    return 1.0 if false >= stops else float(beta.ppf(0.95, false + 1, stops - false))


def row(guide: str, path: bool, size: int, condition: float, seeds: int) -> dict[str, Any]:
    from phalanx.variational.methods.settling import TOLERANCE

    found = [one(guide, path, size, condition, seed) for seed in range(seeds)]
    stopped = [short for short, _, settled in found if settled]
    promised = 4.0 * 1.5 * TOLERANCE**2 * size
    false = sum(not short <= promised for short in stopped)
    return {
        "what": f"{guide}, {'path' if path else 'whole'} gradient, {size} coordinates, condition {condition:g}",
        "fits": seeds,
        "stops": len(stopped),
        "false": false,
        "rate_at_most": round(at_most(false, len(stopped)), 3),
        "promised_nats": round(promised, 4),
        "median_short": round(float(np.median(stopped)), 5) if stopped else None,
        "most_short": round(max(stopped), 5) if stopped else None,
        "median_steps": int(np.median([steps for _, steps, _ in found])),
    }


def table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the rows for `README.md`."""
    columns = {
        "what": "guide and posterior", "fits": "fits", "stops": "stops", "false": "false stops",
        "promised_nats": "allowed, nats", "median_short": "short of, nats: median", "most_short": "most",
        "median_steps": "steps, median",
    }  # fmt: skip
    return {"columns": list(columns.values()), "lines": [[str(row[name]) for name in columns] for row in rows]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="fits of each posterior and guide")
    parser.add_argument("--results", type=Path, default=side_by_side.RESULTS, help="folder for the JSON file")
    options = parser.parse_args()
    watch, rows, rate = side_by_side.Watch(), [], {}
    for case in itertools.product(GUIDES, (True, False), SIZES, CONDITIONS):
        rows.append(row(*case, options.seeds))
        print(json.dumps(rows[-1]), flush=True)
        false, stops = (sum(row[name] for row in rows) for name in ("false", "stops"))
        rate = {"false": false, "stops": stops, "rate": round(false / max(stops, 1), 4), "allowed": ALLOWED}
        rate |= {"rate_at_most": round(at_most(false, stops), 4), "met": false <= ALLOWED * stops}
        settings = {"seeds": options.seeds, "all": rate}
        side_by_side.save("stopping", [], settings, watch, options.results, fits=rows, table=table(rows))
    print(json.dumps(rate))


if __name__ == "__main__":
    main()
