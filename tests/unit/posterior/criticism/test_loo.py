"""Leave-one-out cross-validation: ArviZ's numbers however they are computed, exact answers, and judgements in words."""

from __future__ import annotations

import re
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from tests.unit.report.posteriors import RECORD

import phalanx as phx
from phalanx.posterior.posterior import Posterior
from phalanx.posterior.record import Timing
from phalanx.reducers.loo import PointwiseLoo

CHAINS, DRAWS, ROWS = 4, 250, 13
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 1)).astype(np.float32)
Y = (X[:, 0] + RNG.normal(size=ROWS)).astype(np.float32)
DATA = {"x": X, "y": Y}


def slope(x, y):
    w = phx.sample("w", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(x[:, 0] * w, 1.0), obs=y)
    return w


def regression(x, y=None):
    slope(x, y)


def hidden_states(y=None):
    w, state, states = phx.sample("w", dist.Normal(0.0, 1.0)), 0, []
    for t in range(4):
        state = phx.sample(f"state_{t}", dist.CategoricalProbs(jnp.array([[0.8, 0.2], [0.3, 0.7]])[state]))
        states.append(state)
    phx.sample("y", dist.Normal(w * jnp.stack(states), 1.0), obs=y)


def posterior_of(model, data=DATA, sd=None, chains=CHAINS, draws=DRAWS) -> Posterior:
    """Independent draws of the exact posterior of `w`, or of another width, without a sampler."""
    precision = 1.0 + (X**2).sum()
    mean = (X[:, 0] * Y).sum() / precision
    drawn = RNG.normal(mean, precision**-0.5 if sd is None else sd, size=(chains, draws))
    record = replace(RECORD, num_chains=chains, num_samples=draws, latents={"w": ""})
    return Posterior({"w": drawn.astype(np.float32)}, {}, Timing(), record, target=phx.Target(model, data))


def left_out_exactly() -> np.ndarray:
    """Log density of each observation given all others, of the conjugate regression."""
    found = []
    for i in range(ROWS):
        rest = np.arange(ROWS) != i
        precision = 1.0 + (X[rest] ** 2).sum()
        mean = (X[rest, 0] * Y[rest]).sum() / precision
        wide = np.sqrt(1.0 + X[i, 0] ** 2 / precision)
        found.append(-0.5 * ((Y[i] - X[i, 0] * mean) / wide) ** 2 - np.log(wide) - 0.5 * np.log(2 * np.pi))
    return np.array(found)


@pytest.fixture(scope="module")
def posterior() -> Posterior:
    return posterior_of(regression)


