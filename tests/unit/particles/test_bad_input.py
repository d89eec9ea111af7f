"""What `phx.smc` refuses, before anything is compiled, and the way out that it names."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from tests.unit.particles.closed_forms import X, Y, regression

import phalanx as phx
from phalanx.run.compile import stored_programs

DATA = {"x": X, "y": Y}


@pytest.fixture(autouse=True)
def compiles_nothing(monkeypatch):
    def fail(*_):
        raise AssertionError("something is compiled")

    monkeypatch.setattr(stored_programs, "compiled", fail)


def observing(prior):
    def model():
        phx.sample("y", dist.Normal(jnp.sum(phx.sample("x", prior)), 1.0), obs=1.0)

    return model


def scaled():
    x = phx.scale(lambda: phx.sample("x", dist.Normal(0.0, 1.0)), 2.0)()
    phx.sample("y", dist.Normal(x, 1.0), obs=1.0)


def without_data():
    phx.sample("x", dist.Normal(0.0, 1.0))


def learned():
    phx.sample("y", dist.Normal(phx.sample("x", dist.Normal(phx.param("m", 0.0), 1.0)), 1.0), obs=1.0)


def mixture(y):
    z = phx.sample("z", dist.Bernoulli(0.3))
    x = phx.sample("x", dist.Normal(3.0 * z, 1.0))
    phx.sample("y", dist.Normal(x, 1.0), obs=y)


@pytest.mark.parametrize(
    "model, words",
    [
        (observing(dist.ImproperUniform(dist.constraints.real, (), ())), "Variable 'x' has the prior ImproperUniform"),
        (observing(dist.Normal(0.0, 1.0).mask(False)), "Variable 'x' has a masked prior (Normal)"),
        (phx.from_logdensity(lambda x: -(x**2), 0.0), "Variable 'x' has the prior ImproperUniform"),
        (observing(dist.Poisson(2.0)), "Variable 'x' is discrete (Poisson)"),
        (scaled, "Variable 'x' is latent and has a scaled log density"),
        (without_data, "the model observes no data"),
        (learned, "'m' is a phx.param"),
    ],
    ids=["improper", "masked", "log density", "discrete", "scaled", "no data", "parameter"],
)
def test_models(model, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.smc(model, num_particles=64, progress=False)


def test_a_prior_within_a_sum():
    with pytest.raises(ValueError, match=r"Variable 'x' has a masked prior .* phx.marginalize"):
        phx.smc(phx.marginalize(mixture), {"y": np.float32(1.0)}, num_particles=64, progress=False)


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"num_particles": 0}, ValueError, "num_particles must be a whole number, at least 16; got 0"),
        ({"num_particles": 100.5}, ValueError, "num_particles must be a whole number"),
        ({"num_moves": 0}, ValueError, "num_moves must be a whole number, at least 1; got 0"),
        ({"target_ess": 1.5}, ValueError, "target_ess must be a fraction of the particles between 0 and 1"),
        ({"persistent": "yes"}, TypeError, "persistent must be True or False; got 'yes'"),
        ({"kernel": phx.sgld(step_size=0.1, batch_size=4)}, ValueError, "does not leave its target invariant"),
        ({"kernel": phx.laps()}, ValueError, "Use phx.mams(), whose draws are the same"),
        ({"kernel": "nuts"}, TypeError, "kernel: expected a kernel"),
        ({"keep": ["weight"]}, ValueError, "keep: the model has no variable 'weight'"),
        ({"dims": {"weight": ["a"]}}, ValueError, "'weight'"),
        ({"seed": -1}, ValueError, "seed must be a whole number"),
        ({"on_block": 3}, TypeError, "on_block: expected a function"),
        ({"num_chains": 4}, TypeError, "num_chains"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_arguments(options, error, words):
    with pytest.raises(error, match=re.escape(words)):
        phx.smc(regression, DATA, **{"num_particles": 64, "progress": False, **options})


def test_particles_that_do_not_fit_the_mesh(mesh_of):
    words = "num_particles=100 cannot be split evenly over 8 devices along the mesh's 'chain' axis; use 96 or 104"
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.smc(regression, DATA, num_particles=100, mesh=mesh_of(8, 1), progress=False)


def test_missing_data():
    with pytest.raises(ValueError, match=r"data: y has 1 NaN value"):
        phx.smc(regression, {"x": X, "y": np.where(np.arange(len(Y)) == 2, np.nan, Y)}, progress=False)
