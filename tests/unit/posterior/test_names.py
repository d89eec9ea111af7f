"""Names are kept, so they are used: new data are those of the same levels and columns, whatever their order."""

from __future__ import annotations

import re
from dataclasses import replace

import jax
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.report.posteriors import RECORD

import phalanx as phx
from phalanx.inputs.known_data import names_of
from phalanx.posterior.posterior import Posterior
from phalanx.posterior.record import Timing

RNG = np.random.default_rng(0)
LEVELS, TRUE = ["east", "north", "south"], {"east": 0.0, "north": 10.0, "south": -10.0}
COLUMNS, WEIGHTS = ["age", "income"], np.array([3.0, -2.0])
SITE = pd.Series(pd.Categorical(RNG.choice(LEVELS, 60)))
X = pd.DataFrame(RNG.normal(size=(60, 2)), columns=COLUMNS)
DATA = {
    "site": SITE, "x": X, "noise": 0.1, "groups": 3,
    "y": SITE.map(TRUE).astype(float) + X.to_numpy() @ WEIGHTS + RNG.normal(size=60) * 0.1,
}  # fmt: skip
ONE = phx.make_mesh(devices=jax.devices()[:1])
KERNEL = phx.hmc(num_steps=8)
SIZES = {"num_warmup": 300, "num_samples": 50, "progress": False}


def model(site, x, noise, groups, y=None):
    level = phx.sample("level", dist.Normal(0.0, 20.0).expand([groups]))
    slope = phx.sample("slope", dist.Normal(0.0, 5.0).expand([2]))
    phx.sample("y", dist.Normal(level[site] + x @ slope, noise), obs=y)


@pytest.fixture(scope="module")
def sampler() -> phx.Sampler:
    return phx.compile(model, DATA, kernel=KERNEL, num_chains=2, mesh=ONE)


@pytest.fixture(scope="module")
def posterior(sampler) -> Posterior:
    return sampler.run(0, **SIZES)


def means(posterior: Posterior, **data) -> list[float]:
    given = {"x": pd.DataFrame(np.zeros((len(data["site"]), 2)), columns=COLUMNS), **data} if "site" in data else data
    drawn = posterior.predictive(given, model=model)["y"]
    return drawn.mean((0, 1)).round().tolist()


