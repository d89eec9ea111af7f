"""Fits of models whose posterior is a normal: what is learned is known, and so is what cannot be."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from tests.unit.variational.models import DATA, X, Y, by_hand, exact, regression

import phalanx as phx
from phalanx.density import target

MEAN, COVARIANCE, EVIDENCE = exact()


@pytest.fixture(scope="module")
def full_rank():
    return phx.fit(regression, phx.guides.full_rank(), DATA, progress=False)


@pytest.fixture(scope="module")
def mean_field():
    return phx.fit(regression, phx.guides.mean_field(regression), DATA, progress=False)


@pytest.mark.slow
def test_a_full_rank_guide_becomes_the_posterior(full_rank):
    """The path-derivative gradient has no noise there: what is left is rounding."""
    tril = full_rank.params["scale_tril"]
    np.testing.assert_allclose(full_rank.params["loc"], MEAN, atol=1e-3)
    np.testing.assert_allclose(tril @ tril.T, COVARIANCE, rtol=1e-2, atol=1e-4)
    assert full_rank.settled and full_rank.failed == 0
    verdict = full_rank.verdict()
    assert verdict.good, verdict


@pytest.mark.slow
def test_the_evidence_is_the_evidence(full_rank):
    found = full_rank.evidence()
    assert found.log_evidence == pytest.approx(EVIDENCE, abs=1e-3)
    assert found.elbo == pytest.approx(EVIDENCE, abs=1e-2) and found.reliable
    assert full_rank.losses.elbo[-1] == pytest.approx(EVIDENCE, abs=0.1)


@pytest.mark.slow
def test_independent_coordinates_are_too_narrow_by_as_much_as_is_known(mean_field):
    """Of a normal, the closest one of independent coordinates has the mean, and variances 1 / precision."""
    scale = 1.0 / np.sqrt(np.diag(np.linalg.inv(COVARIANCE)))
    np.testing.assert_allclose(mean_field.params["w.scale"], scale, rtol=0.05)
    np.testing.assert_allclose((mean_field.params["w.loc"] - MEAN) / scale, 0.0, atol=0.1)


def test_the_verdict_sees_that(mean_field):
    verdict = mean_field.verdict()
    assert not verdict.good and "scales off" in [finding.topic for finding in verdict.findings]
    assert "w[0]" in str(verdict)


def test_a_bound_is_below_the_evidence_by_the_divergence(mean_field):
    found = mean_field.evidence()
    gap = 0.5 * (np.sum(np.log(np.diag(np.linalg.inv(COVARIANCE)))) - np.linalg.slogdet(np.linalg.inv(COVARIANCE))[1])
    assert found.elbo == pytest.approx(EVIDENCE - gap, abs=5 * found.elbo_error + 0.05)


@pytest.mark.slow
def test_a_guide_by_hand_learns_the_same(mean_field):
    fit = phx.fit(regression, by_hand, DATA, progress=False)
    scale = mean_field.params["w.scale"]
    np.testing.assert_allclose(fit.params["scale"], scale, rtol=0.08)
    np.testing.assert_allclose((fit.params["loc"] - MEAN) / scale, 0.0, atol=0.1)


@pytest.mark.slow
def test_draws_are_the_same_whoever_asks_and_however_many(full_rank):
    few, many = full_rank.sample(seed=1, n=10), full_rank.sample(seed=1, n=1000)
    assert few["w"].shape == (10, 3) and many["total"].shape == (1000,)
    np.testing.assert_array_equal(few["w"], many["w"][:10])
    assert not np.array_equal(few["w"], full_rank.sample(seed=2, n=10)["w"])
    assert list(full_rank.sample(seed=1, n=10, names=["w"])) == ["w"]


def test_a_posterior_stores_what_is_kept_and_reduces_the_rest(full_rank):
    reducers = {"m": phx.reducers.moments(), "c": phx.reducers.covariance()}
    posterior = full_rank.posterior(700, seed=1, keep="total", reducers=reducers)
    assert list(posterior.draws) == ["total"] and posterior.draws["total"].shape == (1, 700)
    assert posterior.verdict().good and posterior.num_divergences == 0
    total = posterior.draws["total"][0].astype(float)
    assert posterior.reduced["m"]["total"].count == 700
    assert posterior.reduced["m"]["total"].mean == pytest.approx(total.mean(), abs=1e-5)
    assert posterior.reduced["c"]["total"].covariance[0, 0] == pytest.approx(total.var(ddof=1), rel=1e-4)


def test_with_nothing_kept_only_reducers_know(full_rank):
    posterior = full_rank.posterior(500, keep=[], reducers={"m": phx.reducers.moments()})
    draws = full_rank.sample(seed=0, n=500)["w"].astype(float)
    assert posterior.draws == {}
    np.testing.assert_allclose(posterior.reduced["m"]["w"].mean, draws.mean(0), atol=1e-5)


def test_a_posterior_predicts(full_rank):
    drawn = full_rank.posterior(50).predictive({"x": X[:5], "y": None})
    assert drawn["y"].shape == (1, 50, 5)


def test_an_error_in_the_model_of_a_posterior_is_no_missing_model(full_rank, monkeypatch):
    def broken(*_):
        raise ValueError("broken")

    monkeypatch.setattr(target, "check_function", broken)
    with pytest.raises(ValueError, match="^broken$"):
        full_rank.posterior(2)


@pytest.mark.slow
def test_a_model_whose_prior_takes_the_mean_of_all_rows_has_predictions():
    def model(y):
        mean = phx.sample("mean", dist.Normal(jnp.mean(y), 1.0))  # one number, of rows on all devices
        phx.sample("y", dist.Normal(mean, 1.0), obs=y)

    mesh = phx.make_mesh(chain=1, data=2, devices=jax.devices()[:2])
    fit = phx.fit(model, phx.guides.mean_field(), {"y": phx.shard(np.ones(4), mesh)}, num_steps=2, progress=False)
    assert fit.posterior(2).predictive()["y"].shape[-1] == 4


def test_posterior_of_a_fit_has_the_problems_of_the_fit(mean_field):
    verdict = mean_field.posterior(100).verdict()
    assert not verdict.good and verdict.findings[0].topic.startswith("fit: ")


def test_a_file_has_all_but_the_model(full_rank, tmp_path):
    again = phx.Fit.load(full_rank.save(tmp_path / "fit.npz"))
    np.testing.assert_array_equal(again.params["loc"], full_rank.params["loc"])
    np.testing.assert_array_equal(again.losses.elbo, full_rank.losses.elbo)
    assert again.verdict() == full_rank.verdict() and again.record == full_rank.record
    with pytest.raises(ValueError, match="holds no model and no guide"):
        again.sample()
    on = phx.fit(regression, phx.guides.full_rank(), DATA, init=again, num_steps=20, until=False, progress=False)
    np.testing.assert_allclose(on.params["loc"], MEAN, atol=0.1 * np.sqrt(np.diag(COVARIANCE)).max())
    assert not on.settled and "did not check whether" in str(on.verdict())


def test_where_a_file_may_be_written(full_rank, tmp_path):
    with pytest.raises(FileNotFoundError, match="^save: .* there is no folder .*missing'. Make it first"):
        full_rank.save(tmp_path / "missing" / "fit.npz")
    with pytest.raises(ValueError, match=r"fit.nc' ends in '.nc', and netCDF holds draws: fit.posterior\(\).save"):
        full_rank.save(tmp_path / "fit.nc")
    with pytest.raises(ValueError, match="fit.pkl' ends in '.pkl', which is not a format that can be written"):
        full_rank.save(tmp_path / "fit.pkl")
    assert not list(tmp_path.iterdir())


def test_a_wrong_name_is_answered_with_a_near_one(full_rank):
    asked = [
        lambda: full_rank.sample(seed=0, n=2, names=["W"]),
        lambda: full_rank.posterior(2, keep="W"),
        lambda: full_rank.covariance("W"),
        lambda: full_rank.posterior(2)["W"],
    ]
    for wrong in asked:
        with pytest.raises(ValueError, match=r"Did you mean 'w'\?$"):
            wrong()
    table = full_rank.posterior(3).to_dataframe()
    assert list(table.columns[:3]) == ["chain", "draw", "w[0]"] and len(table) == 3


@pytest.mark.slow
def test_a_fit_from_a_file_is_drawn_from_by_no_steps(full_rank, tmp_path):
    read = phx.Fit.load(full_rank.save(tmp_path / "fit"))
    with pytest.raises(ValueError, match="init=fit, num_steps=0"):
        read.sample()
    again = phx.fit(regression, phx.guides.full_rank(), DATA, init=read, num_steps=0, progress=False)
    assert again.steps == 0 and again.losses.elbo.shape == (0,) and "no steps" in repr(again)
    for name, value in full_rank.params.items():
        np.testing.assert_allclose(again.params[name], value, rtol=1e-6, atol=1e-7)
    for name, draws in full_rank.sample(seed=3, n=10).items():
        np.testing.assert_allclose(again.sample(seed=3, n=10)[name], draws, rtol=1e-5, atol=1e-5)
    assert not again.is_proposal and again.posterior(100).draws["w"].shape[:2] == (1, 100)
    assert again.evidence().log_evidence == pytest.approx(full_rank.evidence().log_evidence, abs=1e-3)
    (finding,) = again.verdict().findings
    assert finding.problem.startswith("The fit made no steps and did not check")
    assert phx.Fit.load(again.save(tmp_path / "again")).steps == 0
    assert "no steps" in again.report(tmp_path / "again.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_solved_guide_without_steps_is_the_initial_one():
    solved = phx.fit(regression, phx.guides.laplace(), DATA, progress=False)
    init = {"loc": solved.params["loc"] + 1.0}
    moved = phx.fit(regression, phx.guides.laplace(), DATA, init=init, num_steps=0, progress=False)
    np.testing.assert_allclose(moved.params["loc"], init["loc"], rtol=1e-6)
    for given in (init, solved):
        with pytest.raises(ValueError, match=r"init: 'loc' is a parameter of laplace\(\), which climbs.*num_steps=0"):
            phx.fit(regression, phx.guides.laplace(), DATA, init=given, progress=False)


def test_a_point_where_the_model_can_be_is_a_guide():
    def model():
        scale = phx.sample("scale", dist.HalfNormal(1.0))
        phx.sample("count", dist.Poisson(2.0))
        phx.sample("pair", dist.Gamma(3.0, 1.0).expand([2]).to_event(1))
        phx.sample("y", dist.Normal(0.0, scale), obs=2.0)

    def guide():
        phx.sample("scale", dist.Delta(phx.param("a", 1.0, constraints.positive)))
        phx.sample("count", dist.Delta(1))
        phx.sample("pair", dist.Delta(phx.param("b", np.ones(2), constraints.positive)).to_event(1))

    fit = phx.fit(model, guide, num_particles=2, optimizer=0.05, num_steps=2000, until=False, progress=False)
    mode = np.sqrt((np.sqrt(17.0) - 1.0) / 2.0)  # of log(scale) + scale**2 / 2 + 2 / scale**2: s**4 + s**2 = 4
    assert fit.params["a"] == pytest.approx(mode, rel=1e-2)
    np.testing.assert_allclose(fit.params["b"], 2.0, rtol=1e-2)
    assert "support" in [finding.topic for finding in fit.verdict().findings]


@pytest.mark.slow
def test_a_report_is_a_page_like_that_of_a_run(full_rank, mean_field, tmp_path):
    text = full_rank.report(tmp_path / "fit.html", names="w", beside=mean_field.posterior(200)).read_text("utf-8")
    assert "k-hat" in text and full_rank.verdict().headline in text
    titles = ["Variables", "Beside another run", "Summary", "Posterior predictive check", "Importance weights",
              "Weighted marginals", "Evidence lower bound", "Record"]  # fmt: skip
    assert [title for title in re.findall("<h2>(.*?)</h2>", text) if title in titles] == titles
    assert "Predictive check of y" in text and "Draws of w" in text
    with pytest.raises(ValueError, match="there is no variable 'v'"):
        full_rank.report(tmp_path / "fit.html", names=["v"])


@pytest.mark.slow
def test_chains_begin_at_draws_of_a_fit(full_rank):
    posterior = phx.mcmc(
        regression, DATA, init=full_rank, kernel=phx.hmc(5), num_warmup=10, num_samples=10, progress=False
    )
    assert posterior.record.init == "draws of a fit (w)"


@pytest.mark.slow
def test_a_model_has_parameters_too():
    """The scale of the noise that makes the data most probable, with everything else integrated out."""

    def learned_noise(x, y):
        noise = phx.param("noise", 1.0, constraints.positive)
        w = phx.sample("w", dist.Normal(0.0, 2.0).expand([x.shape[1]]))
        phx.sample("y", dist.Normal(x @ w, noise), obs=y)

    def evidence(noise):
        marginal = 4.0 * X.astype(float) @ X.T + noise**2 * np.eye(len(Y))
        return -0.5 * (np.linalg.slogdet(marginal)[1] + Y @ np.linalg.solve(marginal, Y))

    fit = phx.fit(learned_noise, phx.guides.full_rank(), DATA, progress=False)
    best = max(np.linspace(0.2, 1.0, 401), key=evidence)
    assert fit.params["noise"] == pytest.approx(best, rel=0.02)
    assert fit.posterior(20).predictive({"x": X[:2], "y": None})["y"].shape == (1, 20, 2)


@pytest.mark.slow
def test_a_full_covariance_of_many_coordinates_is_learned_at_the_default_rate():
    """Steps of a fixed size for each entry, of which there are thousands, would stretch it ever further."""
    generator, size = np.random.default_rng(0), 120
    factors = generator.normal(size=(size, 5))
    covariance = np.diag(generator.uniform(0.2, 2.0, size)) + factors @ factors.T
    tril = np.linalg.cholesky(covariance).astype(np.float32)

    def model():
        phx.sample("x", dist.MultivariateNormal(np.zeros(size, np.float32), scale_tril=tril))

    fit = phx.fit(model, phx.guides.full_rank(), num_steps=2500, progress=False)
    assert fit.failed == 0
    bounds = fit.losses.elbo  # exactly zero at the answer
    assert bounds[-100:].mean() > -0.5 and bounds.min() > 3.0 * bounds[0]


@pytest.mark.slow
def test_a_support_may_depend_on_another_variable():
    """It is known while the model is traced alone; a fit has to ask for it there."""

    def model(y):
        most = phx.sample("most", dist.Uniform(1.0, 2.0))
        less = phx.sample("less", dist.Uniform(0.0, most))
        phx.sample("y", dist.Normal(most - less, 0.1), obs=y)

    fit = phx.fit(model, phx.guides.full_rank(), {"y": np.full(5, 0.5)}, num_steps=300, progress=False)
    draws = fit.sample(seed=0, n=500)
    assert (draws["less"] < draws["most"]).all()
    assert abs(np.mean(draws["most"] - draws["less"]) - 0.5) < 0.1
