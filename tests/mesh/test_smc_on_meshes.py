"""Particles are the same on any number of devices, up to rounding."""

from __future__ import annotations

import numpy as np
import numpyro.distributions as dist
import pytest
from tests.unit.particles.closed_forms import CLOSED_FORMS, X, Y

import phalanx as phx

SHORT = {"num_particles": 128, "num_moves": 2, "kernel": phx.hmc(num_steps=3, step_size=0.1), "progress": False}


def rows_of_their_own(x, y):
    """Variables of all rows together, and one for each row."""
    weights = phx.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]))
    level = phx.sample("level", dist.Normal(0.0, 0.5).expand([x.shape[0]]))
    phx.sample("y", dist.Normal(x @ weights + level, 1.0), obs=y)


def sharded(mesh):
    return {"x": phx.shard(X[:18], mesh), "y": phx.shard(Y[:18], mesh)}


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(2, 1), (8, 1)])
def test_more_devices_for_the_particles(sizes, mesh_of):
    form = CLOSED_FORMS["regression"]
    one, many = (phx.smc(form.model, form.data, mesh=mesh, **SHORT) for mesh in (mesh_of(1, 1), mesh_of(*sizes)))
    agree(one, many)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(2, 4), pytest.param((1, 8), marks=pytest.mark.slow)])
def test_sharded_data_and_variables(sizes, mesh_of):
    """Rows do not divide evenly, so that some are padded."""
    mesh = mesh_of(*sizes)
    one = phx.smc(rows_of_their_own, {"x": X[:18], "y": Y[:18]}, mesh=mesh_of(1, 1), **SHORT)
    many = phx.smc(rows_of_their_own, sharded(mesh), mesh=mesh, **SHORT)
    assert many.draws["level"].shape == (128, 18)
    agree(one, many)


def agree(one, many) -> None:
    """Sums in another order may turn single decisions: most particles are the same, and the evidence almost."""
    assert one.evidence().log_evidence == pytest.approx(many.evidence().log_evidence, abs=0.1 * one.evidence().error)
    np.testing.assert_allclose(one.temperatures, many.temperatures, rtol=2e-2)
    for name, values in one.draws.items():
        same = np.isclose(values, many.draws[name], rtol=1e-2, atol=1e-3).reshape(len(values), -1).all(1)
        assert same.mean() > 0.9, name
