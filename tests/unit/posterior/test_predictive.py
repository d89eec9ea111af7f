"""Predictive draws: noise of its own for every draw, the same on every mesh, and refusals by name."""

from __future__ import annotations

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from tests.unit.report.posteriors import RECORD, make_posterior

import phalanx as phx
from phalanx.posterior.posterior import Posterior
from phalanx.posterior.record import Timing

ROWS, CHAINS, DRAWS = 12, 4, 250
X = np.random.default_rng(0).normal(size=(ROWS, 2)).astype(np.float32)
GROUP = np.arange(ROWS) % 3


def regression(x, y=None):
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([2]))
    s = phx.sample("s", dist.HalfNormal(1.0))
    mean = phx.deterministic("mean", x @ w)
    phx.sample("y", dist.Normal(mean, s), obs=y)


def groups(group, y=None):
    level = phx.sample("level", dist.Normal(0.0, 2.0).expand([3]))
    phx.sample("y", dist.Poisson(jnp.exp(level[group])), obs=y)


def counts(n, k=None):
    p = phx.sample("p", dist.Beta(2.0, 2.0))
    phx.sample("k", dist.Binomial(n, p), obs=k)


def vectors(y=None):
    mean = phx.sample("mean", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    rows = jnp.broadcast_to(mean, (5, 3)), jnp.broadcast_to(jnp.eye(3), (5, 3, 3))
    phx.sample("y", dist.MultivariateNormal(*rows), obs=y)


def theirs(x, y=None):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Laplace(a * x[:, 0], 1.0), obs=y)


MODELS = {
    "regression": (regression, {"x": X, "y": np.zeros(ROWS, np.float32)}, "y"),
    "vectors": (vectors, {"y": np.zeros((5, 3), np.float32)}, "y"),
    "numpyro": (phx.from_numpyro(theirs), {"x": X, "y": np.zeros(ROWS, np.float32)}, "y"),
    "groups": (groups, {"group": GROUP, "y": np.ones(ROWS, int)}, "y"),
    "counts": (counts, {"n": np.full(6, 20), "k": np.full(6, 7)}, "k"),
}
QUICK = {("numpyro", "posterior")}
AGREEMENTS = [
    pytest.param(model, kind, marks=[] if (model, kind) in QUICK else pytest.mark.slow)
    for model in MODELS
    for kind in ("posterior", "prior")
]


def drawn_by_hand(model, data, chains=CHAINS, draws=DRAWS) -> Posterior:
    """What a run would return whose posterior is the prior: no sampler is needed to look at what follows it."""
    target = phx.Target(model, data)
    names = [latent.name for latent in target.sites.latents]
    keys = jax.random.split(jax.random.key(7), chains * draws)
    values = jax.jit(jax.vmap(lambda key: {n: phx.Joint(model).sample(key, **data)[n] for n in names}))(keys)
    shaped = {name: np.asarray(v).reshape(chains, draws, *v.shape[1:]) for name, v in values.items()}
    latents = dict.fromkeys(names, "")
    record = replace(RECORD, num_chains=chains, num_samples=draws, latents=latents)
    return Posterior(shaped, {}, Timing(), record, target=target)


@pytest.fixture(scope="module")
def drawn() -> Posterior:
    return drawn_by_hand(regression, MODELS["regression"][1])


class TestPrior:
    @pytest.mark.slow
    def test_every_variable_is_drawn_without_a_run(self, drawn):
        found = phx.predictive(regression, {"x": X}, num_draws=DRAWS, seed=3)
        expected = drawn.predictive({"x": X}, kind="prior", seed=3)
        assert {name: values.shape for name, values in found.items()} == {
            "w": (DRAWS, 2), "s": (DRAWS,), "mean": (DRAWS, ROWS), "y": (DRAWS, ROWS)
        }  # fmt: skip
        np.testing.assert_allclose(found["mean"], found["w"] @ X.T, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found["y"], expected["y"][0, :DRAWS], rtol=1e-5, atol=1e-6)
        drawn_again = phx.predictive(regression, {"x": X, "y": np.zeros(ROWS)}, num_draws=2, seed=3)
        np.testing.assert_allclose(drawn_again["y"], found["y"][:2], rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"kind": "posterior"}, ValueError, "kind must be 'prior'; got 'posterior'. Draws from a posterior"),
            ({"num_draws": 0}, ValueError, "num_draws must be a whole number, at least 1; got 0."),
            ({"data": {}}, TypeError, "missing a required argument: 'x'"),
        ],
        ids=str,
    )
    def test_wrong_options_are_named(self, options, error, message):
        with pytest.raises(error, match=re.escape(message)):
            phx.predictive(regression, **{"data": {"x": X}, **options})


