"""Where chains begin: also where a gradient is finite only far from zero."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx

SHORT = {"num_chains": 4, "num_warmup": 2, "num_samples": 2, "progress": False}


def test_a_square_root_that_has_underflowed_near_zero_begins_farther_out():
    """As of a Gaussian process by its spectral density: finite, and without a derivative where the exponential is 0."""

    def model():
        length = phx.sample("length", dist.LogNormal(0.0, 3.0))
        spectrum = jnp.sqrt(jnp.exp(-0.5 * jnp.square(length * jnp.array([1.0, 60.0]))))
        phx.sample("y", dist.Normal(spectrum.sum(), 1.0), obs=0.5)

    posterior = phx.mcmc(model, kernel=phx.hmc(num_steps=2, step_size=0.01), **SHORT)
    assert np.isfinite(posterior.draws["length"]).all() and (posterior.draws["length"] < 0.3).all()


def test_what_has_a_gradient_nowhere_is_refused():
    def model():
        phx.factor("f", -jnp.sqrt(phx.sample("x", dist.Normal(0.0, 1.0)) * 0.0))

    message = "at 21 random positions ever closer to zero on the unconstrained scale, and at 20 farther from it"
    with pytest.raises(ValueError, match=re.escape(message)):
        phx.mcmc(model, kernel=phx.hmc(1), **SHORT)


HOSTILE = {
    "keep": [3, [3], {"mean": 1}, [["mean"]]],
    "init": ["x", [1.0], np.ones(4), {"mean": "a"}, {"mean": None}, {"mean": [[1, 2], [3]]}, {3: 1.0}, {"mu": 0.0}],
    "progress": ["yes", float("nan"), None],
    "thin": ["2", None, 0],
    "num_samples": ["x", -1, float("nan")],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in HOSTILE.items() for value in values])
def test_hostile_arguments_are_refused_by_name_before_compiling(name, value, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("compiled before the argument was refused")

    monkeypatch.setattr("phalanx.run.mcmc.compile_blocks", refuse)

    def model(y):
        phx.sample("y", dist.Normal(phx.sample("mean", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    data = {"y": np.ones(3, np.float32)}
    with pytest.raises((TypeError, ValueError), match=rf"^{name}\b"):
        phx.mcmc(model, data, **{"progress": False, name: value})
    with pytest.raises((TypeError, ValueError), match=rf"^{name}\b"):
        next(phx.stream(model, data, **{"progress": False, name: value}))


@pytest.mark.parametrize(
    "call", [phx.mcmc, phx.compile, phx.maximize, lambda m, d: phx.fit(m, phx.guides.laplace(), d)]
)
@pytest.mark.parametrize("model", [3, None, "model", np.ones(2)])
def test_a_model_that_is_none(call, model):
    with pytest.raises(TypeError, match="^model: expected a function that calls phx.sample"):
        call(model, {"y": 1.0})