@pytest.mark.slow
@pytest.mark.parametrize("saved", [False, True])
def test_each_row_is_predicted_as_its_own_group(posterior, tmp_path, saved):
    if saved:
        posterior = Posterior.load(posterior.save(tmp_path / "run.npz"))
    assert means(posterior, site=pd.Categorical(["south", "east"])) == [-10, 0]  # two of three
    other = pd.Categorical(LEVELS, categories=["south", "north", "east"])
    assert means(posterior, site=other) == [0, 10, -10]  # all, in another order
    swapped = pl.DataFrame({"income": [0.0, 1.0], "age": [1.0, 0.0]})
    assert means(posterior, site=["east", "east"], x=swapped) == [3, -2]  # columns in another order
    for bad, named in (
        ({"site": ["west"]}, "site[0] has the level 'west', which the run's data did not have; they had 'east', 'nor"),
        ({"site": np.array([0])}, "site has no names of levels, but the run's data had 'east', 'north', 'south'."),
        ({"site": ["east"], "x": X[["age"]]}, "x has no column 'income', which the run's data had; it has 'age'."),
        ({"site": ["east"], "x": np.zeros((1, 2))}, "x has no names of columns, but the run's data had 'age', 'inc"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=re.escape(named)):
            means(posterior, **bad)


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_whatever_the_levels_their_order_and_their_subset(data, tmp_path_factory):
    names = st.lists(st.text("abcxyz ,'\u00e9", min_size=1, max_size=4), min_size=2, max_size=4, unique=True)
    levels, columns = data.draw(names), data.draw(names)
    first = {
        "site": pd.Series(pd.Categorical(levels, categories=levels)),
        "x": pd.DataFrame(np.zeros((len(levels), len(columns))), columns=columns),
    }

    def of_any(site, x, y=None):
        level = phx.sample("level", dist.Normal(0.0, 1.0).expand([len(levels)]))
        slope = phx.sample("slope", dist.Normal(0.0, 1.0).expand([len(columns)]))
        phx.sample("y", dist.Normal(level[site] + x @ slope, 1e-3), obs=y)

    level, slope = 10.0 * np.arange(len(levels)), 100.0 * np.arange(len(columns))
    draws = {"level": level.astype("f")[None, None], "slope": slope.astype("f")[None, None]}
    target = phx.Target(of_any, {**first, "y": np.zeros(len(levels), "f")})
    record = replace(RECORD, num_chains=1, num_samples=1, latents=dict.fromkeys(draws, ""))
    by_hand = Posterior(draws, {}, Timing(), record, target=target)
    path = replace(by_hand, record=replace(record, names=names_of(target.arguments))).save(
        tmp_path_factory.mktemp("saved") / "run.npz"
    )
    rows = data.draw(st.lists(st.sampled_from(levels), min_size=1, max_size=5))
    of_row = data.draw(st.lists(st.sampled_from(columns), min_size=len(rows), max_size=len(rows)))
    table = {name: [float(name == found) for found in of_row] for name in data.draw(st.permutations(columns))}
    new = {"site": pd.Categorical(rows, categories=data.draw(st.permutations(levels))), "x": pd.DataFrame(table)}
    truth = [level[levels.index(row)] + slope[columns.index(found)] for row, found in zip(rows, of_row, strict=True)]
    for known in (by_hand, Posterior.load(path)):
        np.testing.assert_allclose(known.predictive(new, model=of_any)["y"][0, 0], truth, atol=0.1)


def test_a_run_on_other_data_numbers_them_as_the_first(sampler, posterior):
    shuffled = {
        "site": pl.Series(SITE.tolist(), dtype=pl.Enum(LEVELS[::-1])), "x": pl.DataFrame(X[COLUMNS[::-1]]),
        "y": DATA["y"],
    }  # fmt: skip
    same = sampler.run(0, shuffled, **SIZES)
    np.testing.assert_array_equal(same.draws["level"], posterior.draws["level"])
    assert same.record.labels["level"] == (tuple(LEVELS),) and same.record.scalars["groups"] == 3
    longer, expected = same.continue_run(10, data=shuffled), posterior.continue_run(10)
    np.testing.assert_array_equal(longer.draws["slope"], expected.draws["slope"])
    with pytest.raises(
        ValueError, match=re.escape("x has no names of columns, but the run's data had 'age', 'income'")
    ):
        sampler.run(0, {**shuffled, "x": X.to_numpy()})


def test_a_run_is_not_gone_on_with_in_another_numbering(posterior, tmp_path):
    loaded = Posterior.load(posterior.save(tmp_path / "run.npz"))
    other = {**DATA, "site": SITE.cat.reorder_categories(["south", "east", "north"])}
    sampler = phx.compile(model, other, kernel=KERNEL, num_chains=2, mesh=ONE)
    with pytest.raises(ValueError, match=re.escape(
        "continue_run: site has the levels 'south', 'east', 'north' in this sampler's data, and the levels 'east', "
    )):  # fmt: skip
        sampler.continue_run(loaded, 10)
    longer = sampler.continue_run(loaded, 10, data=other)  # by name they are the same
    np.testing.assert_array_equal(longer.draws["level"], posterior.continue_run(10).draws["level"])


def test_sharded_data_have_names_too(posterior):
    mesh = phx.make_mesh(chain=1, data=2, devices=jax.devices()[:2])
    sharded = phx.shard(
        {"site": pd.Series(pd.Categorical(["south", "east", "south"])), "x": X[COLUMNS[::-1]][:3] * 0}, mesh
    )
    assert means(posterior, **sharded) == [-10, 0, -10]
    target = phx.Target(model, {**DATA, **phx.shard({name: DATA[name] for name in ("site", "x", "y")}, mesh)})
    by_hand = replace(posterior, target=target, record=replace(posterior.record, names=None))
    assert means(by_hand, site=["south"]) == [-10]


@pytest.mark.slow
def test_calibration_with_a_compiled_sampler():
    def coin(side, y):
        odds = phx.sample("odds", dist.Normal(0.0, 1.0).expand([2]))
        phx.sample("y", dist.Bernoulli(logits=odds[side]), obs=y)

    data = {"side": pd.Series(list("abab"), dtype="category"), "y": pd.Categorical(["no", "yes", "no", "no"])}
    compiled = phx.compile(coin, data, kernel=phx.rwmh(), num_chains=2, mesh=ONE)
    sizes = {"num_warmup": 5, "num_samples": 8, "progress": False}
    ranks = phx.calibrate(
        coin, lambda own, seed: compiled.run(seed, own, **sizes), data, num_simulations=2, num_draws=7
    )
    assert ranks.ranks["odds"].shape == (2, 2)


@pytest.mark.slow
def test_given_names_stay_with_a_run(tmp_path):
    def pair(y):
        phx.sample("y", dist.Normal(phx.sample("w", dist.Normal(0.0, 1.0).expand([2])), 1.0), obs=y)

    data = {"y": np.zeros(2)}
    given = {"dims": {"w": ["feature"]}, "coords": {"feature": [2020, 2021]}}
    options = {"kernel": phx.rwmh(0.5), "num_chains": 2, "mesh": ONE}
    sizes = {"num_warmup": 5, "num_samples": 20, "progress": False}
    places = {"store": tmp_path / "run.zarr", "checkpoint": tmp_path / "saves"}
    run = phx.mcmc(pair, data, **given, **options, **sizes, **places)
    assert run.record.dims == {"w": ("feature",)} and run.record.coords == {"feature": (2020, 2021)}
    assert list(run.summary().index[1:]) == ["w[2020]", "w[2021]"] == list(run.to_dataframe().columns[2:])
    tree = pytest.importorskip("xarray").open_datatree(tmp_path / "run.zarr", engine="zarr", consolidated=False)
    assert tree["posterior"]["w"].sel(feature=2021).shape == (2, 20)
    loaded = Posterior.load(run.save(tmp_path / "run.npz"))
    without = phx.compile(pair, data, **options)
    assert without.record.dims == {} and without.run(0, **sizes).timing.compilations == 0
    longer = without.continue_run(loaded, 5, progress=False)
    for other in (loaded, phx.open(tmp_path / "run.zarr"), phx.open(tmp_path / "saves"), run.continue_run(5), longer):
        assert other.record.axes == run.record.axes
    assert longer.to_xarray()["w"].sel(feature=2021).shape == (2, 25)
    with pytest.raises(ValueError, match=re.escape("coords['feature'] has 1 names, and 'w' has 2 entries")):
        phx.mcmc(pair, data, dims=given["dims"], coords={"feature": ["a"]}, **options, **sizes)


@pytest.mark.slow
def test_given_names_stay_with_a_fit(tmp_path):
    def pair():
        phx.sample("w", dist.Normal(0.0, 1.0).expand([2]))

    given = {"dims": {"w": "feature"}, "coords": {"feature": ["age", "floor"]}}
    fit = phx.fit(pair, phx.guides.mean_field(), num_steps=2, progress=False, **given)
    assert fit.posterior(10).to_xarray()["w"].sel(feature="age").shape == (1, 10)
    assert phx.Fit.load(fit.save(tmp_path / "fit.npz")).record.axes == fit.record.axes
    with pytest.raises(ValueError, match=r"^dims: the model has no variable or argument 'v'"):
        phx.fit(pair, phx.guides.mean_field(), dims={"v": ["feature"]})


def test_two_rows_of_one_name_are_refused():
    def model():
        phx.sample("w", dist.Normal(0.0, 1.0).expand([2]))
        phx.sample("w[0]", dist.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match=r"^Tables would have two rows 'w\[0\]': of the variables 'w\[0\]' and 'w'\."):
        phx.mcmc(model)
