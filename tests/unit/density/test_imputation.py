"""Missing entries of observed variables as latent ones: their density, names, draws; and refusals by name."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.scipy.stats import beta, gamma, norm

import phalanx as phx
from phalanx.density.given_entries import of_given_entries
from phalanx.density.imputation import impute
from phalanx.density.target import Target
from phalanx.posterior.criticism.model_at_draws import with_model
from phalanx.programs.validity import VALUE, find_invalid, nan_hint

NAN = np.nan


def normal(y):
    mean = phx.sample("mean", dist.Normal(0.0, 2.0))
    phx.sample("y", dist.Normal(mean, 1.5), obs=y)


def target_of(model, data, mesh=None):
    program, data, _ = impute(model, data, mesh)
    return Target(program, data, mesh=mesh)


def log_density(model, data, **position):
    return float(target_of(model, data).log_density({name: jnp.asarray(u) for name, u in position.items()}))


@given(st.lists(st.one_of(st.floats(-3.0, 3.0), st.just(NAN)), min_size=1, max_size=7))
@settings(max_examples=4, deadline=None)
def test_the_density_is_that_of_all_entries_once(y):
    y = np.array(y)
    missing = np.isnan(y)
    drawn = np.linspace(-1.0, 1.0, missing.sum())
    whole = y.copy()
    whole[missing] = drawn
    expected = norm.logpdf(0.3, 0.0, 2.0) + norm.logpdf(whole, 0.3, 1.5).sum()
    given = {"y_missing": drawn} if missing.any() else {}
    assert log_density(normal, {"y": y}, mean=0.3, **given) == pytest.approx(float(expected), abs=1e-4)


def test_constrained_values_stay_in_their_support():
    def model(p, t, z):
        phx.sample("shape", dist.HalfNormal(1.0))
        phx.sample("p", dist.Beta(2.0 * jnp.ones(2), 3.0), obs=p)
        phx.sample("t", dist.Gamma(2.0, 1.0), obs=t)
        phx.sample("z", dist.Uniform(jnp.array([0.0, 5.0]), jnp.array([1.0, 7.0])), obs=z)

    data = {"p": [0.5, NAN], "t": [NAN, 2.0, NAN], "z": [0.5, NAN]}
    target = target_of(model, data)
    position = {"shape": 0.0, "p_missing": np.zeros(1), "t_missing": np.array([0.0, 1.0]), "z_missing": np.zeros(1)}
    position = {name: jnp.asarray(u) for name, u in position.items()}
    values = target.constrain(position)
    np.testing.assert_allclose(values["t_missing"], np.exp([0.0, 1.0]), rtol=1e-6)
    np.testing.assert_allclose(values["p_missing"], [0.5])
    np.testing.assert_allclose(values["z_missing"], [6.0])
    expected = dist.HalfNormal(1.0).log_prob(1.0) + beta.logpdf(jnp.array([0.5, 0.5]), 2.0, 3.0).sum()
    expected += gamma.logpdf(jnp.array([1.0, 2.0, np.e]), 2.0).sum() + np.log(1 / 1) + np.log(1 / 2)
    jacobian = np.log(0.25) + (0.0 + 1.0) + np.log(2 * 0.25)  # of the logistic, of exp twice, and of 5 + 2 logistic
    assert float(target.log_density(position)) == pytest.approx(float(expected) + jacobian, abs=1e-4)


def test_entries_of_events_with_real_entries_are_imputed():
    covariance = jnp.array([[1.0, 0.6], [0.6, 2.0]])

    def model(y):
        phx.sample("m", dist.Normal(0.0, 1.0))
        phx.sample("y", dist.MultivariateNormal(jnp.zeros((3, 2)), covariance), obs=y)

    y = np.array([[0.3, NAN], [NAN, NAN], [1.0, 1.0]])
    whole = np.array([[0.3, 0.1], [0.2, 0.4], [1.0, 1.0]])
    expected = norm.logpdf(0.0) + dist.MultivariateNormal(jnp.zeros((3, 2)), covariance).log_prob(whole).sum()
    found = log_density(model, {"y": y}, m=0.0, y_missing=np.array([0.1, 0.2, 0.4]))
    assert found == pytest.approx(float(expected), abs=1e-4)


def test_a_value_computed_from_data_and_a_numpyro_model():
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
        with numpyro.plate("rows", 3):
            numpyro.sample("log_y", dist.Normal(mean, 1.0), obs=jnp.log(y))

    expected = norm.logpdf(0.0, 0.0, 2.0) + norm.logpdf(np.array([0.0, 0.7, np.log(2.0)])).sum()
    found = log_density(model, {"y": np.array([1.0, NAN, 2.0])}, mean=0.0, log_y_missing=np.array([0.7]))
    assert found == pytest.approx(float(expected), abs=1e-5)


COUNTS = {
    "floats": np.array([3.0, NAN, 0.0]),
    "masked": np.ma.masked_array([3, 999, 0], [False, True, False]),
    "nullable": pd.Series([3, None, 0], dtype="Int64"),
    "a list": [3, None, 0],
}


@pytest.mark.parametrize("y", COUNTS.values(), ids=COUNTS)
def test_missing_discrete_entries_are_left_out(y):
    def model(y):
        rate = phx.sample("rate", dist.Gamma(2.0, 1.0))
        phx.sample("y", dist.Poisson(rate), obs=y)

    def complete(y):
        return model(y)

    expected = Target(complete, {"y": np.array([3, 0])}).log_density({"rate": jnp.asarray(0.4)})
    assert log_density(model, {"y": y}, rate=0.4) == pytest.approx(float(expected), abs=1e-5)


def test_a_categorical_with_missing_words_is_left_out():
    def model(level):
        weight = phx.sample("weight", dist.Beta(1.0, 1.0))
        phx.sample("level", dist.Bernoulli(weight).expand([4]), obs=level)

    level = pd.Series(["no", None, "yes", "yes"], dtype="category")
    assert log_density(model, {"level": level}, weight=0.0) == pytest.approx(5 * np.log(0.5))  # 2 of the jacobian


@pytest.mark.parametrize("rows", [8, 7], ids=["even", "padded"])
def test_sharded_rows_have_the_density_of_rows_on_one_device(rows):
    mesh = phx.make_mesh(chain=1, data=4)
    y = np.linspace(-1.0, 1.0, rows)
    y[[0, 3, rows - 1]] = NAN
    x = np.ones(rows)
    x[2] = NAN

    def model(x, y):
        mean = phx.sample("mean", dist.Normal(0.0, 1.0))
        x = phx.sample("x", dist.LogNormal(0.0, 1.0), obs=x)
        phx.sample("y", dist.Normal(mean * x, 1.0), obs=y)

    sharded, alone = target_of(model, phx.shard({"x": x, "y": y}, mesh)), target_of(model, {"x": x, "y": y})
    position = {"mean": jnp.asarray(0.5), "x_missing": jnp.array([0.3]), "y_missing": jnp.array([0.1, -0.2, 0.7])}
    (total, gradient), (expected, slope) = sharded.value_and_grad(position), alone.value_and_grad(position)
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    for name in position:
        np.testing.assert_allclose(gradient[name], slope[name], rtol=1e-5)


def test_nothing_missing_leaves_the_model_as_it_is():
    program, data, said = impute(normal, {"y": [1.0, 2.0]})
    assert program is normal and set(data) == {"y"} and said == ()


def covariate(x, y):
    slope = phx.sample("slope", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(slope * x, 1.0), obs=y)


def used_elsewhere(n, y):
    rate = phx.sample("rate", dist.Gamma(2.0, 1.0))
    n = phx.sample("n", dist.Poisson(rate), obs=n)
    phx.sample("y", dist.Normal(n, 1.0), obs=y)


def on_the_simplex(p):
    scale = phx.sample("scale", dist.HalfNormal(1.0))
    phx.sample("p", dist.Dirichlet(scale * jnp.ones(3)), obs=p)


def counted_together(k):
    p = phx.sample("p", dist.Dirichlet(jnp.ones(3)))
    phx.sample("k", dist.Multinomial(5, p), obs=k)


def with_this_name(y):
    phx.sample("m", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(0.0, 1.0), obs=y)
    phx.sample("y_missing", dist.Normal(0.0, 1.0), obs=0.0)


def twice(x):
    mean = phx.sample("mean", dist.Normal(0.0, 1.0))
    phx.sample("u", dist.Normal(mean, 1.0), obs=x)
    phx.sample("v", dist.Normal(0.0, 1.0), obs=x)


def twice_by_a_transform(x):
    mean = phx.sample("mean", dist.Normal(0.0, 1.0))
    phx.sample("u", dist.Normal(mean, 1.0), obs=x[:2])
    phx.sample("v", dist.Normal(0.0, 1.0), obs=jnp.exp(x[1:]))


def counted_twice(x):
    rate = phx.sample("rate", dist.Gamma(2.0, 1.0))
    phx.sample("u", dist.Poisson(rate), obs=x)
    phx.sample("v", dist.Poisson(2.0), obs=x)


def columns(x):
    mean = phx.sample("mean", dist.Normal(0.0, 1.0))
    phx.sample("u", dist.Normal(mean, 1.0), obs=x[:, 0])
    phx.sample("v", dist.Normal(0.0, 1.0), obs=x[:, 1])


WHOLE = np.ma.masked_array([1, 2, 3], [False, True, False])
REFUSED = {
    "a covariate of real numbers": (covariate, {"x": [1.0, NAN], "y": [1.0, 2.0]}, r"x has 1 NaN.*obs=x"),
    "a covariate of whole numbers": (
        covariate, {"x": WHOLE, "y": np.ones(3)}, r"x has 1 missing entry, and no variable observes.*obs=x\)",
    ),
    "a discrete variable that another uses": (
        used_elsewhere, {"n": WHOLE, "y": np.ones(3)}, r"'n' is discrete \(Poisson\).*'y' depends",
    ),
    "the same as floats": (
        used_elsewhere, {"n": [1.0, NAN], "y": np.ones(2)}, r"'n' is discrete \(Poisson\).*'y' depends",
    ),
    "an argument used beside its variable": (
        lambda n, y: (phx.sample("n", dist.Poisson(phx.sample("r", dist.Gamma(2.0, 1.0))), obs=n),
                      phx.sample("y", dist.Normal(n, 1.0), obs=y)),
        {"n": WHOLE, "y": np.ones(3)}, r"n has missing entries, and 'y' uses it as a covariate",
    ),
    "an argument that two variables observe": (twice, {"x": [1.0, NAN, 2.0]}, r"x has .*'u' and 'v' both observe"),
    "an entry that two variables observe": (
        twice_by_a_transform, {"x": [1.0, NAN, 2.0]}, r"x has .*'u' and 'v' both observe",
    ),
    "whole numbers that two variables observe": (counted_twice, {"x": WHOLE}, r"x has .*'u' and 'v' both observe"),
    "an entry of a simplex": (on_the_simplex, {"p": [[0.2, 0.3, NAN]]}, r"'p' has 1 missing entry.*Dirichlet"),
    "an entry of a count": (counted_together, {"k": [[2.0, NAN, 1.0]]}, r"'k' has 1 missing entry.*Multinomial"),
    "a name that is taken": (with_this_name, {"y": [NAN, 1.0]}, r"'y_missing'.*rename"),
    "only missing counts": (
        lambda y: phx.sample("y", dist.Poisson(phx.sample("r", dist.Gamma(2.0, 1.0))), obs=y),
        {"y": np.ma.masked_array([1, 2], [True, True])}, r"y has no entry",
    ),
}  # fmt: skip


@pytest.mark.parametrize("model, data, words", REFUSED.values(), ids=REFUSED)
def test_refused_by_name(model, data, words):
    with pytest.raises(ValueError, match=words):
        phx.compile(model, data, missing="impute")


def test_two_variables_may_observe_entries_of_one_argument():
    found = impute(columns, {"x": [[1.0, NAN], [NAN, 2.0], [3.0, 1.0], [NAN, NAN]]})
    assert found.said == (
        "missing: 2 missing entries of 'u', imputed as 'u_missing'.",
        "missing: 2 missing entries of 'v', imputed as 'v_missing'.",
    )
    impute(twice_by_a_transform, {"x": [NAN, 1.0, NAN]})


@pytest.mark.parametrize("rows", [8, 7])
def test_bounds_by_row_of_sharded_rows_are_those_of_one_device(rows):
    """Missing entries lie on several devices, one of which has a padded row."""
    low = np.arange(rows, dtype=np.float32)
    data = {"low": low, "y": np.where(np.isin(low, [1, 3, 6]), NAN, low + 0.5).astype(np.float32)}

    def model(low, y):
        width = phx.sample("width", dist.LogNormal(0.0, 1.0))
        phx.sample("y", dist.Uniform(low, low + 1.0 + width), obs=y)

    def target_of(data, mesh):
        imputed = impute(model, data, mesh)
        return phx.Target(imputed.program, imputed.data, mesh=mesh)

    mesh = phx.make_mesh(chain=1, data=4)
    one, several = target_of(data, None), target_of(phx.shard(data, mesh), mesh)
    position = one.initial_position(jax.random.key(0))
    assert position["y_missing"].shape == (3,)
    for ours, theirs in zip(
        jax.tree.leaves(several.value_and_grad(position)), jax.tree.leaves(one.value_and_grad(position)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    np.testing.assert_allclose(
        several.constrain(position)["y_missing"], one.constrain(position)["y_missing"], rtol=1e-6
    )


@pytest.mark.parametrize("y", [WHOLE, pd.Series([1, None, 2], dtype="Int64")], ids=["masked", "NA"])
def test_without_missing_the_refusal_names_the_way_out(y):
    with pytest.raises(ValueError, match=r'missing="impute"'):
        phx.mcmc(normal, {"y": y})


def test_missing_entries_that_the_model_reads_itself_are_no_argument():
    y = np.array([1.0, np.nan, 2.0], np.float32)

    def model():
        phx.sample("y", dist.Normal(phx.sample("mean", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    assert impute(model, {}).program is model
    target = phx.Target(model)
    wrong = find_invalid(model, target.arguments, target.mesh, ())["y", VALUE]
    words = (
        "No argument of the model holds NaN.*Make it an argument, as in def model\\(y\\), and pass the data: missing="
    )
    assert re.search(words, wrong.said("y", "", ""))
    assert "Check the data" in wrong.said("y", "", nan_hint(["x"], [y]))


def test_other_words_are_refused():
    with pytest.raises(ValueError, match=r"missing: expected"):
        phx.mcmc(normal, {"y": [1.0]}, missing="drop")
    with pytest.raises(ValueError, match=r"missing: entries of data that come in batches"):
        phx.fit(normal, phx.guides.mean_field(), iter([{"y": [1.0]}]), num_rows=3, missing="impute")


Y = np.array([0.5, NAN, 1.5, NAN, 2.5, 0.0])


@pytest.fixture(scope="module")
def sampler():
    return phx.compile(normal, {"y": Y}, num_chains=4, missing="impute")


@pytest.fixture(scope="module")
def posterior(sampler):
    return sampler.run(seed=1, num_warmup=200, num_samples=1000, progress=False)


@pytest.mark.slow
def test_draws_are_those_of_the_posterior(posterior):
    known = Y[~np.isnan(Y)]
    variance = 1 / (1 / 4.0 + len(known) / 2.25)
    mean, sd = variance * known.sum() / 2.25, np.sqrt(variance)
    drawn = posterior.draws["y_missing"]
    assert drawn.shape == (4, 1000, 2) and list(posterior.draws) == ["mean", "y_missing"]
    table = posterior.summary()
    for name, expected in (("mean", sd), ("y_missing[1]", np.hypot(sd, 1.5)), ("y_missing[3]", np.hypot(sd, 1.5))):
        assert abs(table.loc[name, "mean"] - mean) < 5 * table.loc[name, "mcse_mean"]
        assert abs(table.loc[name, "sd"] - expected) < 5 * table.loc[name, "mcse_sd"]


@pytest.mark.slow
def test_predictions_are_of_the_whole_variable(posterior):
    assert {name: x.shape for name, x in posterior.predictive().items()} == {"y": (4, 1000, 6)}
    assert set(posterior.predictive(kind="prior")) == {"mean", "y"}


@pytest.mark.slow
def test_the_log_likelihood_is_that_of_given_entries(posterior):
    found, mean = posterior.log_likelihood()["y"], posterior.draws["mean"]
    assert found.shape == (4, 1000, 6) and not found[:, :, np.isnan(Y)].any()
    np.testing.assert_allclose(found[:, :, 2], norm.logpdf(1.5, mean, 1.5), rtol=1e-4)
    assert posterior.loo().num_observations == 4


def test_a_saved_run_and_its_model_impute_as_before(posterior, tmp_path):
    loaded = with_model(phx.Posterior.load(posterior.save(tmp_path / "run.npz")), normal, {"y": Y})
    np.testing.assert_array_equal(loaded.log_likelihood()["y"], posterior.log_likelihood()["y"])
    with pytest.raises(ValueError, match="has the latent variables 'mean' .* on these data, and the run has"):
        with_model(loaded, normal, {"y": np.zeros(6)})


def test_an_event_with_missing_entries_has_no_log_likelihood():
    program, data, _ = impute(correlated, {"y": np.array([[0.3, NAN], [1.0, 1.0]])})
    variables = phx.trace(phx.seed(program, 0))(**data)
    with pytest.raises(ValueError, match=r"'y' has events of MultivariateNormal in which entries are missing"):
        of_given_entries(variables, data)["y"].log_prob()


def correlated(y):
    phx.sample("m", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.MultivariateNormal(jnp.zeros((2, 2)), jnp.eye(2)), obs=y)


def test_other_data_need_as_many_missing_entries(sampler):
    other = np.where(np.arange(6) > 3, NAN, 7.0)
    again = sampler.run(seed=1, data={"y": other}, num_warmup=50, num_samples=20, progress=False)
    assert again.record.labels["y_missing"] == (("4", "5"),) and again.draws["mean"].mean() > 3
    with pytest.raises(ValueError, match=r"'y' has 1 missing entry, and the compiled program has 2"):
        sampler.run(data={"y": np.where(np.arange(6) > 4, NAN, 7.0)}, num_samples=20, progress=False)


@pytest.mark.slow
def test_chains_may_start_from_the_prior(sampler):
    assert sampler.run(init="prior", num_warmup=10, num_samples=5, progress=False).num_draws == 5


@pytest.mark.slow
def test_a_fit_imputes_too():
    fit = phx.fit(normal, phx.guides.laplace(), {"y": Y}, missing="impute", progress=False)
    drawn = fit.posterior(500).draws["y_missing"]
    assert drawn.shape == (1, 500, 2) and abs(drawn.mean() - 1.0) < 0.5
