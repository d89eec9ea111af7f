"""Neural transport: the density is the model's at what noise becomes, and chains find the model's posterior."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from tests.unit.variational.models import DATA, by_hand, exact, regression
from tests.unit.variational.test_structured import hierarchy

import phalanx as phx
from phalanx.diagnostics.convergence import mcse
from phalanx.programs.unconstrained import run_unconstrained

SHORT = {"num_steps": 5, "until": False, "progress": False}
Y = np.random.default_rng(0).normal(size=16).astype(np.float32)


def bounded(y):
    """Supports that depend on one another, and parameters of the model."""
    top = phx.sample("top", dist.LogNormal(0.0, 1.0))
    part = phx.sample("part", dist.Uniform(0.0, top))
    shares = phx.sample("shares", dist.Dirichlet(jnp.ones(3)))
    corner = phx.sample("corner", dist.LKJCholesky(3, 1.0))
    scaled = phx.scale(lambda: phx.sample("scaled", dist.Normal(part, 1.0)), 0.5)()
    total = phx.deterministic("total", top + shares[0] + corner[1, 0] + scaled)
    phx.factor("term", -(total**2))
    noise_level = phx.param("level", 2.0, constraints.positive)
    phx.sample("y", dist.Normal(total, noise_level), obs=y)


def total_of(program, position, data):
    run = run_unconstrained(program, position, data)
    return sum(float(jnp.sum(term)) for term in run.terms().values()), run.values()


@pytest.mark.slow
@pytest.mark.parametrize("guide", [phx.guides.full_rank(), phx.guides.flow(hidden=(4,))], ids=["full_rank", "flow"])
def test_the_density_is_the_models(guide):
    fit = phx.fit(bounded, guide, {"y": Y}, **SHORT)
    program = phx.reparameterize(bounded, fit)
    assert fit.pair is not None
    size = sum(int(np.prod(latent.unconstrained_shape)) for latent in fit.pair.problem.latents)
    noise = jnp.asarray(np.random.default_rng(1).normal(size=size), jnp.float32)
    found, values = total_of(program, {"noise": noise}, {"y": Y})
    params = {name: fit.params[name] for name in fit.params if name != "level"}
    pushed = fit.pair.guide.transport(params, fit.pair.problem.latents)(noise)
    model = phx.substitute(bounded, {"level": fit.params["level"]})
    expected, theirs = total_of(model, pushed.position, {"y": Y})
    assert found == pytest.approx(expected + float(pushed.log_det), rel=1e-5, abs=1e-3)
    assert set(values) == {"noise", *theirs}
    for name, value in theirs.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-5)


@pytest.fixture(scope="module")
def fit():
    return phx.fit(regression, phx.guides.laplace(), DATA, progress=False)


@pytest.mark.slow
def test_the_density_of_normals_is_the_models(fit):
    noise = jnp.array([0.5, -1.0, 2.0])
    found, values = total_of(phx.reparameterize(regression, fit), {"noise": noise}, DATA)
    pushed = fit.pair.guide.transport(fit.params, fit.pair.problem.latents)(noise)
    expected, theirs = total_of(regression, pushed.position, DATA)
    assert found == pytest.approx(expected + float(pushed.log_det), rel=1e-5, abs=1e-3)
    np.testing.assert_allclose(values["total"], theirs["total"], rtol=1e-5)


def test_wrong_options_are_refused(fit):
    with pytest.raises(TypeError, match="reparameterize: the first argument is the model, a function; got int"):
        phx.reparameterize(1, fit)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="reparameterize: the second argument is a fit, from phx.fit; got dict"):
        phx.reparameterize(regression, {})  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        ValueError, match="variable 'each' is not among those of the fit, 'w': it was made with another"
    ):
        phx.trace(phx.seed(phx.reparameterize(lambda: phx.sample("each", dist.Normal(0.0, 1.0)), fit), 0))()
    wider = {**DATA, "x": np.ones((24, 4), np.float32)}
    with pytest.raises(ValueError, match=r"'w' has unconstrained values of shape \(3,\) in the fit, and \(4,\) here"):
        phx.trace(phx.seed(phx.reparameterize(regression, fit), 0))(**wider)


@pytest.mark.slow
def test_guides_and_names_that_cannot_be_are_refused(tmp_path):
    def named():
        phx.sample("noise", dist.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match="the model has a variable 'noise', the name of the standard normals"):
        phx.reparameterize(named, phx.fit(named, phx.guides.mean_field(), **SHORT))

    with pytest.raises(ValueError, match="the guide by_hand is a program, not a transform"):
        phx.reparameterize(regression, phx.fit(regression, by_hand, DATA, **SHORT))
    solved = phx.fit(regression, phx.guides.pathfinder(num_paths=2), DATA, progress=False)
    with pytest.raises(ValueError, match=r"the guide pathfinder\(num_paths=2\) is not a transform of standard normals"):
        phx.reparameterize(regression, solved)
    with pytest.raises(ValueError, match="this fit was read from a file, which holds no model and no guide"):
        phx.reparameterize(regression, phx.Fit.load(solved.save(tmp_path / "fit.npz")))


@pytest.mark.slow
@pytest.mark.parametrize("guide", [phx.guides.low_rank(rank=2), phx.guides.flow()], ids=["low_rank", "flow"])
def test_chains_find_the_posterior(guide):
    """Means within 4.5 standard errors: 3 means, a rate of false alarms of 2e-5."""
    fit = phx.fit(regression, guide, DATA, num_steps=500, until=False, progress=False)
    posterior = phx.mcmc(phx.reparameterize(regression, fit), DATA, progress=False)
    mean, covariance, _ = exact()
    summary = posterior.summary()
    draws = posterior.draws["w"].reshape(-1, 3)
    errors = np.array([summary.loc[f"w[{i}]", "mcse_mean"] for i in range(3)])
    assert (np.abs(draws.mean(0) - mean) < 4.5 * errors).all()
    np.testing.assert_allclose(np.cov(draws.T), covariance, rtol=0.2, atol=0.1 * np.abs(covariance).max())
    assert set(posterior.draws) == {"noise", "w"}
    predicted = posterior.predictive(model=phx.block(phx.reparameterize(regression, fit), ["transport"]))
    assert predicted["y"].shape[-1] == 24


@pytest.mark.slow
@pytest.mark.parametrize("guide", ["mean_field", "structured", "flow"])
def test_variables_of_rows_stay_as_they_are(guide, mesh_of):
    mesh = mesh_of(2, 4)
    data = phx.shard({"y": Y}, mesh)
    fit = phx.fit(hierarchy, getattr(phx.guides, guide)(), data, mesh=mesh, num_steps=300, until=False, progress=False)
    posterior = phx.mcmc(phx.reparameterize(hierarchy, fit), data, mesh=mesh, progress=False)
    precision = 1 / 25.0 + len(Y) / 2.0
    level, error = posterior.draws["level"], posterior.summary().loc["level", "mcse_mean"]
    assert abs(level.mean() - Y.sum() / 2.0 / precision) < 4.5 * error
    assert level.std() == pytest.approx(precision**-0.5, rel=0.1)
    each = posterior.draws["each"]
    assert each.shape == (4, 1000, 16)
    expected = 0.5 * (Y + Y.sum() / 2.0 / precision)
    assert np.abs(each.mean((0, 1)) - expected).max() < 0.15


@pytest.mark.slow
def test_variables_on_different_devices_do_not_move_together(mesh_of):
    mesh = mesh_of(1, 8)
    data = phx.shard({"y": Y}, mesh)
    fit = phx.fit(hierarchy, phx.guides.full_rank(), data, mesh=mesh, **SHORT)
    with pytest.raises(
        ValueError, match=r"variable 'each' has its rows where the data's rows lie.*full_rank\(\) moves"
    ):
        phx.reparameterize(hierarchy, fit)


@pytest.mark.slow
def test_a_fit_on_one_device_leads_chains_whose_rows_lie_on_many(mesh_of):
    """The level is known in closed form, to five standard errors: a rate of 6e-7."""
    mesh = mesh_of(1, 8)
    fit = phx.fit(hierarchy, phx.guides.mean_field(), {"y": Y}, **SHORT)
    program = phx.reparameterize(hierarchy, fit)
    posterior = phx.mcmc(program, phx.shard({"y": Y}, mesh), mesh=mesh, progress=False)
    precision = len(Y) / 2 + 1 / 25
    level = posterior.draws["level"]
    assert abs(level.mean() - Y.sum() / 2 / precision) < 5 * mcse(level)
    assert posterior.draws["each"].shape[2:] == Y.shape


def funnel():
    omega = phx.sample("omega", dist.Normal(0.0, 3.0))
    phx.sample("x", dist.Normal(0.0, jnp.exp(omega / 2)).expand([99]))


@pytest.mark.slow
def test_a_funnel_is_gone_through():
    """The tail, P(omega < -5) = 0.0478, within 4.5 standard errors of the effective draws: a rate of 7e-6."""
    fit = phx.fit(funnel, phx.guides.flow(), num_particles=32, progress=False)
    posterior = phx.mcmc(phx.reparameterize(funnel, fit), progress=False)
    summary = posterior.summary().filter(regex="^(omega|x)", axis=0)
    assert len(summary) == 100 and posterior.stats["diverging"].mean() < 0.005
    assert summary[["ess_bulk", "ess_tail"]].to_numpy().min() > 1000
    tail = 0.0478
    effective = summary.loc["omega", "ess_tail"]
    assert abs((posterior.draws["omega"] < -5).mean() - tail) < 4.5 * np.sqrt(tail * (1 - tail) / effective)
