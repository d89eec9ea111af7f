"""Errors of differences of log densities of up to a billion rows at nearby points, in two floats and in one.

A logistic regression with one covariate, by the target of `phx.mcmc`: rows on a mesh, in blocks, several points at
once. Points lie about as far apart as draws of the posterior do. The truth is the same sum in float64, by NumPy. The
covariate holds the sign of the label, so that a billion rows take 4 GB, in one array.

Each row's term is rounded to a float32. The errors of rows that all differ are random; equal rows have equal errors,
which add up. Covariates of 8 and of 16 bits, with many equal rows, are therefore measured too.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import side_by_side

WEIGHT = 0.7
PIECE = 2**18
"""Rows made, and added up in float64, at a time: a core's cache holds them."""

GOAL = 0.01
"""What differences should be right to."""

COVARIATES = {"float32": 1.0, "int16": 2.0**-13, "int8": 2.0**-5}
"""Types of the covariate, and what it is multiplied with: all are normal, with a standard deviation of about one."""


def piece(number: int, rows: int, kind: str) -> np.ndarray:
    """Draw covariates, each multiplied by the sign of a label that the weight makes likely."""
    random, scale = np.random.default_rng([number, rows]), COVARIATES[kind]
    values = random.standard_normal(rows, np.float32)
    if kind != "float32":
        info = np.iinfo(kind)
        values = np.clip(np.rint(values / scale), -info.max, info.max)
    likely = random.random(rows, np.float32) * (1 + np.exp(-WEIGHT * scale * values)) < 1
    return np.where(likely, values, -values).astype(kind)


def in_double(rows: np.ndarray, scale: float, points: np.ndarray) -> np.ndarray:
    """Return the log likelihood of a piece at each point."""
    counts: Any = 1
    if rows.dtype.kind == "i":  # equal rows have equal terms
        counts = np.bincount(rows.astype(np.int64) - np.iinfo(rows.dtype).min)
        rows = np.arange(len(counts)) + np.iinfo(rows.dtype).min
    logits = scale * points[:, None] * rows.astype(np.float64)
    return (counts * (np.minimum(logits, 0.0) - np.log1p(np.exp(-np.abs(logits))))).sum(axis=1)


def data_and_truth(count: int, kind: str, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return all rows, and the log likelihood at each point."""
    rows, truth = np.empty(count, kind), np.zeros(len(points))
    for number, start in enumerate(range(0, count, PIECE)):
        part = piece(number, min(PIECE, count - start), kind)
        rows[start : start + len(part)] = part
        truth += in_double(part, COVARIATES[kind], points)
    return rows, truth


def in_two_floats(rows: Any, kind: str, points: np.ndarray) -> Any:
    """Return the log density at each point, as kernels receive it; the prior is flat."""
    import jax
    import jax.numpy as jnp
    import numpyro.distributions as dist

    import phalanx as phx

    mesh, scale = phx.make_mesh(chain=1, data=len(jax.devices())), COVARIATES[kind]

    def model(rows: Any) -> None:
        weight = phx.sample("weight", dist.ImproperUniform(dist.constraints.real, (), ()))

        def terms(rows: Any) -> Any:
            return jax.nn.log_sigmoid(weight * (rows.astype(jnp.float32) * scale))

        phx.factor("rows", phx.blocked(terms, rows))

    target = phx.Target(model, phx.shard({"rows": rows}, mesh), mesh=mesh)
    del rows

    def on_device(points: Any, arrays: Any) -> Any:
        density = target.on_device(arrays, len(points))
        return jax.vmap(lambda point: density.value_and_grad({"weight": point})[0])(points)

    everywhere = jax.sharding.PartitionSpec()
    specs = {"in_specs": (everywhere, target.array_specs()), "out_specs": everywhere}
    on_mesh = jax.jit(jax.shard_map(on_device, mesh=mesh, **specs, check_vma=False))
    return jax.block_until_ready(on_mesh(points, target.place_arrays()))


def differences(values: np.ndarray) -> np.ndarray:
    """Return the differences between all pairs of points."""
    return np.array([b - a for a, b in itertools.combinations(values.astype(np.float64), 2)])


def measured(count: int, kind: str, points_of: np.ndarray) -> dict[str, Any]:
    """Return the errors of the differences between points, for this many rows."""
    points = (WEIGHT + points_of / np.sqrt(count)).astype(np.float32)
    began = time.perf_counter()
    rows, truth = data_and_truth(count, kind, points.astype(np.float64))
    middle = time.perf_counter()
    total = in_two_floats(rows, kind, points)
    seconds = time.perf_counter() - middle
    exact = differences(truth)
    wrong = [differences(values) - exact for values in (total.in_double(), np.asarray(total.value))]
    two, one = (float(np.abs(errors).max()) for errors in wrong)
    return {
        "rows": count, "covariate": kind, "log_density": float(truth[0]),
        "largest_difference": float(np.abs(exact).max()), "error_in_two_floats": two, "error_in_one_float": one,
        "error_of_the_total": float(total.in_double()[0] - truth[0]), "goal": GOAL, "met": two <= GOAL,
        "seconds_in_float64": round(middle - began, 1), "seconds": round(seconds, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, nargs="+", default=[1e6, 1e7, 1e8, 1e9])
    parser.add_argument("--covariates", nargs="+", choices=COVARIATES, default=list(COVARIATES))
    parser.add_argument("--points", type=int, default=4, help="every two of them are compared")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--results", type=Path, default=side_by_side.RESULTS, help="folder for the JSON file")
    options = parser.parse_args()
    import phalanx as phx

    phx.use_cpu_devices(options.devices)
    watch, found = side_by_side.Watch(), []
    points = 2.0 * np.random.default_rng(0).standard_normal(options.points)  # posterior deviations are some two roots
    for kind, count in itertools.product(options.covariates, map(int, options.rows)):
        found.append(measured(count, kind, points))
        print(found[-1], flush=True)
        lines = [
            [
                row["covariate"], f"{row['rows']:,}", f"{row['log_density']:,.0f}",
                f"{row['largest_difference']:.2g}", f"{row['error_in_two_floats']:.1g}",
                f"{row['error_in_one_float']:.1g}",
            ]
            for row in found
        ]  # fmt: skip
        columns = ["covariate", "rows", "log density", "largest difference", "error in two floats", "error in one"]
        settings = {"points": options.points, "devices": options.devices}
        side_by_side.save(
            Path(__file__).stem, [], settings, watch, options.results, found=found,
            table={"columns": columns, "lines": lines},
        )  # fmt: skip


if __name__ == "__main__":
    main()
