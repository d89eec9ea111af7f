"""Log densities of observations: those of NumPyro, on every mesh, and refusals by name."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from tests.unit.report.posteriors import RECORD

import phalanx as phx
from phalanx.posterior.posterior import Posterior
from phalanx.posterior.record import Timing

ROWS, CHAINS, DRAWS = 11, 2, 7
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 2)).astype(np.float32)
Y = RNG.normal(size=ROWS).astype(np.float32)
W = {"w": RNG.normal(size=(CHAINS, DRAWS, 2)).astype(np.float32)}


def weights():
    return phx.sample("w", dist.Normal(0.0, 1.0).expand([2]))


def regression(x, y=None):
    phx.sample("y", dist.Normal(x @ weights(), 1.0), obs=y)


def vectors(x, y):
    rows = jnp.stack([x @ weights(), x[:, 0]], axis=1)
    phx.sample("joined", dist.Normal(rows, 1.0).to_event(1), obs=x)
    phx.sample("normal", dist.MultivariateNormal(rows, jnp.eye(2)), obs=x)
    phx.sample("number", dist.Poisson(2.0), obs=3)


def masked(x, y):
    at, mask = x @ weights(), x[:, 0] > 0
    phx.sample("y", dist.Normal(at, 1.0).mask(mask), obs=y)
    wide = dist.Normal(at[:, None], 1.0).mask(mask[:, None]).expand([x.shape[0], 3])
    phx.sample("wide", wide.to_event(1), obs=jnp.stack([y, y, x[:, 1]], axis=1))


def scaled(x, y):
    mean = x @ weights()
    phx.scale(lambda: phx.sample("y", dist.Normal(mean, 1.0), obs=y), 3.0)()


def blocked(x, y):
    w = weights()
    phx.sample("y", phx.blocked(lambda x: dist.Normal(x @ w, 1.0), x, block=4), obs=y)


def theirs(x, y):
    w = jnp.asarray(numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1)))
    with numpyro.plate("rows", x.shape[0]), numpyro.handlers.mask(mask=x[:, 1] > 0):
        numpyro.sample("y", dist.Laplace(x @ w, 1.0), obs=y)
    numpyro.sample("scale", dist.Normal(jnp.sum(w), 1.0), obs=0.5)


MODELS = [regression, vectors, masked, scaled, blocked, theirs]
DATA = {"x": X, "y": Y}


def posterior_of(model, data=DATA, draws=W, latents=("w",), **how) -> Posterior:
    """A posterior with these draws: no sampler is needed to look at densities at draws."""
    record = replace(RECORD, num_chains=CHAINS, num_samples=DRAWS, latents=dict.fromkeys(latents, ""))
    return Posterior(draws, {}, Timing(), record, target=phx.Target(model, data, **how))


def by_numpyro(model, data=DATA, draws=W):
    return numpyro.infer.log_likelihood(model, draws, batch_ndims=2, **data)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_agrees_with_numpyro(model):
    found, expected = posterior_of(model).log_likelihood(), by_numpyro(model)
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert found[name].shape == values.shape
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", [pytest.param(masked, marks=pytest.mark.slow), blocked], ids=lambda m: m.__name__)
def test_rows_that_are_padded_on_a_mesh_have_no_term(model, mesh_of):
    expected = by_numpyro(model)
    found = posterior_of(model, phx.shard(DATA, mesh_of(2, 4))).log_likelihood()
    for name, values in expected.items():
        assert found[name].shape == values.shape
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-5)


def test_batches_change_nothing(monkeypatch):
    expected = posterior_of(regression).log_likelihood()["y"]
    monkeypatch.setattr("phalanx.posterior.criticism.model_at_draws.BATCH_BYTES", 4 * ROWS * 3)
    np.testing.assert_array_equal(posterior_of(regression).log_likelihood()["y"], expected)


@pytest.mark.parametrize("sharded", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_reducers_accumulate_densities_that_are_not_stored(sharded, mesh_of, monkeypatch):
    monkeypatch.setattr("phalanx.posterior.criticism.model_at_draws.BATCH_BYTES", 4 * ROWS * 3)
    moments, expected = phx.reducers.moments(), by_numpyro(masked)
    reducers = {"m": moments, "both": phx.reduce(lambda v: v["y"].sum() + v["w"][0], moments)}
    posterior = posterior_of(masked, phx.shard(DATA, mesh_of(2, 4)) if sharded else DATA)
    found = posterior.log_likelihood(keep=[], reducers=reducers)
    assert found == {} and found.reduced["m"]["y"].count == CHAINS * DRAWS
    for name, values in expected.items():
        np.testing.assert_allclose(found.reduced["m"][name].mean, values.mean((0, 1)), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.reduced["m"][name].variance, values.var((0, 1), ddof=1), rtol=1e-3, atol=1e-5)
    both = expected["y"].sum(-1) + W["w"][..., 0]
    np.testing.assert_allclose(found.reduced["both"].mean, both.mean(), rtol=1e-5)


def test_only_what_is_kept_is_returned():
    posterior = posterior_of(masked)
    found = posterior.log_likelihood(keep="wide", reducers={"m": phx.reducers.moments()})
    assert list(found) == list(found.reduced["m"]) == list(posterior.log_likelihood(keep=["wide"])) == ["wide"]
    np.testing.assert_array_equal(found["wide"], posterior.log_likelihood()["wide"])
    refused: list[tuple[dict[str, Any], str]] = [
        ({"keep": "x"}, "keep has 'x', which the model does not observe here; it has 'wide', 'y'."),
        ({"keep": []}, "keep=[] returns no variable; name some, or give reducers=."),
        ({"reducers": {"loo": phx.reducers.loo()}}, "reducers['loo'] is loo(200), which posterior.loo() computes"),
    ]
    for options, message in refused:
        with pytest.raises(ValueError, match=re.escape(f"log_likelihood: {message}")):
            posterior.log_likelihood(**options)


def test_held_out_rows():
    new = {"x": X[:4] + 1, "y": Y[:4]}
    found = posterior_of(regression).log_likelihood(new)["y"]
    np.testing.assert_allclose(found, by_numpyro(regression, new)["y"], rtol=1e-5, atol=1e-5)


def test_levels_of_new_data_match_by_name():
    def groups(group, y):
        level = phx.sample("level", dist.Normal(0.0, 1.0).expand([3]))
        phx.sample("y", dist.Normal(level[group], 1.0), obs=y)

    words = pd.Series(["a", "b", "c", "a"], dtype="category")
    levels = {"level": RNG.normal(size=(CHAINS, DRAWS, 3)).astype(np.float32)}
    posterior = posterior_of(groups, {"group": words, "y": Y[:4]}, levels, ("level",))
    found = posterior.log_likelihood({"group": pd.Series(["c", "b"], dtype="category"), "y": Y[:2]})["y"]
    expected = dist.Normal(levels["level"][..., [2, 1]], 1.0).log_prob(Y[:2])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="'d'"):
        posterior.log_likelihood({"group": pd.Series(["c", "d"], dtype="category"), "y": Y[:2]})


def test_a_loaded_posterior_is_given_model_and_data(tmp_path):
    posterior = posterior_of(regression)
    loaded = Posterior.load(posterior.save(tmp_path / "run.npz"))
    with pytest.raises(ValueError, match=re.escape("posterior.log_likelihood(data, model=model)")):
        loaded.log_likelihood(DATA)
    np.testing.assert_array_equal(loaded.log_likelihood(DATA, model=regression)["y"], posterior.log_likelihood()["y"])


def test_factors_are_no_observations():
    def some(x, y):
        phx.factor("penalty", -weights().sum())
        phx.sample("y", dist.Normal(x[:, 0], 1.0), obs=y)

    def only(x, y):
        numpyro.factor("rows", -((y - x @ weights()) ** 2))

    assert set(posterior_of(some).log_likelihood()) == {"y"}
    with pytest.raises(ValueError, match=r"'rows' is a term of the log density .*phx.sample\(name, distribution, obs"):
        posterior_of(only).log_likelihood()


def test_terms_that_cannot_be_evaluated_are_named():
    posterior = posterior_of(regression)
    with pytest.raises(ValueError, match="variable 'y' was not inferred in the run, and these data do not observe it"):
        posterior.log_likelihood({"x": X})
    with pytest.raises(ValueError, match="log_likelihood: the draws of variable 'w' were not kept"):
        replace(posterior, draws={"other": W["w"]}).log_likelihood()
    with pytest.raises(ValueError, match="there are no draws to evaluate: 4 chains of 0 draws"):
        replace(posterior, draws={}, record=RECORD).log_likelihood()
    with pytest.raises(ValueError, match="the model observes no variable; its variables are 'w'"):
        posterior_of(lambda: weights(), {}).log_likelihood()
