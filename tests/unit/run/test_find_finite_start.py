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


def test_model_without_a_finite_gradient_is_refused():
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

    monkeypatch.setattr("phalanx.run.build.compile_blocks", refuse)

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


def raw_units(x, y):
    """Regression in raw units, whose log densities begin at -1e14."""
    a = phx.sample("a", dist.Normal(0.0, 1e6))
    b = phx.sample("b", dist.Normal(0.0, 10.0))
    phx.sample("y", dist.Normal(a + b * x, phx.sample("s", dist.HalfNormal(1e6))), obs=y)


def raw_data(seed):
    random = np.random.default_rng(seed)
    x = random.normal(1e6, 3e5, 200)
    return {"x": x.astype(np.float32), "y": (2.5e5 + 1.7 * x + random.normal(0, 5e4, 200)).astype(np.float32)}


SINGLE = {"num_warmup": 0, "num_samples": 1, "progress": False}
"""A run of one draw; with a tiny step size, it shows where chains begin."""


def test_a_chain_climbs_from_where_rounding_would_hold_it():
    sampler = phx.compile(raw_units, raw_data(0), kernel=phx.hmc(num_steps=1, step_size=1e-12), num_chains=4)
    given = {"a": 0.0, "b": 1.0, "s": 2.0}
    held = sampler.run(0, init=given, **SINGLE)
    assert "climb" not in sampler.executables.rare  # compiled only where a chain climbs
    for name, value in given.items():
        np.testing.assert_allclose(held.draws[name], value, rtol=1e-5, atol=1e-6)
    first = sampler.run(0, **SINGLE)
    assert "climb" in sampler.executables.rare
    assert (first.draws["s"] > 2e4).all() and (first.draws["s"] < 1e6).all()
    partly = sampler.run(0, init={"b": 1.0}, **SINGLE)
    assert (partly.draws["b"] == 1.0).all() and (partly.draws["s"] > 5e5).all()


def test_chains_of_a_model_in_usual_units_begin_at_random():
    def model(y):
        phx.sample("y", dist.Normal(phx.sample("x", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    sampler = phx.compile(model, {"y": np.ones(9, np.float32)}, kernel=phx.hmc(1, step_size=1e-6), num_chains=4)
    assert np.ptp(sampler.run(0, **SINGLE).draws["x"]) > 0.2
    assert not sampler.executables.rare


def test_only_chains_that_are_far_climb():
    """Half of the starts of `x` are near the data, whose likelihood reaches -1e12 within a unit."""

    def model(scale):
        x = phx.sample("x", dist.Uniform(0.0, 1.0))
        phx.factor("f", -scale * jnp.square(jnp.maximum(x - 0.5, 0.0)))

    sampler = phx.compile(model, {"scale": np.float32(0)}, kernel=phx.hmc(1, step_size=1e-12), num_chains=16)
    random, climbing = (
        sampler.run(0, data={"scale": np.float32(scale)}, **SINGLE).draws["x"][:, 0] for scale in (0, 1e12)
    )
    near = random < 0.5
    assert near.any() and not near.all()
    np.testing.assert_allclose(climbing[near], random[near], rtol=1e-5)
    assert (climbing[~near] < 0.501).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_regression_in_raw_units_is_right(seed):
    data = raw_data(seed)
    posterior = phx.mcmc(raw_units, data, num_chains=4, num_warmup=300, num_samples=300, progress=False)
    design = np.stack([np.ones(200), data["x"]], 1).astype(float)
    _, (square,), *_ = np.linalg.lstsq(design, data["y"].astype(float))
    noise = np.sqrt(square / 198)
    assert abs(posterior.draws["s"].mean(1) - noise).max() < noise / 20  # one standard deviation of the posterior
    assert np.max(posterior.summary()["r_hat"]) < 1.06


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unit_x", "unit_y"), [(1e-6, 1e-6), (1e-3, 1e-6), (1e3, 1e-6), (1e-6, 1e6), (1e-3, 1e6), (1e3, 1e6), (1e6, 1e6)]
)
def test_regressions_in_all_units_are_right(unit_x, unit_y):
    def model(x, y):
        a = phx.sample("a", dist.Normal(0.0, 10 * unit_y))
        b = phx.sample("b", dist.Normal(0.0, 100 * unit_y / unit_x))
        phx.sample("y", dist.Normal(a + b * x, phx.sample("s", dist.HalfNormal(10 * unit_y))), obs=y)

    for seed in range(6):
        random = np.random.default_rng(seed)
        x = random.normal(1.0, 0.3, 200)
        y = 0.2 + 1.7 * x + random.normal(0, 0.3, 200)
        data = {"x": (unit_x * x).astype(np.float32), "y": (unit_y * y).astype(np.float32)}
        posterior = phx.mcmc(model, data, num_chains=4, progress=False)
        _, (square,), *_ = np.linalg.lstsq(np.stack([np.ones(200), x], 1), y)
        noise = unit_y * np.sqrt(square / 198)
        assert abs(posterior.draws["s"].mean(1) - noise).max() < noise / 20
        assert np.max(posterior.summary()["r_hat"]) < 1.02