class TestNumbers:
    def test_the_exact_answer(self, posterior):
        loo = posterior.loo()
        exact = left_out_exactly()
        np.testing.assert_allclose(loo.pointwise["y"], exact, atol=0.05)  # 5 Monte-Carlo errors of the worst
        assert loo.elpd == pytest.approx(exact.sum(), abs=0.1)
        assert loo.se == pytest.approx(np.sqrt(ROWS) * exact.std(), rel=0.05)
        assert 0.2 < loo.p_loo < 1.0 and loo.good and loo.num_bad == 0 and loo.num_observations == ROWS

    @pytest.mark.parametrize("sharded", [False, pytest.param(True, marks=pytest.mark.slow)])
    def test_arviz_agrees_with_what_is_computed_batch_by_batch(self, posterior, sharded, mesh_of, monkeypatch):
        pytest.importorskip("arviz")
        expected = posterior.loo()
        monkeypatch.setattr("phalanx.posterior.criticism.loo.MOST_TERMS", 0)
        size = 3 * DRAWS if sharded else 37  # draws of a batch, which do not divide the chains or their draws
        monkeypatch.setattr("phalanx.posterior.criticism.model_at_draws.BATCH_BYTES", 4 * ROWS * size)
        target = phx.Target(regression, phx.shard(DATA, mesh_of(2, 4))) if sharded else posterior.target
        found = replace(posterior, target=target).loo()
        for name in ("elpd", "se", "p_loo"):
            assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-4, abs=1e-4)
        np.testing.assert_allclose(found.pareto_k["y"], expected.pareto_k["y"], atol=1e-2)

    def test_the_variables_effective_sizes_are_those_of_arviz(self, posterior):
        arviz = pytest.importorskip("arviz")
        if not arviz.__version__.startswith("0."):
            pytest.skip("ArviZ 1.x makes its container otherwise")
        data = arviz.from_dict(
            posterior={"w": posterior.draws["w"]}, log_likelihood={"y": posterior.log_likelihood()["y"]}
        )
        found, expected = posterior.loo(), arviz.loo(data, pointwise=True)
        assert found.elpd == pytest.approx(expected.elpd_loo, rel=1e-5)
        np.testing.assert_allclose(found.pareto_k["y"], expected.pareto_k, atol=1e-4)

    @pytest.mark.slow
    def test_a_run_that_stores_no_draws(self, mesh_of, monkeypatch):
        monkeypatch.setattr("phalanx.posterior.criticism.loo._efficiency", lambda draws: 1.0)  # a reducer has no ESS

        def small(x, y):
            regression(x, y)

        reducers = {"loo": phx.reducers.loo(), "m": phx.reducers.moments()}
        data = phx.shard(DATA, mesh_of(2, 4))
        how = {"num_warmup": 200, "num_samples": DRAWS, "progress": False, "reducers": reducers}
        run = phx.mcmc(small, data, kernel=phx.nuts(max_depth=3), keep=["w"], **how)
        found = replace(run, draws={"other": run["w"]}).loo()
        expected = replace(run, reduced={}).loo()
        assert found.num_draws == CHAINS * DRAWS and found.num_observations == ROWS
        assert found.elpd == pytest.approx(expected.elpd, rel=1e-4)
        np.testing.assert_allclose(found.pointwise["y"], expected.pointwise["y"], atol=1e-3)
        assert set(run.reduced["m"]) == {"w"}

    @pytest.mark.parametrize("by_arviz", [True, False])
    def test_an_observation_that_depends_on_no_variable_is_exact(self, by_arviz, monkeypatch):
        """Its weights are equal, to which no tail is fitted."""
        if not by_arviz:
            monkeypatch.setattr("phalanx.posterior.criticism.loo.MOST_TERMS", 0)
        x = np.where(np.arange(ROWS)[:, None] == 2, 0.0, X).astype(np.float32)
        loo = posterior_of(regression, {"x": x, "y": Y}).loo()
        assert loo.pareto_k["y"][2] == -np.inf and loo.good
        assert loo.pointwise["y"][2] == pytest.approx(-0.5 * Y[2] ** 2 - 0.5 * np.log(2 * np.pi), rel=1e-5)
        assert np.isfinite(np.delete(loo.pareto_k["y"], 2)).all()

    def test_named_variables_are_left_out_and_others_stay_data(self, posterior):
        """The first rows are one outcome, the others another: the terms of each are those of the whole."""

        def two_outcomes(x, y):
            w = phx.sample("w", dist.Normal(0.0, 1.0))
            for name, rows in (("first", slice(5)), ("others", slice(5, None))):
                phx.sample(name, dist.Normal(x[rows, 0] * w, 1.0), obs=y[rows])

        both = replace(posterior, target=phx.Target(two_outcomes, DATA))
        whole, first, others = both.loo(), both.loo(names="first"), both.loo(names=["others"])
        assert list(first.pointwise) == ["first"] and list(others.pointwise) == ["others"]
        assert first.num_observations == 5 and others.num_observations == ROWS - 5
        np.testing.assert_array_equal(first.pointwise["first"], whole.pointwise["first"])
        assert first.elpd + others.elpd == pytest.approx(whole.elpd, rel=1e-5)
        assert first.p_loo + others.p_loo == pytest.approx(whole.p_loo, rel=1e-3)
        with pytest.raises(
            ValueError, match=r"loo: names has 'frist', .* it observes 'first', 'others'\. Did you mean"
        ):
            both.loo(names=["frist"])
        with pytest.raises(ValueError, match=r"loo: names=\[\] has no variable"):
            both.loo(names=[])
        of_run = {name: PointwiseLoo(9, *3 * [np.zeros(size)]) for name, size in (("first", 2), ("others", 3))}
        assert replace(both, draws={}, reduced={"loo": of_run}).loo(names="first").num_observations == 2

    def test_masked_entries_are_no_observations(self):
        def masked(x, y):
            w = phx.sample("w", dist.Normal(0.0, 1.0))
            phx.sample("y", dist.Normal(x[:, 0] * w, 1.0).mask(x[:, 0] > 0), obs=y)

        loo, real = posterior_of(masked).loo(), X[:, 0] > 0
        assert loo.num_observations == real.sum()
        np.testing.assert_array_equal(np.isnan(loo.pointwise["y"]), ~real)
        assert loo.elpd == pytest.approx(loo.pointwise["y"][real].sum(), rel=1e-5)