class TestPredictWithAKey:
    def test_every_draw_has_a_key_of_its_own(self):
        noise = make_posterior(4, 500).predict(lambda draw, key: jax.random.normal(key))
        assert len(np.unique(noise)) == 2000
        assert abs(noise.mean()) < 5 / np.sqrt(2000)  # one in a million fails by chance
        assert abs(noise.std() - 1) < 5 / np.sqrt(4000)

    @pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.slow), 7])
    def test_keys_depend_on_nothing_but_seed_chain_and_draw(self, batch_size):
        def noise(chains, draws, **how):
            return make_posterior(chains, draws).predict(lambda draw, key: jax.random.normal(key, (2,)), **how)

        expected = noise(3, 11)
        np.testing.assert_array_equal(noise(3, 11, batch_size=batch_size), expected)
        np.testing.assert_array_equal(noise(2, 8, batch_size=batch_size), expected[:2, :8])
        assert not np.isin(noise(3, 11, seed=1), expected).any()

    def test_a_default_is_no_place_for_a_key(self):
        posterior = make_posterior(2, 3)
        twice = posterior.predict(lambda draw, factor=2.0: factor * draw["b"])
        np.testing.assert_allclose(twice, 2 * posterior.draws["b"], rtol=1e-5)
        assert len(np.unique(posterior.predict(lambda draw, key=None: jax.random.normal(key)))) == 6  # pyright: ignore[reportArgumentType]
        assert len(np.unique(posterior.predict(lambda *both: both[0]["b"]))) == 6

    def test_a_seed_that_is_none_is_refused(self):
        with pytest.raises(ValueError, match="seed must be a whole number"):
            make_posterior(2, 3).predict(lambda draw: draw["b"], seed=-1)

    @pytest.mark.parametrize("name", ["missing", "b", 3])
    def test_a_key_error_of_the_users_own_stays_one(self, name):
        with pytest.raises(KeyError, match=str(name)):
            make_posterior(2, 3).predict(lambda draw: draw["b"] * {}[name])


