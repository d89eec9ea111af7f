"""Containers of a posterior: xarray's data sets, and all groups that ArviZ's functions read."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from typing import Any

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from matplotlib import pyplot
from tests.unit.report.posteriors import RECORD

import phalanx as phx
from phalanx.posterior import arviz_groups
from phalanx.posterior.record import Timing

NEW: Any = az  # names of ArviZ 1.x
IS_OLD = az.__version__.startswith("0.")
RNG = np.random.default_rng(0)
SITES = ("east", "north", "south")
DATA = {
    "site": pd.Series(pd.Categorical(RNG.choice(SITES, 31))), "x": RNG.normal(size=(31, 2)), "slope": 2.0, "groups": 3,
    "area": np.array([1.0, 2.0, 3.0]), "counts": RNG.poisson(2.0, 31), "y": RNG.normal(size=31),
}  # fmt: skip
DIMS = {"x": ["row", "feature"], "y": ["row"], "area": ["site"], "counts": ["row"]}
COORDS = {"feature": ["age", "floor"], "row": np.arange(100, 131)}
SIZES: Any = {"num_chains": 4, "num_warmup": 100, "num_samples": 100, "progress": False}
ONE = phx.make_mesh(devices=jax.devices()[:1])


def model(site, x, area, slope, groups, counts, y=None):
    level = phx.sample("level", dist.Normal(0.0, 1.0).expand([groups]))
    w = phx.sample("part/w", dist.Normal(0.0, 1.0).expand([2]))
    mean = phx.deterministic("mean", (level * area)[site] + slope * (x @ w))
    phx.sample("y", dist.Normal(mean, 3.0), obs=y)
    phx.sample("z", dist.Poisson(1.6).expand(counts.shape), obs=2 * counts)


@pytest.fixture(scope="module")
def posterior() -> phx.Posterior:
    return phx.mcmc(model, DATA, dims=DIMS, coords=COORDS, mesh=ONE, **SIZES)


@pytest.fixture(scope="module")
def data(posterior) -> Any:
    return posterior.to_arviz(prior=50)


def groups_of(container) -> set[str]:
    return set(container.groups()) if IS_OLD else set(container.children)


def test_it_has_all_groups(posterior, data):
    assert groups_of(data) == {
        "posterior", "sample_stats", "warmup_sample_stats", "observed_data", "constant_data", "log_likelihood",
        "log_prior", "posterior_predictive", "prior", "prior_predictive",
    }  # fmt: skip
    assert data.posterior["level"].dims == ("chain", "draw", "site")
    assert data.posterior["part.w"].sel(feature="floor").shape == (4, 100)  # a slash would separate groups
    np.testing.assert_array_equal(data.posterior["part.w"], posterior["part/w"])
    for group, leading in (
        ("posterior_predictive", (4, 100)),
        ("prior_predictive", (1, 50)),
        ("log_likelihood", (4, 100)),
    ):
        assert set(data[group].data_vars) == {"y", "z"} and data[group]["y"].shape == (*leading, 31)
        assert data[group]["y"].dims == ("chain", "draw", "row") and data[group]["row"].values[0] == 100
    assert set(data.prior.data_vars) == {"level", "part.w", "mean"} and data.prior["mean"].shape == (1, 50, 31)
    assert data.warmup_sample_stats["step_size"].dims == ("round",)


def test_values_are_those_of_the_model(posterior, data):
    np.testing.assert_allclose(data.observed_data["y"], DATA["y"], rtol=1e-6)
    np.testing.assert_array_equal(data.observed_data["z"], 2 * DATA["counts"])
    constant = data.constant_data
    assert set(constant.data_vars) == {"x", "slope", "groups", "area", "counts", "site_data"}  # `y` is observed
    np.testing.assert_array_equal(constant["site_data"], DATA["site"].cat.codes)
    assert constant["area"].sel(site="south") == 3.0 and constant["x"].dims == ("row", "feature")
    expected = -0.5 * ((DATA["y"] - posterior["mean"]) / 3.0) ** 2 - np.log(3.0 * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(data.log_likelihood["y"], expected, rtol=1e-4)
    np.testing.assert_array_equal(data.posterior_predictive["y"], posterior.predictive()["y"])


def test_functions_of_arviz_take_it(data):
    def simpler(counts, y):
        mean = phx.sample("mean", dist.Normal(0.0, 1.0))
        phx.sample("y", dist.Normal(mean, 3.0), obs=y)

    pyplot.switch_backend("Agg")
    one = phx.mcmc(simpler, {name: DATA[name] for name in ("counts", "y")}, kernel=phx.rwmh(0.5), mesh=ONE, **SIZES)
    simple = one.to_arviz(predictive=False, prior=False)
    plot_ppc, plot_trace = (az.plot_ppc, az.plot_trace) if IS_OLD else (NEW.plot_ppc_dist, az.plot_trace)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, message="(?s).*Pareto|.*tight_layout|.*more than 20")
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # what ArviZ uses of pandas and matplotlib
        loo = az.loo(data, var_name="y")
        assert np.isfinite(loo.elpd_loo if IS_OLD else loo.elpd)
        assert set(az.compare({"whole": data, "simple": simple}, var_name="y").index) == {"whole", "simple"}
        plot_ppc(data, var_names=["y"])
        plot_ppc(data, var_names=["y"], group="prior" if IS_OLD else "prior_predictive")
        az.plot_forest(data, var_names=["level"])
        plot_trace(data, var_names=["level"])
    pyplot.close("all")
    assert list(az.summary(data, var_names=["level"]).index) == [f"level[{site}]" for site in SITES]


def test_groups_that_are_switched_off_are_left_out(posterior):
    data = posterior.to_arviz(log_likelihood=False, predictive=False, prior=False)
    cheap = {"posterior", "sample_stats", "warmup_sample_stats", "observed_data", "constant_data"}
    assert groups_of(data) == cheap
    by_hand = replace(posterior, target=None)
    data = by_hand.to_arviz()
    assert groups_of(data) == {"posterior", "sample_stats", "warmup_sample_stats"}
    assert "has no model" in data.attrs["without groups of the model and its data"]
    with pytest.raises(ValueError, match=r"^to_arviz: a posterior that was read from a file, .* has no model\. Ask"):
        by_hand.to_arviz(log_likelihood=True)
    for wrong, error in (({"prior": 0}, ValueError), ({"prior": "x"}, ValueError), ({"predictive": 3}, TypeError)):
        with pytest.raises(error, match=f"^to_arviz: {next(iter(wrong))} must be"):
            posterior.to_arviz(**wrong)


def test_large_groups_are_left_out_with_a_warning(posterior, monkeypatch):
    monkeypatch.setattr(arviz_groups, "MOST_BYTES", 5000)
    words = "to_arviz: left out, since they are large: posterior_predictive (0.0 GiB: predictive=True), log_likelihood"
    with pytest.warns(UserWarning, match=re.escape(words)) as caught:
        data = posterior.to_arviz()
    assert caught[0].filename == __file__
    assert groups_of(data) == {"posterior", "sample_stats", "warmup_sample_stats", "observed_data", "constant_data"}
    assert "GiB" in data.attrs["without log_likelihood"]


def test_groups_that_a_model_cannot_make_are_left_out_unless_asked_for():
    def of_factor(y):
        mean = phx.sample("mean", dist.Normal(0.0, 1.0))
        phx.factor("likelihood", -0.5 * ((y - mean) ** 2).sum())
        phx.sample("y", dist.Normal(mean, 1.0), obs=y)

    posterior = phx.mcmc(of_factor, {"y": np.zeros(3)}, kernel=phx.rwmh(1.0), mesh=ONE, **(SIZES | {"num_warmup": 0}))
    data = posterior.to_arviz()
    assert groups_of(data) == {"posterior", "sample_stats", "observed_data", "log_likelihood", "log_prior"}
    assert "is a factor" in data.attrs["without posterior_predictive"]
    with pytest.raises(ValueError, match="is a factor"):
        posterior.to_arviz(predictive=True)


def hidden_states(y=None):
    step = phx.sample("step", dist.Normal(2.0, 1.0))
    state, states = 0, []
    for t in range(4):
        state = phx.sample(f"state_{t}", dist.CategoricalProbs(jnp.array([[0.8, 0.2], [0.3, 0.7]])[state]))
        states.append(state)
    phx.sample("y", dist.Normal(step * jnp.stack(states), 0.1), obs=y)


def by_hand(program, data) -> phx.Posterior:
    draws = RNG.normal(2.0, 0.1, size=(2, 50)).astype(np.float32)
    record = replace(RECORD, num_chains=2, num_samples=50, latents={"step": ""})
    return phx.Posterior({"step": draws}, {}, Timing(), record, target=phx.Target(program, data))


@pytest.mark.slow
def test_observations_that_share_states_are_data():
    """`phx.marginalize` holds them back while the model runs: their density is one term of all of them."""
    y = np.array([0.0, 2.0, 2.0, 0.0], np.float32)
    posterior = by_hand(phx.marginalize(hidden_states), {"y": y})
    data = posterior.to_arviz()
    assert "constant_data" not in groups_of(data) and data["posterior_predictive"]["y"].shape == (2, 50, 4)
    np.testing.assert_array_equal(data["observed_data"]["y"], y)
    words = "the entries of 'y' share discrete variables that phx.marginalize sums out"
    assert words in data.attrs["without log_likelihood"]
    with pytest.raises(ValueError, match=words):
        posterior.to_arviz(log_likelihood=True)


def test_a_model_that_observes_no_variable_says_so():
    def soft(y):
        phx.factor("likelihood", -((y - phx.sample("step", dist.Normal(0.0, 1.0))) ** 2).sum())

    posterior = by_hand(soft, {"y": np.zeros(3, np.float32)})
    data = posterior.to_arviz()
    assert {"observed_data", "log_likelihood", "posterior_predictive"}.isdisjoint(groups_of(data))
    assert "the model observes no variable" in data.attrs["without posterior_predictive"]
    assert "phx.factor" in data.attrs["without log_likelihood"]
    for asked, words in (("predictive", "the model observes no variable"), ("log_likelihood", "phx.factor")):
        with pytest.raises(ValueError, match=words):
            posterior.to_arviz(**{asked: True})


def test_xarray_has_names(posterior, monkeypatch):
    data = posterior.to_xarray()
    assert dict(data.sizes) == {"chain": 4, "draw": 100, "site": 3, "feature": 2, "row": 31}
    np.testing.assert_array_equal(data["level"].sel(site="north"), posterior["level"][..., 1])
    assert data["row"].dtype.kind == "i" and list(data.data_vars) == ["level", "part/w", "mean"]
    monkeypatch.setitem(__import__("sys").modules, "xarray", None)
    with pytest.raises(ImportError, match="xarray is needed here"):
        posterior.to_xarray()


@pytest.mark.slow
def test_rows_on_devices(data):
    mesh = phx.make_mesh(chain=1, data=2, devices=jax.devices()[:2])
    of_rows = {name: DATA[name] for name in ("site", "x", "counts", "y")}
    kernel = phx.rwmh(0.1)
    sharded = phx.mcmc(model, DATA | phx.shard(of_rows, mesh), dims=DIMS, coords=COORDS, kernel=kernel, **SIZES)
    other = sharded.to_arviz(log_likelihood=False, predictive=False, prior=False)
    for group in ("observed_data", "constant_data"):  # 31 rows are padded on two devices
        for name, values in data[group].data_vars.items():
            assert other[group][name].equals(values), name
