"""Latent variables inside of NumPyro's loops: NumPyro's densities, joint draws, names, and posteriors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan
from numpyro.infer.util import log_density

import phalanx as phx

STEPS = 12
RNG = np.random.default_rng(0)
Y = RNG.normal(size=STEPS).cumsum().astype(np.float32)


def local_level(y, length=STEPS):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))

    def step(level, y):
        level = numpyro.sample("level", dist.Normal(level, scale))
        numpyro.sample("y", dist.Normal(level, 1.0), obs=y)
        return level, level

    scan(step, 0.0, y, length=length)


def local_trend(y):
    """Two variables of a step, one a vector, beside a deterministic value."""
    scale = phx.sample("scale", dist.HalfNormal(1.0))

    def step(carry, y):
        level, trend = carry
        trend = phx.sample("trend", dist.Normal(trend, 0.3 * scale).expand([2]).to_event(1))
        level = phx.sample("level", dist.Normal(level + trend.sum(), scale))
        phx.deterministic("twice", 2.0 * level)
        phx.sample("y", dist.Laplace(level, 1.0), obs=y)
        return (level, trend), None

    scan(step, (0.0, jnp.zeros(2)), y)


def volatility(y):
    """Autoregressive, with a positive variable of each step."""
    persistence = phx.sample("persistence", dist.Beta(9.0, 1.0))

    def step(log_scale, y):
        log_scale = phx.sample("log_scale", dist.Normal(persistence * log_scale, 0.3))
        mixing = phx.sample("mixing", dist.Gamma(3.0, 3.0))
        phx.sample("y", dist.Normal(0.0, jnp.exp(log_scale) * mixing), obs=y)
        return log_scale, None

    scan(step, jnp.zeros(()), y)


def backwards(y):
    def step(later, y):
        now = phx.sample("now", dist.Normal(0.5 * later, 1.0))
        phx.sample("y", dist.Normal(now, 1.0), obs=y)
        return now, None

    scan(step, 2.0, y, reverse=True)


def values_of(model):
    """Return values of the latent variables of a program: a draw of its prior."""
    draw = phx.predictive(model, {"y": Y}, num_draws=1, seed=3)
    return {name: jnp.asarray(v[0]) for name, v in draw.items() if name not in ("y", "twice")}


@pytest.mark.parametrize("model", [local_level, local_trend, volatility])
def test_value_and_gradient_are_those_of_numpyro(model):
    values = values_of(model)
    ours = jax.value_and_grad(lambda v: phx.log_joint(model)(v, Y))(values)
    theirs = jax.value_and_grad(lambda v: log_density(model, (Y,), {}, v)[0])(values)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5)
    for name, gradient in theirs[1].items():
        np.testing.assert_allclose(ours[1][name], gradient, rtol=1e-4, atol=1e-4, err_msg=name)


def test_the_last_row_comes_first():
    """NumPyro takes values in the order of the steps, and rows in theirs; here both are in the order of rows."""
    now = values_of(backwards)["now"]
    means = 0.5 * jnp.append(now[1:], 2.0)
    expected = dist.Normal(means, 1.0).log_prob(now).sum() + dist.Normal(now, 1.0).log_prob(Y).sum()
    np.testing.assert_allclose(phx.log_joint(backwards)({"now": now}, Y), expected, rtol=1e-5)


def test_variables_of_a_loop_are_drawn_together():
    """The steps of a level are its trends exactly; 50 draws, which separate keys would tear apart."""

    def exact(y):
        def step(carry, y):
            level, trend = carry
            trend = phx.sample("trend", dist.Normal(trend, 1.0))
            level = phx.sample("level", dist.Normal(level + trend, 1e-6))
            phx.sample("y", dist.Normal(level, 1e-6), obs=y)
            return (level, trend), None

        scan(step, (0.0, 0.0), y)

    draws = phx.predictive(exact, {"y": Y}, num_draws=50)
    trend = np.asarray(draws["trend"])
    np.testing.assert_allclose(np.diff(draws["level"], prepend=0.0), trend, atol=1e-3)
    np.testing.assert_allclose(draws["y"], draws["level"], atol=1e-3)
    steps = np.diff(trend, prepend=0.0)
    assert abs(steps.mean()) < 4.5 / np.sqrt(steps.size)
    assert abs(steps.var() - 1) < 4.5 * np.sqrt(2 / steps.size)


def test_outcomes_without_values_are_drawn_step_by_step():
    """An outcome that the next step depends on, and is discrete: each draw follows the one before."""

    def counts(y, length=STEPS):
        rate = phx.sample("rate", dist.Gamma(2.0, 1.0))

        def step(before, y):
            y = phx.sample("y", dist.Poisson(rate + 10.0 * (before == 0)), obs=y)
            return y, None

        scan(step, 0, y, length=length)

    y = np.array([9, 1, 0, 12, 2, 3, 1, 0, 11, 1, 2, 1], np.int32)
    posterior = phx.mcmc(counts, {"y": y}, num_warmup=100, num_samples=50, progress=False)
    drawn = posterior.predictive({"y": None})["y"]
    assert drawn.shape == (4, 50, STEPS)
    follows_zero = np.concatenate([np.ones((4, 50, 1), bool), drawn[..., :-1] == 0], axis=-1)
    assert drawn[follows_zero].mean() > 8 > 4 > drawn[~follows_zero].mean()


def test_a_variable_of_a_loop_may_be_observed_from_outside():
    values = values_of(local_level)
    observed = phx.condition(local_level, {"level": values["level"]})
    joint = phx.log_joint(local_level)(values, Y)
    np.testing.assert_allclose(phx.log_joint(observed)({"scale": values["scale"]}, Y), joint, rtol=1e-6)
    with pytest.raises(ValueError, match=r"Variable 'level': the value has shape \(3,\)"):
        phx.log_joint(phx.condition(local_level, {"level": jnp.zeros(3)}))({"scale": 1.0}, Y)


def test_steps_are_named_time_unless_the_data_name_them():
    run = {"num_chains": 2, "num_warmup": 50, "num_samples": 10, "progress": False}
    posterior = phx.mcmc(local_trend, {"y": Y}, **run)
    assert posterior.to_xarray()["trend"].dims == ("chain", "draw", "time", "trend_dim_1")
    assert posterior.to_xarray()["level"].dims == ("chain", "draw", "time")
    named = phx.mcmc(local_trend, {"y": Y}, dims={"level": ["month"]}, **run)
    assert named.to_xarray()["level"].dims == ("chain", "draw", "month")


def exact_levels(y: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Return means and variances of the levels of a random walk with unit noise, given the data: a normal system."""
    differences = np.eye(len(y)) - np.eye(len(y), k=-1)
    precision = differences.T @ differences / scale**2 + np.eye(len(y))
    covariance = np.linalg.inv(precision)
    return covariance @ y, np.diag(covariance)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 2)], ids=["one device", "rows over two devices"])
