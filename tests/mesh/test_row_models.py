"""Models whose rows meet, on 13 and on 5 rows over several devices: equal to those on one device."""

from __future__ import annotations

import numpy as np
import numpyro.distributions as dist
import pytest
from tests.mesh.agreement import compare_with_one_device
from tests.mesh.row_models import MODELS
from tests.mesh.row_programs import ADDS_UP

import phalanx as phx

EVEN, RAGGED, FEW = 16, 13, 5
LEVELS = (0.5, 5.5, -6.0, 100.0)
"""Values of `level`, in each of which other branches count."""

QUICK = {
    "a cond", "a step", "a while loop", "a device in a rare cond", "a row taken by turns", "walk", "fixed groups",
    "a gradient that mixes rows", "the state before", "callback that knows the number of rows", "positive rows",
    "variables of several numbers of rows, 5", "rows along another axis", "one assignment of all rows",
}  # fmt: skip
CASES = [
    pytest.param(name, rows, id=f"{name}-{rows}", marks=() if rows == RAGGED and name in QUICK else pytest.mark.slow)
    for name in MODELS
    for rows in (RAGGED, FEW)
]


@pytest.mark.parametrize("name, rows", CASES)
def test_a_model_is_right(name, rows, mesh_of):
    program, data, sizes, axes = MODELS[name]
    data = {of: array[:rows] if len(array) >= EVEN else array for of, array in data.items()}
    compare_with_one_device(program, data, mesh_of(*sizes), axes, [{"level": at} for at in LEVELS])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quadratic form", "scan"])
def test_chains_draw_from_a_model_that_adds_up_its_rows(name, mesh_of):
    random = np.random.default_rng(0)
    x = random.normal(size=(19, 3)).astype(np.float32)
    y = x.sum(1) + random.normal(size=19).astype(np.float32)
    mesh = mesh_of(1, 4)

    def model(x, y):
        w = phx.sample("w", dist.Normal(0.0, 1.0).expand([3]))
        phx.factor("y", ADDS_UP[name](x, y, None, w, None, None) * (0.5 if name == "scan" else 1.0))

    run = phx.mcmc(
        model, phx.shard({"x": x, "y": y}, mesh), kernel=phx.hmc(num_steps=3, step_size=0.1),
        num_chains=8, num_warmup=50, num_samples=200, mesh=mesh, progress=False,
    )  # fmt: skip
    precision = x.T.astype(float) @ x + np.eye(3)
    exact = np.linalg.solve(precision, x.T @ y)
    error = np.sqrt(np.diag(np.linalg.inv(precision)) / 50)  # with as few as fifty independent draws
    assert (np.abs(run.draws["w"].mean((0, 1)) - exact) < 5 * error).all()  # false in less than 1 of 100,000 runs
