"""Fits of many data sets in one call: each is the fit of its own, whatever the others are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phalanx as phx
from phalanx.variational.each.fits import Fits
from phalanx.variational.each.programs import LanePrograms

QUICK = {"num_steps": 150, "progress": False}
AXES = {"x": 0, "y": 0}


def line(x, y):
    slope = phx.sample("slope", dist.Normal(0.0, 5.0))
    scale = phx.sample("scale", dist.HalfNormal(3.0))
    phx.sample("y", dist.Normal(slope * x, scale), obs=y)


def regressions(sets: int, rows: int = 8) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.normal(size=(sets, rows))
    y = (random.normal(size=(sets, 1)) * x + random.normal(size=x.shape)) * 10.0 ** np.arange(-1, sets - 1)[:, None]
    return {"x": x, "y": y}


def table(sizes: dict[str, int]) -> pd.DataFrame:
    random = np.random.default_rng(1)
    subject = random.permutation(np.repeat(list(sizes), list(sizes.values())))
    columns = {"x": random.normal(size=len(subject)), "y": random.normal(size=len(subject))}
    return pd.DataFrame({"subject": subject, **columns})


def fit_each(*arguments: Any, **options: Any) -> Fits:
    fits: Any = phx.fit(*arguments, **options)
    return fits


def assert_same(fit: phx.Fit, other: phx.Fit) -> None:
    assert fit.steps == other.steps and fit.unsettled == other.unsettled and fit.failed == other.failed
    np.testing.assert_allclose(fit.losses.elbo, other.losses.elbo, rtol=2e-3, atol=2e-3)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3), fit.params, other.params)


def amortised(x, y=None):
    loc = phx.param("loc", 0.0) + phx.param("by_data", 0.1) * jnp.mean(x)
    phx.sample("slope", dist.Normal(loc, phx.param("sd", 0.1, dist.constraints.positive)))
    phx.sample("scale", dist.LogNormal(phx.param("log", 0.0), 0.2))


@pytest.mark.parametrize(
    "guide",
    [
        phx.guides.mean_field(),
        *(
            pytest.param(guide, marks=pytest.mark.slow)
            for guide in (phx.guides.full_rank(), phx.guides.low_rank(rank=1), phx.guides.flow(), amortised)
        ),
    ],
)
def test_a_data_set_has_the_fit_of_its_own(guide):
    data = regressions(3)
    fits = fit_each(line, guide, data, each=AXES, seed=5, **QUICK)
    for number in (0, 2):
        own = {name: values[number] for name, values in data.items()}
        alone = phx.fit(line, guide, own, seed=5 + number, **QUICK)
        assert_same(alone, fits.of(number))
        np.testing.assert_allclose(
            alone.sample(seed=7 + number, n=20)["slope"],
            fits.sample(seed=7, n=20)["slope"][number],
            rtol=1e-2,
            atol=1e-3,
        )
        assert fits.elbo[number] == pytest.approx(np.mean(alone.losses.elbo[-30:]), abs=1.0)


@pytest.mark.slow
def test_each_data_set_ends_when_its_own_guide_has_settled(monkeypatch):
    data = {name: np.resize(values, (32, 8)) for name, values in regressions(4).items()}
    lanes, place, made, block = [], LanePrograms.arrays, [], LanePrograms.block
    monkeypatch.setattr(LanePrograms, "arrays", lambda self, sets: lanes.append(len(sets)) or place(self, sets))
    monkeypatch.setattr(LanePrograms, "block", lambda *given: made.append(block(*given)) or made[-1])
    seen, options = [], {"num_steps": 1500, "progress": False}
    fits = fit_each(line, phx.guides.mean_field(), data, each=AXES, seed=1, on_block=seen.append, **options)
    assert len(set(fits.steps)) > 2 and not fits.unsettled and seen[-1].moving == 0
    assert lanes[0] == 32 and 4 * min(lanes) <= 32  # the last ones go on in a smaller program
    assert all(part.base is None for _, bounds in made for part in bounds)  # views keep the room of whole blocks
    for number in (int(np.argmax(fits.steps)), int(np.argmin(fits.steps))):
        own = {name: values[number] for name, values in data.items()}
        assert_same(phx.fit(line, phx.guides.mean_field(), own, seed=1 + number, **options), fits.of(number))


@pytest.mark.slow
def test_data_sets_of_several_lengths_have_the_fits_of_their_own_rows():
    data = table({"a": 3, "b": 9, "c": 5, "d": 4})
    fits = fit_each(line, phx.guides.mean_field(), data, each="subject", **QUICK)
    assert fits.sets == ("a", "b", "c", "d")
    for number, name in ((0, "a"), (2, "c")):
        own = data[data["subject"] == name][["x", "y"]]
        assert_same(phx.fit(line, phx.guides.mean_field(), own, seed=number, **QUICK), fits.of(name))


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 2**32 - 1))
def test_any_division_gives_the_fits_of_its_parts(sizes, seed):
    random = np.random.default_rng(seed)
    subject = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    data = {"subject": subject, "x": random.normal(size=len(subject)), "y": random.normal(size=len(subject))}
    options = {"num_steps": 20, "until": False, "progress": False}
    fits = fit_each(line, phx.guides.mean_field(), data, each="subject", seed=seed, **options)
    number = int(random.integers(len(sizes)))
    own = {name: data[name][subject == number] for name in ("x", "y")}
    alone = phx.fit(line, phx.guides.mean_field(), own, seed=(seed + number) % 2**32, **options)
    assert_same(alone, fits.of(number))


@pytest.mark.slow
def test_a_guide_that_takes_rows_is_refused_where_lengths_differ():
    data = table({"a": 3, "b": 9})
    with pytest.raises(ValueError, match="amortised takes 'x', 'y', and the data sets differ"):
        phx.fit(line, amortised, data, each="subject", **QUICK)
    equal = fit_each(line, amortised, table({"a": 5, "b": 5}), each="subject", **QUICK)
    assert not equal.failed


@pytest.mark.slow
def test_parameters_of_the_model_by_maximum_likelihood():
    def model(x, y):
        scale = phx.param("scale", 1.0, dist.constraints.positive)
        phx.sample("y", dist.Normal(phx.param("slope", 0.0) * x, scale), obs=y)

    data = table({"a": 30, "b": 20, "c": 25})
    fits = fit_each(model, None, data, each="subject", num_steps=400, progress=False)
    for number, (_, own) in enumerate(data.groupby("subject")):
        slope = (own["x"] @ own["y"]) / (own["x"] @ own["x"])
        assert fits.params["slope"][number] == pytest.approx(slope, abs=0.02)
        scale = np.sqrt(np.mean((own["y"] - slope * own["x"]) ** 2))
        assert fits.params["scale"][number] == pytest.approx(scale, rel=0.05)
    assert fits.of("b").verdict().grade != "good"  # a fit by likelihood does not look whether it settled
    with pytest.raises(ValueError, match=r"fits\.params"):
        fits.sample()


@pytest.mark.slow
def test_a_bad_data_set_is_named_and_spoils_no_other():
    def counts(x, y):
        rate = phx.sample("rate", dist.LogNormal(0.0, 1.0))
        phx.sample("x", dist.Normal(rate, 1.0), obs=x)
        phx.sample("y", dist.Poisson(rate), obs=y)

    data = {"x": np.ones((4, 5)), "y": np.ones((4, 5), int)}
    good = fit_each(counts, phx.guides.mean_field(), data, each=AXES, **QUICK)
    data["x"][1, 0], data["y"][2, 3] = np.nan, -1
    fits = fit_each(counts, phx.guides.mean_field(), data, each=AXES, **QUICK)
    assert list(fits.failed) == [1, 2]
    assert "NaN in x" in fits.failed[1] and "'y'" in fits.failed[2] and "-1" in fits.failed[2]
    for number in (0, 3):
        np.testing.assert_array_equal(fits.params["rate.loc"][number], good.params["rate.loc"][number])
    assert np.isnan(fits.params["rate.loc"][1:3]).all() and np.isnan(fits.elbo[1:3]).all()
    assert np.isnan(fits.sample(n=4)["rate"][1:3]).all() and np.isfinite(fits.sample(n=4)["rate"][[0, 3]]).all()
    verdicts = fits.verdicts([0, 2])
    assert list(verdicts.index) == [0, 2] and verdicts.loc[2, "grade"] == "not good"
    assert verdicts.loc[0, "grade"] == fits.of(0).verdict().grade
    with pytest.raises(ValueError, match=r"fits.of\(2\): this data set was not fitted"):
        fits.of(2)
    with pytest.raises(ValueError, match="no data set has this name"):
        fits.of("x")
    data["x"][:] = np.nan
    data["x"][:, 0] = 1.0
    with pytest.raises(ValueError, match="none of the 4 data sets can be fitted"):
        fit_each(counts, phx.guides.mean_field(), data, each=AXES, **QUICK)


@pytest.mark.slow
def test_a_data_set_that_cannot_begin_spoils_no_other():
    def model(y):
        mean = phx.sample("mean", dist.Normal(0.0, 5.0))
        width = phx.sample("width", dist.Uniform(0.0, jnp.max(y)))
        phx.factor("near", -jnp.sum((y - mean) ** 2) * width)

    y = np.ones((3, 4))
    y[1, 2] = np.inf
    for init in (None, {"width": 0.5}):
        fits = fit_each(model, phx.guides.mean_field(), {"y": y}, each={"y": 0}, init=init, **QUICK)
        assert list(fits.failed) == [1] and np.isfinite(fits.params["mean.loc"][[0, 2]]).all()
    with pytest.raises(ValueError, match="'width' lies outside"):
        phx.fit(model, phx.guides.mean_field(), {"y": np.ones((3, 4))}, each={"y": 0}, init={"width": 2.0}, **QUICK)


@pytest.mark.slow
def test_discrete_variables_of_a_guide_that_is_a_program():
    def model(x, y):
        on = phx.sample("on", dist.Bernoulli(0.5))
        phx.sample("y", dist.Normal(3.0 * x * on, 1.0), obs=y)

    def guide():
        phx.sample("on", dist.Bernoulli(phx.param("p", 0.5, dist.constraints.unit_interval)))

    x = np.ones((2, 6))
    fits = fit_each(model, guide, {"x": x, "y": x * [[3.0], [0.0]]}, each=AXES, num_steps=400, progress=False)
    assert fits.params["p"][0] > 0.9 and fits.params["p"][1] < 0.1


@pytest.mark.slow
def test_summaries_are_those_of_the_draws():
    fits = fit_each(line, phx.guides.mean_field(), table({"a": 3, "b": 9}), each="subject", **QUICK)
    found = fits.summary("slope", prob=0.5, n=200, seed=3)
    draws = fits.sample(seed=3, n=200, names="slope")["slope"]
    np.testing.assert_allclose(found["mean"], draws.mean(1), rtol=1e-5)
    np.testing.assert_allclose(found["sd"], draws.std(1, ddof=1), rtol=1e-5)
    for number, name in enumerate("ab"):
        low, high = phx.diagnostics.hdi(draws[number][None], 0.5)
        assert tuple(found.loc[name].loc["slope"][["hdi_low", "hdi_high"]]) == pytest.approx((low, high))
    with pytest.raises(ValueError, match="slope"):
        fits.summary("slop")
    assert "2 data sets" in repr(fits) and "not settled" in repr(fits)


@pytest.mark.slow
def test_another_call_compiles_nothing_and_options_are_those_of_a_fit():
    data, options = regressions(4), {"each": AXES, "optimizer": optax.adam(0.05), "init": {"slope": 0.5}, **QUICK}
    fit_each(line, phx.guides.mean_field(), data, **options)
    fits = fit_each(line, phx.guides.mean_field(), {"x": data["x"], "y": data["y"] + 1}, **{**options, "seed": 9})
    assert fits.timing.compilations == 0
    own = {"x": data["x"][1], "y": data["y"][1] + 1}
    alone = phx.fit(
        line, phx.guides.mean_field(), own, optimizer=optax.adam(0.05), init={"slope": 0.5}, seed=10, **QUICK
    )
    assert_same(alone, fits.of(1))


def test_a_fit_that_runs_out_of_time_says_so_of_each_data_set():
    until = phx.until(seconds=1e-6)
    fits = fit_each(line, phx.guides.mean_field(), regressions(3), each=AXES, until=until, progress=False)
    assert sorted(fits.unsettled) == [0, 1, 2] and all("Time was over" in why for why in fits.unsettled.values())
    assert (fits.steps < 100).all() and np.isfinite(fits.params["slope.loc"]).all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"each": "subject"}, ValueError, "each='subject'"),
        ({"each": {"z": 0}}, ValueError, "no argument 'z'"),
        ({"optimizer": "lbfgs"}, ValueError, "optimizer: with each="),
        ({"batch_size": 3}, ValueError, "batch_size: fits with each="),
        ({"checkpoint": "folder"}, ValueError, "checkpoint: fits with each="),
        ({"missing": "impute"}, ValueError, "missing: fits with each="),
        ({"init": 3}, ValueError, "init: with each="),
        ({"init": {"scale": -1.0}}, ValueError, "'scale' lies outside"),
        ({"num_steps": 0}, ValueError, "num_steps: with each="),
        ({"guide": phx.guides.pathfinder()}, ValueError, "found without steps"),
    ],
)
def test_bad_arguments_are_refused(options, error, message):
    options = {"guide": phx.guides.mean_field(), "each": AXES, "progress": False, **options}
    with pytest.raises(error, match=message):
        phx.fit(line, options.pop("guide"), regressions(3), **options)