def test_the_posterior_is_that_of_the_normal_system(sizes, mesh_of):
    """Means of 12 steps within 4.5 Monte-Carlo errors: a false failure in ten thousand runs."""
    model = phx.condition(local_level, {"scale": 0.7})
    mesh = mesh_of(*sizes)
    run = {"num_chains": 4, "num_warmup": 300, "num_samples": 500, "progress": False, "mesh": mesh}
    posterior = phx.mcmc(model, phx.shard({"y": Y}, mesh), **run)
    mean, variance = exact_levels(Y, 0.7)
    draws = np.asarray(posterior.draws["level"], np.float64)
    error = np.sqrt(variance / phx.diagnostics.ess(draws))
    assert np.all(np.abs(draws.mean((0, 1)) - mean) < 4.5 * error)
    np.testing.assert_allclose(draws.var((0, 1)), variance, rtol=0.35)


def test_draws_go_on_after_the_last_step_of_the_data():
    """Levels of a random walk without noise: forecasts begin where the inferred ones end; NumPyro's own idiom."""

    def walk(y, future=0):
        def step(carry, _):
            level, drift = carry
            drift = numpyro.sample("drift", dist.Normal(drift, 1e-4))
            level = numpyro.sample("level", dist.Normal(level + drift, 0.1))
            seen = numpyro.sample("y", dist.Normal(level, 0.05))
            return (level, drift), seen

        with numpyro.handlers.condition(data={"y": y}):
            _, seen = scan(step, (0.0, 0.5), None, length=len(y) + future)
        numpyro.deterministic("forecast", seen[len(y) :])

    y = (0.5 * np.arange(1, 13) + 0.02 * RNG.normal(size=12)).astype(np.float32)
    run = {"num_chains": 2, "num_warmup": 200, "num_samples": 100, "progress": False}
    posterior = phx.mcmc(walk, {"y": y}, **run)
    assert posterior.draws["level"].shape == (2, 100, 12)
    drawn = posterior.predictive({"y": y, "future": 6})
    assert drawn["y"].shape == (2, 100, 18) and drawn["forecast"].shape == (2, 100, 6)
    np.testing.assert_array_equal(drawn["y"][..., :12], np.broadcast_to(y, (2, 100, 12)))
    last = posterior.draws["level"][..., -1:]
    steps = np.diff(drawn["forecast"], axis=-1, prepend=last)
    assert abs(steps.mean() - 0.5) < 0.03 and 0.08 < steps[..., 1:].std() < 0.2
    with pytest.raises(ValueError, match=r"Variable 'y' is sampled in the 15 steps .* gives it 12 values"):
        phx.log_joint(walk)({"level": jnp.zeros(15), "drift": jnp.zeros(15)}, y, 3)


def test_an_outcome_follows_a_variable_that_is_observed_outside_of_the_seed():
    """The seed offers a key for the levels, too, which a condition outside of it replaces."""
    levels = jnp.linspace(50.0, 90.0, STEPS)
    program = phx.condition(phx.seed(local_level, 0), {"level": levels})
    drawn = phx.trace(program)(None)["y"].value
    assert np.all(np.abs(drawn - levels) < 6.0)