class TestPredictive:
    @pytest.mark.parametrize("model, kind", AGREEMENTS)
    def test_agrees_with_numpyro(self, model, kind):
        model, data, name = MODELS[model]
        posterior = drawn_by_hand(model, data)
        ours = posterior.predictive(kind=kind)[name]
        assert ours.shape == (CHAINS, DRAWS, *data[name].shape)

        flat = {n: v.reshape(-1, *v.shape[2:]) for n, v in posterior.draws.items()}
        peer = numpyro.infer.Predictive(model, None if kind == "prior" else flat, num_samples=CHAINS * DRAWS)
        expected = np.asarray(peer(jax.random.key(3), **{**data, name: None})[name])
        ours = ours.reshape(expected.shape).astype(float)
        for statistic in (lambda v: np.tanh(v / 3), lambda v: np.tanh(v / 3) ** 2):
            a, b = statistic(ours), statistic(expected)
            error = np.sqrt((a.var(axis=0) + b.var(axis=0)) / len(a))
            assert (np.abs(a.mean(axis=0) - b.mean(axis=0)) <= 5.5 * error + 1e-6).all()  # one in a million by chance

    def test_noise_is_independent_from_draw_to_draw_and_row_to_row(self, drawn):
        found = drawn.predictive()
        np.testing.assert_allclose(found["mean"], np.einsum("rk,cdk->cdr", X, drawn.draws["w"]), rtol=1e-4, atol=1e-5)
        noise = ((found["y"] - found["mean"]) / drawn.draws["s"][..., None]).reshape(-1, ROWS)
        count = len(noise)
        assert abs(noise.std() - 1) < 5 / np.sqrt(2 * noise.size)
        rows = np.corrcoef(noise.T)[np.triu_indices(ROWS, 1)]
        following = [np.corrcoef(noise[:-lag].ravel(), noise[lag:].ravel())[0, 1] for lag in (1, DRAWS, 2 * DRAWS)]
        assert np.abs(rows).max() < 5.5 / np.sqrt(count)
        assert np.abs(following).max() < 5.5 / np.sqrt(noise.size / 2)

    def test_the_latent_noise_of_the_prior_is_not_that_of_the_data(self, drawn):
        found = drawn.predictive(kind="prior")
        assert set(found) == {"w", "s", "mean", "y"}
        noise = (found["y"] - found["mean"]) / found["s"][..., None]
        assert abs(np.corrcoef(noise[..., 0].ravel(), found["w"][..., 0].ravel())[0, 1]) < 5 / np.sqrt(CHAINS * DRAWS)

    def test_observed_arguments_may_be_given_left_out_or_none(self, drawn):
        few = replace(drawn, draws={name: values[:2, :3] for name, values in drawn.draws.items()})
        expected = drawn.predictive()["y"][:2, :3]
        for data in ({"x": X}, {"x": X, "y": None}, {"x": X, "y": np.full(ROWS, 9.0, np.float32)}):
            np.testing.assert_allclose(few.predictive(data)["y"], expected, rtol=1e-5, atol=1e-6)

    def test_new_data_may_have_other_rows(self, drawn):
        found = drawn.predictive({"x": np.ones((5, 2), np.float32)})
        assert found["y"].shape == (CHAINS, DRAWS, 5)
        np.testing.assert_allclose(found["mean"][..., 0], drawn.draws["w"].sum(-1), rtol=1e-4, atol=1e-5)

    def test_one_number_per_observed_value_where_a_scalar_distribution_has_many(self):
        def model(y):
            phx.sample("y", dist.Normal(phx.sample("m", dist.Normal(0.0, 1.0)), 1.0), obs=y)

        found = drawn_by_hand(model, {"y": np.zeros(7, np.float32)}, 2, 3).predictive()["y"]
        assert found.shape == (2, 3, 7) and len(np.unique(found)) == 42

    @pytest.mark.slow
    @pytest.mark.parametrize("rows", [pytest.param(ROWS, marks=pytest.mark.slow), ROWS - 1])
    def test_meshes_change_nothing(self, drawn, mesh_of, rows):
        data = {"x": X[:rows], "y": np.zeros(rows, np.float32)}
        expected = drawn.predictive(data)
        found = drawn.predictive(phx.shard(data, mesh_of(2, 4)))
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-6)

    def test_local_variables_and_the_models_own_sums_over_devices(self, mesh_of):
        def model(x, y):
            scale = phx.sample("scale", dist.InverseGamma(3.0, 2.0).expand([x.shape[0]]))
            centred = x[:, 0] - jax.lax.pmean(x[:, 0].mean(), "data")
            phx.deterministic("centred", centred)
            phx.sample("y", dist.Normal(centred, scale), obs=y)

        data = {"x": X, "y": np.zeros(ROWS, np.float32)}
        mesh = mesh_of(2, 4)
        target = phx.Target(model, phx.shard(data, mesh))
        draws = {"scale": np.random.default_rng(0).gamma(3.0, size=(4, 6, ROWS)).astype(np.float32)}
        posterior = Posterior(draws, {}, Timing(), replace(RECORD, latents={"scale": ""}), target=target)
        found = posterior.predictive()
        np.testing.assert_allclose(found["centred"][0, 0], X[:, 0] - X[:, 0].mean(), rtol=1e-4, atol=1e-5)
        assert found["y"].shape == (4, 6, ROWS)
        whole = posterior.predictive(data)
        np.testing.assert_allclose(whole["y"], found["y"], rtol=1e-4, atol=1e-5)