class TestDrawsOfAGuide:
    """Draws of independent normals around the mean of a posterior with a correlation of -0.9, and their weights."""

    X = RNG.normal(size=(ROWS, 1)) + RNG.normal(size=(ROWS, 2)) * 0.3
    PRECISION = X.T @ X + np.eye(2)
    MEAN = np.linalg.solve(PRECISION, X.T @ Y)

    def exactly(self) -> np.ndarray:
        found = []
        for i in range(ROWS):
            rest = np.arange(ROWS) != i
            covariance = np.linalg.inv(self.X[rest].T @ self.X[rest] + np.eye(2))
            mean, wide = covariance @ self.X[rest].T @ Y[rest], 1.0 + self.X[i] @ covariance @ self.X[i]
            found.append(-0.5 * (Y[i] - self.X[i] @ mean) ** 2 / wide - 0.5 * np.log(2 * np.pi * wide))
        return np.array(found)

    def draws(self, scale: float = 1.5, count: int = 4000) -> Posterior:
        def model(x, y):
            w = phx.sample("w", dist.Normal(0.0, 1.0).expand([2]))
            phx.sample("y", dist.Normal(x @ w, 1.0), obs=y)

        sd = scale * np.diag(self.PRECISION) ** -0.5
        drawn = RNG.normal(self.MEAN, sd, size=(1, count, 2))
        away = drawn - self.MEAN
        log_p, log_q = -0.5 * np.einsum("csi,ij,csj->cs", away, self.PRECISION, away), -0.5 * ((away / sd) ** 2).sum(-1)
        record = replace(RECORD, num_chains=1, num_samples=count, latents={"w": ""}, independent=True)
        stats = {"log_weight": log_p - log_q}
        target = phx.Target(model, {"x": self.X.astype(np.float32), "y": Y})
        return Posterior({"w": drawn.astype(np.float32)}, stats, Timing(), record, target=target)

    def test_weights_make_them_those_of_the_posterior(self):
        guide, exact = self.draws(), self.exactly()
        loo = guide.loo()
        assert loo.weighted and loo.good and "4,000 draws of a guide, weighted by the model" in str(loo)
        np.testing.assert_allclose(loo.pointwise["y"], exact, atol=0.08)
        assert loo.elpd == pytest.approx(exact.sum(), abs=0.2)
        covariance = np.linalg.inv(self.PRECISION)
        wide = 1.0 + np.einsum("ri,ij,rj->r", self.X, covariance, self.X)
        lppd = -0.5 * (Y - self.X @ self.MEAN) ** 2 / wide - 0.5 * np.log(2 * np.pi * wide)
        assert loo.p_loo == pytest.approx(lppd.sum() - exact.sum(), abs=0.2)

    def test_equal_weights_change_nothing(self):
        guide = self.draws()
        equal = replace(guide, stats={"log_weight": np.full((1, 4000), 3.0)})
        assert equal.loo().elpd == replace(guide, stats={}).loo().elpd
        assert not equal.loo().weighted
        nearly = {"log_weight": np.linspace(0.0, 1e-12, 4000)[None]}
        found, expected = replace(guide, stats=nearly).loo(), equal.loo()
        np.testing.assert_allclose(found.pointwise["y"], expected.pointwise["y"], atol=1e-3)
        np.testing.assert_allclose(found.pareto_k["y"], expected.pareto_k["y"], atol=2e-2)

    def test_a_narrow_guide_is_not_good(self):
        loo = self.draws(scale=0.3).loo()
        assert not loo.good and "the guide's draws do not represent the posterior without it. Try a closer" in str(loo)

    def test_too_many_terms(self, monkeypatch):
        monkeypatch.setattr("phalanx.posterior.criticism.loo.MOST_TERMS", 10)
        with pytest.raises(ValueError, match=r"loo: the draws have importance weights, and 4,000 draws of 13 log dens"):
            self.draws().loo()


