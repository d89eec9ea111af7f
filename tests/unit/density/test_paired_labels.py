"""Arguments whose entries a program combines: their labels agree, or are refused by name."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr

import phalanx as phx

V = np.arange(6.0)
DAYS = pd.date_range("2026-01-01", periods=6)
TABLE = pd.DataFrame({"x": V, "y": V**2})
BY_DAY = TABLE.set_index(pd.Index(DAYS, name="day"))
TWO = pd.DataFrame({"p": V, "q": V**2})
WORDS = list("abcabc")


def line(x, y):
    slope = phx.sample("slope", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(slope * x, 1.0), obs=y)


def difference(x, z):
    slope = phx.sample("slope", dist.Normal(0.0, 1.0).expand([2]))
    phx.sample("y", dist.Normal(x @ slope - z @ slope, 1.0), obs=jnp.zeros(6))


def matches(home, away):
    strength = phx.sample("strength", dist.Normal(0.0, 1.0).expand([3]))
    phx.sample("y", dist.Normal(strength[home] - strength[away], 1.0), obs=jnp.zeros(6))


def groups(mean, group):
    effect = phx.sample("effect", dist.Normal(mean, 1.0))
    phx.sample("y", dist.Normal(effect[group], 1.0), obs=jnp.zeros(6))


def halves(x, y, new):
    slope = phx.sample("slope", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(slope * x, 1.0), obs=y)
    phx.deterministic("of_new", slope * new)


def by_day(labels: Any, values: Any = V) -> xr.DataArray:
    return xr.DataArray(values, dims="day", coords={"day": labels})


def levels(words: Any, names: str) -> pd.Categorical:
    return pd.Categorical(words, categories=list(names))


@pytest.mark.parametrize(
    ("model", "data"),
    [
        pytest.param(line, {"x": by_day(DAYS), "y": by_day(DAYS)[::-1]}, id="xarray"),
        pytest.param(line, {"x": by_day(range(6)), "y": by_day(range(6))[::-1]}, id="numbers"),
        pytest.param(line, {"x": BY_DAY.x, "y": BY_DAY.y[::-1]}, id="pandas"),
        pytest.param(line, {"x": TABLE.set_index(DAYS).x, "y": TABLE.set_index(DAYS).y[::-1]}, id="no name"),
        pytest.param(line, {"x": TABLE.x, "y": TABLE.y[::-1]}, id="numbered rows"),
        pytest.param(difference, {"x": TWO, "z": TWO[["q", "p"]]}, id="columns"),
        pytest.param(groups, {"mean": pd.Series(V[:3], list("cba")), "group": levels(WORDS, "abc")}, id="levels"),
    ],
)
def test_labels_in_another_order_are_refused_by_name(model, data):
    first, second = sorted(data)
    with pytest.raises(ValueError, match=rf"data: ({first} and {second}|{second} and {first}) are combined .* order"):
        phx.Target(model, data)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        pytest.param(by_day(DAYS), by_day(DAYS + pd.Timedelta(days=2)), id="overlap"),
        pytest.param(by_day(list("abcdef")), by_day(list("ghijkl")), id="others"),
        pytest.param(TABLE.x.drop(1), TABLE.y.drop(2), id="dropna"),
    ],
)
def test_other_labels_are_refused_by_name(x, y):
    with pytest.raises(ValueError, match="data: (x and y|y and x) are combined entry by entry, and have different"):
        phx.Target(line, {"x": x, "y": y})


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (line, TABLE),
        (line, {"x": by_day(DAYS), "y": V}),
        (line, {"x": by_day(DAYS), "y": BY_DAY.y}),
        (line, {"x": BY_DAY.x, "y": pd.Series(V, DAYS.as_unit("s").rename("day"))}),  # pyright: ignore[reportAttributeAccessIssue]
        (line, {"x": TABLE.x[:-1], "y": TABLE.y[1:]}),
        (line, {"x": TABLE.x.iloc[[3, 0, 1]], "y": pd.Series(V[:3])}),
        (line, {"x": pd.concat([TABLE.x] * 2), "y": pd.concat([TABLE.y] * 2).sort_index()}),
        (halves, {"x": BY_DAY.x[:3], "y": BY_DAY.y[:3], "new": BY_DAY.x[3:]}),
        (difference, {"x": TWO, "z": TWO.rename(columns=str.upper)}),
        (matches, {"home": levels(list("ababab"), "ab"), "away": levels(WORDS, "abc")}),
        (groups, {"mean": pd.Series(V[:3], list("abc")), "group": levels(WORDS, "abc")}),
    ],
)
def test_labels_that_agree_or_number_rows_are_taken(model, data):
    phx.Target(model, data)


def test_levels_that_are_numbered_differently_are_refused():
    with pytest.raises(ValueError) as error:
        phx.Target(matches, {"home": levels(WORDS, "abc"), "away": levels(WORDS[::-1], "cba")})
    assert str(error.value) == (
        "data: away and home look up entries of the same axis, and their levels are numbered differently: 'a' is "
        "number 2 of away and number 0 of home. Give both the same list of levels, as in pandas.Categorical(words, "
        "categories=levels)."
    )


@pytest.mark.parametrize(
    "run",
    [
        lambda data: phx.mcmc(line, data, progress=False),
        lambda data: phx.fit(line, phx.guides.mean_field(), data, progress=False),
        lambda data: phx.maximize(line, data),
        lambda data: phx.smc(line, data, progress=False),
        lambda data: phx.Target(line, phx.shard(data, phx.make_mesh(chain=1))),
        lambda data: phx.predictive(line, data, num_draws=2),
    ],
    ids=["mcmc", "fit", "maximize", "smc", "shard", "predictive"],
)
def test_all_calls_refuse_them(run):
    with pytest.raises(ValueError) as error:
        run({"x": BY_DAY.x, "y": BY_DAY.y[::-1]})
    assert str(error.value) == (
        "data: x and y are combined entry by entry, and have the same labels along 'day' in different orders: x begins "
        "with '2026-01-01', '2026-01-02', '2026-01-03', y with '2026-01-06', '2026-01-05', '2026-01-04'. Give both in "
        "one order, as y.reindex or xarray.align return them; or y.to_numpy(), if entries belong together by position."
    )