class TestWhichDraws:
    def test_some_draws_are_those_of_all(self, drawn):
        found, every = drawn.predictive(num_draws=40, keep="y"), drawn.predictive()
        assert set(found) == {"y"} and found["y"].shape == (CHAINS, 40, ROWS)
        np.testing.assert_allclose(found["y"], every["y"][:, np.arange(40) * DRAWS // 40], rtol=1e-5, atol=1e-5)

    @pytest.mark.slow
    def test_the_prior_has_as_many_as_are_asked_for(self, drawn):
        found = drawn.predictive(kind="prior", num_draws=DRAWS + 9, keep=["w", "y"])
        assert {name: v.shape for name, v in found.items()} == {
            "w": (CHAINS, DRAWS + 9, 2), "y": (CHAINS, DRAWS + 9, ROWS)
        }  # fmt: skip
        np.testing.assert_allclose(found["w"][:, :DRAWS], drawn.predictive(kind="prior")["w"], rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("keep, sharded", [(["y"], False), pytest.param([], True, marks=pytest.mark.slow)], ids=str)
    def test_draws_are_reduced_batch_by_batch(self, drawn, keep, sharded, mesh_of, monkeypatch):
        every = drawn.predictive()
        residual = ((every["y"] - every["mean"]) / drawn.draws["s"][..., None]).reshape(-1, ROWS)
        monkeypatch.setattr("phalanx.posterior.criticism.model_at_draws.BATCH_BYTES", 4 * 2 * ROWS * CHAINS * 37)
        monkeypatch.setattr("phalanx.posterior.criticism.reduced_results.MOST_DRAWS", 100)
        reducers = {
            "moments": phx.reducers.moments(),
            "residual": phx.reduce(lambda v: (v["y"] - v["mean"]) / v["s"], phx.reducers.moments()),
        }
        data = {"x": X, "y": np.zeros(ROWS, np.float32)}
        found = drawn.predictive(phx.shard(data, mesh_of(2, 4)) if sharded else None, keep=keep, reducers=reducers)
        assert set(found) == set(keep)
        assert set(found.reduced["moments"]) == set(keep or ["mean", "y"])
        moments = found.reduced["moments"]["y"]
        assert moments.count == CHAINS * DRAWS
        flat = every["y"].reshape(-1, ROWS)
        np.testing.assert_allclose(moments.mean, flat.mean(0), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found.reduced["residual"].variance, residual.var(0, ddof=1), rtol=1e-3)

    def test_the_prior_alone_is_reduced(self):
        found = phx.predictive(regression, {"x": X}, num_draws=300, keep="y", reducers={"m": phx.reducers.extremes()})
        np.testing.assert_allclose(found.reduced["m"]["y"].most, found["y"].max(0), rtol=1e-5)

    @pytest.mark.parametrize(
        "options, message",
        [
            ({"num_draws": 0}, "num_draws must be a whole number, at least 1; got 0."),
            ({"num_draws": 300}, "num_draws=300 of each chain, and there are 250. Draw longer"),
            ({"keep": ["y", "z"]}, "keep has 'z', which the model does not draw or compute here; it has 'mean', 'y'."),
            ({"keep": []}, "keep=[] returns no variable; name some, or give reducers=."),
            ({"reducers": {"m": phx.reduce(lambda v: v["z"], phx.reducers.moments())}}, "there is no variable 'z'"),
        ],
        ids=lambda value: value if isinstance(value, str) else " ",
    )
    def test_wrong_options_are_named(self, drawn, options, message):
        with pytest.raises(ValueError, match=re.escape(message)):
            drawn.predictive(**options)


class TestCounterfactuals:
    def test_an_intervention_changes_what_follows_it_and_nothing_before(self):
        def model(dose=None, effect=None):
            risk = phx.sample("risk", dist.Normal(0.0, 1.0))
            given = phx.sample("dose", dist.Normal(risk, 0.1).expand([3]), obs=dose)
            phx.sample("effect", dist.Normal(2.0 * given, 0.1), obs=effect)

        data = {"dose": np.array([0.0, 1.0, 2.0], np.float32), "effect": np.array([0.0, 2.0, 4.0], np.float32)}
        posterior = drawn_by_hand(model, data, 2, 50)
        factual = posterior.predictive({"effect": data["effect"]})
        np.testing.assert_allclose(factual["effect"], 2 * factual["dose"], atol=0.6)  # 6 standard deviations
        other = posterior.predictive({}, model=phx.do(model, {"dose": 5.0 * jnp.ones(3)}))
        assert (other["dose"] == 5.0).all()
        np.testing.assert_allclose(other["effect"], 10.0, atol=0.6)

    def test_latent_mediators_follow(self):
        mediated = drawn_by_hand(mediators, MEDIATED, 2, 50)
        assert set(mediated.draws) == {"slope", "first", "second"}
        for data in ({}, None):  # without data, and with those of the run
            other = mediated.predictive(data, model=phx.do(mediators, {"dose": 100.0}))
            assert {"first", "second", "effect"} <= set(other) and "slope" not in other
            np.testing.assert_allclose(other["effect"], 100.0 + mediated["slope"], atol=1.5)  # 6 standard deviations
            assert np.std(other["second"] - mediated["slope"]) > 0.1
        after = mediated.predictive(model=phx.do(mediators, {"second": 7.0}))
        assert "first" not in after
        np.testing.assert_allclose(after["effect"], 7.0, atol=0.6)

    def test_a_mediator_follows_an_observed_variable_that_is_drawn_anew(self):
        mediated = drawn_by_hand(mediators, MEDIATED, 2, 50)
        anew = mediated.predictive({"dose": None, "effect": None})
        np.testing.assert_allclose(anew["first"], anew["dose"], atol=0.6)
        assert not {"first", "second"} & set(mediated.predictive())  # the dose has its data

    def test_hierarchies_keep_their_draws(self):
        def model(x, dose=None, y=None):
            mean = phx.sample("mean", dist.Normal(0.0, 1.0))
            level = phx.sample("level", dist.Normal(mean + x.mean(), 0.5).expand([2]))
            given = phx.sample("dose", dist.Normal(0.0, 1.0), obs=dose)
            phx.sample("y", dist.Normal(level + given, 1e-3), obs=y)

        data = {"x": np.ones(3, np.float32), "dose": np.float32(1.0), "y": np.zeros(2, np.float32)}
        posterior = drawn_by_hand(model, data, 2, 50)
        new = {"x": np.zeros(5, np.float32)}
        for program, dose in ((None, None), (model, None), (phx.do(model, {"dose": 3.0}), 3.0)):
            found = posterior.predictive(new, model=program)
            assert "level" not in found and "mean" not in found
            dose = found["dose"] if dose is None else dose
            np.testing.assert_allclose(found["y"], posterior["level"] + np.asarray(dose)[..., None], atol=1e-2)

    def test_values_that_the_run_set_are_no_intervention(self):
        def model(y=None):
            scale = phx.sample("scale", dist.HalfNormal(1.0))
            level = phx.sample("level", dist.Normal(0.0, scale))
            phx.sample("y", dist.Normal(level, 1.0), obs=y)

        fixed = phx.do(model, {"scale": 2.0})
        posterior = drawn_by_hand(fixed, {"y": np.float32(0.0)}, 2, 50)
        known = replace(posterior, record=replace(posterior.record, observed=("y",)), target=None)
        assert "level" not in posterior.predictive({}, model=fixed)
        assert "level" not in known.predictive({}, model=fixed)


def ages(age=None, out=None):
    centre = phx.sample("centre", dist.Normal(50.0, 1.0))
    age = phx.sample("age", dist.Normal(centre, 10.0).expand([2 if age is None else age.shape[0]]), obs=age)
    phx.sample("out", dist.Normal(age, 1e-3), obs=out)


@pytest.fixture(scope="module")
def aged() -> Posterior:
    return drawn_by_hand(ages, {"age": np.array([40.0, 60.0], np.float32), "out": np.zeros(2, np.float32)}, 2, 200)


class TestKnownCovariates:
    """An observed variable on which others depend is held at its data."""

    @pytest.mark.parametrize("data", [{"age": [20.0, 80.0]}, {"age": [20.0, 80.0], "out": [0.0, 0.0]}])
    @pytest.mark.parametrize("kind", ["posterior", "prior"])
    def test_predictions_are_at_the_new_values(self, aged, data, kind):
        found = aged.predictive(data, kind=kind)
        assert (found["age"] == np.array([20.0, 80.0])).all()
        np.testing.assert_allclose(found["out"], found["age"], atol=0.01)
        assert (found["out"] != found["age"]).mean() > 0.5  # the outcome is drawn

    def test_the_data_of_the_run_are_held_and_its_outcomes_drawn(self, aged):
        found = aged.predictive()
        assert (found["age"] == np.array([40.0, 60.0])).all()
        assert np.ptp(found["out"], axis=(0, 1)).min() > 1e-3
        assert list(aged.predictive(keep="out")) == ["out"]

    def test_without_a_run(self):
        found = phx.predictive(ages, {"age": np.array([20.0, 80.0])}, num_draws=50)
        np.testing.assert_allclose(found["out"], np.array([[20.0, 80.0]] * 50), atol=0.01)
        assert phx.predictive(ages, {"age": np.array([20.0, 80.0])}, num_draws=50, given=[])["age"].std() > 3.0

    def test_missing_entries_are_drawn(self, aged):
        found = aged.predictive({"age": [np.nan, 80.0, np.nan]})
        assert (found["age"][..., 1] == 80.0).all()
        drawn = found["age"][..., [0, 2]]
        error = 10.0 / np.sqrt(drawn.size / 2)
        assert abs(drawn.mean() - aged["centre"].mean()) < 4 * error
        assert abs(np.corrcoef(drawn[..., 0].ravel(), drawn[..., 1].ravel())[0, 1]) < 0.3
        np.testing.assert_allclose(found["out"], found["age"], atol=0.01)

    def test_names_choose_what_is_held(self, aged):
        every = aged.predictive({"age": [20.0, 80.0]}, given=[])
        assert every["age"].std((0, 1)).min() > 5.0  # 10 for each of 400 draws
        both = aged.predictive({"age": [20.0, 80.0], "out": [1.0, 2.0]}, given=["age", "out"])
        assert (both["age"] == [20.0, 80.0]).all() and (both["out"] == [1.0, 2.0]).all()
        np.testing.assert_array_equal(aged.predictive({"age": [20.0, 80.0]}, given="age")["age"][0, 0], [20.0, 80.0])

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ("agee", "given has 'agee', which these data do not observe; they observe 'age'. Did you mean 'age'?"),
            (["centre"], "given has 'centre', which these data do not observe; they observe 'age'. Give its values"),
        ],
    )
    def test_a_name_that_is_not_observed(self, aged, given, message):
        with pytest.raises(ValueError, match=re.escape(message)):
            aged.predictive({"age": [20.0, 80.0]}, given=given)

    def test_latent_variables_between_follow_other_values_alone(self):
        mediated = drawn_by_hand(mediators, MEDIATED, 2, 50)
        other = mediated.predictive({"dose": 100.0, "effect": None})
        np.testing.assert_allclose(other["first"], 100.0, atol=0.6)
        np.testing.assert_allclose(other["effect"], 100.0 + mediated["slope"], atol=1.5)
        for data in (None, MEDIATED, {"dose": 1.0}):
            assert not {"first", "second"} & set(mediated.predictive(data))

    def test_entries_of_a_vector_are_drawn_given_the_others(self):
        def model(x, y=None):
            covariance = jnp.broadcast_to(jnp.array([[1.0, 0.8], [0.8, 1.0]]), (3, 2, 2))
            x = phx.sample("x", dist.MultivariateNormal(jnp.zeros((3, 2)), covariance), obs=x)
            slope = phx.sample("slope", dist.Normal(0.0, 1.0))
            phx.sample("y", dist.Normal(slope * x.sum(-1), 1.0), obs=y)

        data = {"x": np.zeros((3, 2), np.float32), "y": np.zeros(3, np.float32)}
        posterior = drawn_by_hand(model, data, 4, 250)
        found = posterior.predictive({"x": np.array([[2.0, np.nan], [np.nan, np.nan], [1.0, 1.0]])}, keep="x")["x"]
        assert (found[..., 0, 0] == 2.0).all() and (found[..., 2, :] == 1.0).all()
        drawn = found[..., 0, 1].ravel()  # of a normal of mean 1.6 and standard deviation 0.6
        assert abs(drawn.mean() - 1.6) < 5 * 0.6 / np.sqrt(1000) and abs(drawn.std() - 0.6) < 5 * 0.6 / np.sqrt(2000)
        assert abs(np.corrcoef(found[..., 1, :].reshape(-1, 2).T)[0, 1] - 0.8) < 5 * 0.36 / np.sqrt(1000)

    def test_variables_that_cannot_be_drawn_given_the_others_are_refused(self):
        def shares(x, y=None):
            x = phx.sample("x", dist.Dirichlet(jnp.ones((2, 3))), obs=x)
            phx.sample("y", dist.Normal(x[:, 0], 1.0), obs=y)

        with pytest.raises(ValueError, match=r"variable 'x' is held at its data, and an event of its Dirichlet misses"):
            phx.predictive(shares, {"x": np.array([[0.2, 0.3, 0.5], [0.1, np.nan, 0.4]])}, num_draws=5)

        def chain(a=None, b=None, c=None):
            a = phx.sample("a", dist.Normal(0.0, 1.0), obs=a)
            b = phx.sample("b", dist.Normal(a, 1.0), obs=b)
            phx.sample("c", dist.Normal(b, 1.0), obs=c)

        with pytest.raises(ValueError, match=r"'a' has missing entries, and 'b', which depends on it, is held"):
            phx.predictive(chain, {"a": np.nan, "b": 1.0}, num_draws=5)
        assert phx.predictive(chain, {"a": np.nan, "b": 1.0}, num_draws=50, given=["a"])["b"].std() > 0.0


def mediators(dose=None, effect=None):
    slope = phx.sample("slope", dist.Normal(0.0, 1.0))
    given = phx.sample("dose", dist.Normal(0.0, 1.0), obs=dose)
    first = phx.sample("first", dist.Normal(given, 0.1))
    second = phx.sample("second", dist.Normal(jnp.stack([first])[0] + slope, 0.1))
    phx.sample("effect", dist.Normal(second, 0.1), obs=effect)


MEDIATED = {"dose": np.float32(1.0), "effect": np.float32(2.0)}


def sized(x, y=None):
    local = phx.sample("local", dist.Normal(0.0, 1.0).expand([x.shape[0]]))
    phx.sample("y", dist.Normal(local, 1.0), obs=y)


class TestRefusals:
    def test_a_variable_of_the_rows_of_the_run(self):
        posterior = drawn_by_hand(sized, {"x": X, "y": np.zeros(ROWS, np.float32)}, 2, 3)
        with pytest.raises(ValueError, match=r"variable 'local' was inferred with shape \(12,\), .* shape \(5,\)"):
            posterior.predictive({"x": X[:5]})
        with pytest.raises(ValueError, match=r"variable 'local' was inferred with shape \(12,\), .* shape \(1,\)"):
            posterior.predictive({"x": X[:1]})  # which would broadcast
        assert posterior.predictive({"x": X[:5]}, kind="prior")["y"].shape == (2, 3, 5)

    def test_a_variable_that_was_not_kept(self, drawn):
        without = replace(drawn, draws={"w": drawn.draws["w"]})
        with pytest.raises(ValueError, match="the draws of variable 's' were not kept; they hold 'w'"):
            without.predictive()

    @pytest.mark.parametrize("kind", ["posterior", "prior"])
    def test_a_factor(self, kind):
        def model(y):
            m = phx.sample("m", dist.Normal(0.0, 1.0))
            phx.factor("soft", -(m**2))
            phx.sample("y", dist.Normal(m, 1.0), obs=y)

        posterior = drawn_by_hand(model, {"y": np.zeros(3, np.float32)}, 2, 3)
        with pytest.raises(ValueError, match="'soft' is a factor, .*phx.block"):
            posterior.predictive(kind=kind)
        assert posterior.predictive(model=phx.block(model, ["soft"]))["y"].shape == (2, 3, 3)

    def test_a_prior_that_cannot_be_drawn_from(self):
        def model(y):
            m = phx.sample("m", dist.ImproperUniform(dist.constraints.real, (), ()))
            phx.sample("y", dist.Normal(m, 1.0), obs=y)

        latents, draws = {"m": ""}, {"m": np.zeros((2, 3), np.float32)}
        target = phx.Target(model, {"y": np.zeros(3, np.float32)})
        posterior = Posterior(draws, {}, Timing(), replace(RECORD, num_chains=2, latents=latents), target=target)
        assert posterior.predictive()["y"].shape == (2, 3, 3)
        with pytest.raises(ValueError, match=r"Variable 'm': ImproperUniform cannot be drawn from\."):
            posterior.predictive(kind="prior")

    def test_inferred_variable_that_is_now_observed_is_refused(self):
        def model(z=None, y=None):
            z = phx.sample("z", dist.Normal(0.0, 1.0), obs=z)
            phx.sample("y", dist.Normal(z, 1.0), obs=y)

        posterior = drawn_by_hand(model, {"y": np.float32(1.0)}, 2, 3)
        with pytest.raises(
            ValueError, match=r"variable 'z' was inferred in the run, and these data observe it\..*phx.do"
        ):
            posterior.predictive({"z": np.float32(3.0)})
        assert (posterior.predictive({}, model=phx.do(model, {"z": 3.0}))["z"] == 3.0).all()

    def test_a_renamed_variable(self, drawn):
        def renamed(x, y=None):
            weights = phx.sample("weights", dist.Normal(0.0, 1.0).expand([2]))
            phx.sample("y", dist.Normal(x @ weights, phx.sample("s", dist.HalfNormal(1.0))), obs=y)

        for posterior in (drawn, replace(drawn, target=None)):
            with pytest.raises(
                ValueError, match="the model has no variable 'w', which the run inferred; it has 'weights'"
            ):
                posterior.predictive({"x": X}, model=renamed)

    def test_a_loaded_posterior_is_given_the_model(self, drawn, tmp_path):
        loaded = Posterior.load(drawn.save(tmp_path / "run.npz"))
        with pytest.raises(ValueError, match=re.escape("posterior.predictive(data, model=model)")):
            loaded.predictive({"x": X})
        np.testing.assert_array_equal(loaded.predictive({"x": X}, model=regression)["y"], drawn.predictive()["y"])
        with pytest.raises(TypeError, match="data does not fit the model regression.*missing a required argument: 'x'"):
            loaded.predictive(model=regression)

    @pytest.mark.parametrize(
        "arguments, error, message",
        [
            ({"kind": "both"}, ValueError, "kind must be 'posterior' or 'prior'; got 'both'"),
            ({"seed": 1.5}, ValueError, "seed must be a whole number"),
            ({"data": [X]}, TypeError, "data must be a dict"),
            ({"model": "regression"}, TypeError, "model must be a function; got str"),
        ],
    )
    def test_wrong_arguments(self, drawn, arguments, error, message):
        with pytest.raises(error, match=message):
            drawn.predictive(**arguments)

    def test_nothing_to_draw(self):
        posterior = drawn_by_hand(lambda: phx.sample("m", dist.Normal(0.0, 1.0)), {}, 2, 3)
        with pytest.raises(ValueError, match="the model has no observed variable"):
            posterior.predictive()
        with pytest.raises(ValueError, match="there are no draws to predict at: 2 chains of 0 draws"):
            replace(posterior, draws={}).predictive()


def test_entries_have_the_names_of_the_data_they_are_drawn_for():
    def model(x, y=None):
        w = phx.sample("w", dist.Normal(0.0, 1.0).expand([2]))
        phx.deterministic("twice", 2 * w)
        phx.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    rows, terms = tuple(f"house {number}" for number in range(ROWS)), ("age", "size")
    posterior = drawn_by_hand(model, {"x": X, "y": np.zeros(ROWS, np.float32)}, 1, 4)
    dims, coords = {"w": ("term",), "twice": ("term",), "y": ("house",)}, {"term": terms, "house": rows}
    posterior = replace(posterior, record=replace(posterior.record, dims=dims, coords=coords))
    assert posterior.predictive().labels == {"twice": (terms,), "y": (rows,)}
    assert posterior.predictive({"x": X + 1}).labels == {"twice": (terms,), "y": (None,)}  # other houses
    named = pd.DataFrame(X, columns=[*terms], index=pd.Index([f"flat {n}" for n in range(ROWS)], name="flat"))
    found = phx.predictive(model, {"x": named}, num_draws=2)
    assert found.labels["w"] == (terms,) and found.labels["y"] == (tuple(named.index),)


def test_counts_beyond_32_bits_are_reported():
    def model(y=None, rate=1e10):
        phx.sample("y", dist.Poisson(rate).expand([2]), obs=y)

    words = (
        "predictive: 10 of 10 numbers drawn of 'y' are the largest or smallest that int32 holds, 2,147,483,647 or "
        "-2,147,483,648, in place of those beyond. Turn on 64 bits before JAX computes, "
        "jax.config.update('jax_enable_x64', True), or count in a larger unit."
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(words)}$"):
        phx.predictive(model, num_draws=5)
    phx.predictive(model, {"rate": 1e9}, num_draws=5)