class TestJudgement:
    def test_good(self, posterior):
        text = str(posterior.loo())
        assert "cross-validation of 13 observations (1,000 draws)" in text
        assert "Good to use: every Pareto k is at most 0.67." in text

    def test_bad(self):
        data = {"x": X, "y": np.where(np.arange(ROWS) == 3, 40.0, Y).astype(np.float32)}
        posterior = posterior_of(regression, data, sd=1.0)
        loo = posterior.loo()
        assert not loo.good and loo.num_bad > 0 and loo.pareto_k["y"][3] > loo.good_k
        assert re.search(r"Not good to use yet: \d+ of 13 observations .*y\[\d+\].*K-fold", loo.verdict)
        houses = {"house": tuple(f"house {number}" for number in range(ROWS))}
        record = replace(posterior.record, dims={"y": ("house",)}, coords=houses)
        assert re.search(r"y\[house \d+\] \d", replace(posterior, record=record).loo().verdict)

    @pytest.mark.parametrize("of", ["rows of the data", "the number of rows", "a number among the data"])
    def test_a_factor_of_the_likelihood_is_left_out(self, of):
        def model(x, y, n=0):
            w = slope(x, y)
            log_mass = -1e-3 * jnp.log1p(w**2)
            rows = x.sum(-1) if of == "rows of the data" else jnp.ones(n or x.shape[0])
            phx.factor("truncation", log_mass * rows)

        loo = posterior_of(model, {**DATA, "n": ROWS} if of == "a number among the data" else DATA).loo()
        assert loo.factors == ("truncation",) and not loo.good
        assert loo.findings[0].topic == "factor left out"
        assert "Not good to use yet: the model also has 'truncation', a term that is no observation" in str(loo)

    def test_a_factor_of_the_prior_is_no_part_of_it(self):
        def model(x, y, width):
            w = slope(x, y)
            phx.factor("soft", -(w**2) / width.sum())

        loo = posterior_of(model, {**DATA, "width": np.ones(3, np.float32)}).loo()
        assert loo.factors == () and "factor left out" not in [finding.topic for finding in loo.findings]

    def test_a_factor_of_a_program_with_its_own_data_may_be_of_the_likelihood(self):
        def model():
            phx.factor("soft", -(slope(X, Y) ** 2))

        assert posterior_of(model, {}).loo().factors == ("soft",)

    def test_one_observation_has_no_others(self):
        def joint(x, y):
            w = phx.sample("w", dist.Normal(0.0, 1.0))
            phx.sample("y", dist.Normal(x[:, 0] * w, 1.0).to_event(1), obs=y)

        loo = posterior_of(joint).loo()
        assert not loo.good and [finding.topic for finding in loo.findings] == ["one observation"]
        assert "has no meaning here: the model has one observation, 'y', and without it no data are left" in loo.verdict
        assert "one by one" not in loo.verdict


class TestRefusals:
    def test_only_a_factor(self):
        def model(x, y):
            w = phx.sample("w", dist.Normal(0.0, 1.0))
            phx.factor("rows", -((y - x[:, 0] * w) ** 2))

        with pytest.raises(ValueError, match=r"loo: 'rows' is a term of the log density \(phx.factor\).*obs=values"):
            posterior_of(model).loo()
        with pytest.raises(ValueError, match=r"reducers\['loo'\]: loo\(200\) reduces the log density of each.*factor"):
            phx.mcmc(model, DATA, reducers={"loo": phx.reducers.loo()}, progress=False)

    def test_observations_that_share_states(self):
        data = {"y": Y[:4]}
        with pytest.raises(ValueError, match=r"loo: the entries of 'y' share discrete variables .*phx.marginalize"):
            posterior_of(phx.marginalize(hidden_states), data).loo()
        with pytest.raises(ValueError, match="share discrete variables that phx.marginalize sums out"):
            phx.mcmc(phx.marginalize(hidden_states), data, reducers={"loo": phx.reducers.loo()}, progress=False)

    def test_scaled_observations(self):
        def model(x, y):
            w = phx.sample("w", dist.Normal(0.0, 1.0))
            phx.scale(lambda: phx.sample("y", dist.Normal(x[:, 0] * w, 1.0), obs=y), 2.0)()

        with pytest.raises(ValueError, match="loo: 'y' has a scaled log density"):
            posterior_of(model).loo()
        with pytest.raises(ValueError, match="reducers: 'y' has a scaled log density"):
            phx.mcmc(model, DATA, reducers={"loo": phx.reducers.loo()}, progress=False)

    def test_no_draws(self, posterior):
        with pytest.raises(ValueError, match=r"loo: there are no draws .* phx.reducers.loo\(\)"):
            replace(posterior, draws={}, record=RECORD).loo()
