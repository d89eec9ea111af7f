"""Peak memory of leave-one-out cross-validation of many observations, computed batch by batch.

Independent draws of a linear regression's posterior stand for a run: log densities of all rows at every draw, of which
only the largest importance ratios of each row are kept. The process's peak memory is compared with the size of the
matrix of log densities that is never made.

    python benchmarks/loo.py --rows 581012 --draws 1000 --out results/loo.json
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
from pathlib import Path

import jax
import numpy as np
import numpyro.distributions as dist

import phalanx as phx
from phalanx.posterior.posterior import Posterior
from phalanx.posterior.record import RunRecord, Timing

CHAINS, WIDTH = 4, 10


def model(x, y):
    """Sample the regression of `y` on the columns of `x`."""
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]))
    phx.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def posterior_of(rows: int, draws: int) -> Posterior:
    """Return independent draws of the exact posterior."""
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, WIDTH)).astype(np.float32)
    y = (x @ np.linspace(-1.0, 1.0, WIDTH) + random.normal(size=rows)).astype(np.float32)
    covariance = np.linalg.inv(x.T.astype(float) @ x + np.eye(WIDTH))
    mean = covariance @ (x.T.astype(float) @ y)
    drawn = random.multivariate_normal(mean, covariance, size=(CHAINS, draws // CHAINS)).astype(np.float32)
    record = RunRecord(
        model="model", kernel="exact", num_chains=CHAINS, num_warmup=0, num_samples=draws // CHAINS, seed=0, mesh={},
        devices=[], data={}, latents={"w": ""}, versions={},
    )  # fmt: skip
    return Posterior({"w": drawn}, {}, Timing(), record, target=phx.Target(model, {"x": x, "y": y}))


def peak_bytes() -> int:
    """Return the largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Run once, print the counts and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=581_012)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    posterior = posterior_of(given.rows, given.draws)
    before = peak_bytes()
    loo = posterior.loo()
    found = {
        "observations": given.rows, "draws": given.draws, "elpd_per_row": loo.elpd / given.rows, "p_loo": loo.p_loo,
        "bad_k": loo.num_bad, "peak_bytes": peak_bytes(), "peak_bytes_before": before,
        "bytes_of_log_densities": 4 * given.rows * given.draws, "devices": len(jax.devices()),
        "python": platform.python_version(), "jax": jax.__version__,
    }  # fmt: skip
    print(json.dumps(found, indent=2))
    if given.out:
        known = json.loads(given.out.read_text())["found"] if given.out.exists() else []
        kept = [one for one in known if one["observations"] != given.rows]  # of other sizes
        given.out.write_text(json.dumps({"name": "loo", "found": [*kept, found]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
