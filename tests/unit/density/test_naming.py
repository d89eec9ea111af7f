"""Names of axes: what the user gives fits the model or is refused; then plates and data name the rest."""

from __future__ import annotations

import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import polars as pl
import pytest
import xarray as xr

import phalanx as phx
from phalanx.density.given_names import GivenNames
from phalanx.density.naming import Naming
from phalanx.inputs.arguments import split_arguments
from phalanx.inputs.axis_names import AxisNames
from phalanx.programs.traced_program import TracedProgram

FEATURES, SITES = ("age", "income", "old"), ("east", "north")
DATA = {
    "x": pd.DataFrame(np.zeros((6, 3)), columns=list(FEATURES)),
    "site": pd.Series(pd.Categorical([SITES[i] for i in (0, 1, 0, 0, 1, 1)])),
    "y": np.zeros(6),
}


def normal(name, *shape):
    return phx.sample(name, dist.Normal(0.0, 1.0).expand(shape))


def regression(x, site, y):
    w, level = normal("w", 3), normal("level", 2)
    mean = phx.deterministic("mean", x @ w + level[site])
    phx.sample("y", dist.Normal(mean, 1.0), obs=y)


def names(model: Any = regression, data: Any = DATA, dims: Any = None, coords: Any = None) -> AxisNames:
    arguments = split_arguments(model, data)
    whole = TracedProgram.of_whole(model, arguments, {})
    naming = Naming.of(whole, arguments, GivenNames.of(dims, coords))
    return naming.names(arguments, naming.axes_of_data(arguments))


def test_levels_name_their_dimension_as_the_argument_and_columns_their_entries():
    found = names()
    assert found.dims == {"level": ("site",)}
    assert found.labels == {"w": (FEATURES,), "level": (SITES,)}
    assert found.coords["site"] == SITES and found.coords["w_dim_0"] == FEATURES


def test_given_names_come_before_those_of_data():
    found = names(
        dims={"w": "feature", "level": ["place"], "y": ["row"]}, coords={"place": ["E", "N"], "row": range(10, 16)}
    )
    assert found.dims == {"w": ("feature",), "level": ("place",), "mean": ("row",), "y": ("row",)}
    assert found.coords["feature"] == FEATURES and found.labels["level"] == (("E", "N"),)
    assert found.labels["mean"] == (("10", "11", "12", "13", "14", "15"),) and found.coords["row"] == tuple(
        range(10, 16)
    )


def test_names_of_data_go_on_to_variables():
    data = DATA | {"x": np.zeros((6, 3))}
    found = names(data=data, dims={"x": ["row", "feature"]}, coords={"feature": FEATURES})
    assert found.dims == {
        "w": ("feature",),
        "level": ("site",),
        "mean": ("row",),
        "y": ("row",),
        "x": ("row", "feature"),
    }
    assert found.labels["w"] == (FEATURES,)


def test_xarray_and_tables_bring_names_of_dimensions():
    x = xr.DataArray(np.zeros((6, 3)), dims=("row", "year"), coords={"year": [2019, 2020, 2022]})
    assert names(data=DATA | {"x": x}).dims == {
        "w": ("year",), "level": ("site",), "mean": ("row",), "y": ("row",), "x": ("row", "year"),
    }  # fmt: skip
    assert names(data=DATA | {"x": x}).labels["w"] == (("2019", "2020", "2022"),)
    dated = x.assign_coords(year=np.array(["2019-01-01", "2020-01-01", "2022-06-01"], "datetime64[ns]"))
    assert names(data=DATA | {"x": dated}).coords["year"] == ("2019-01-01", "2020-01-01", "2022-06-01")
    table = DATA["x"].rename_axis(columns="feature", index="row")
    assert names(data=DATA | {"x": table}).dims["w"] == ("feature",)
    sharded = phx.shard({"x": x, "y": DATA["y"], "site": DATA["site"]}, phx.make_mesh(chain=1, data=2, devices=None))
    assert names(data=sharded).dims["w"] == ("year",)
    site = pl.Series(["east", "north"] * 3, dtype=pl.Enum(SITES))
    assert names(data=DATA | {"site": site}).dims["level"] == ("site",)


def test_a_named_index_of_pandas_names_rows():
    lettered = DATA["x"].set_axis(list("abcdef"), axis="index")
    named = names(data=DATA | {"x": lettered.rename_axis(index="row")})
    assert named.dims["mean"] == ("row",) and named.labels["mean"] == (tuple("abcdef"),)
    assert "mean" not in names(data=DATA | {"x": lettered}).labels
    twice = lettered.set_axis(list("aabbcc"), axis="index").rename_axis(index="row")
    assert "row" not in names(data=DATA | {"x": twice}).coords


def test_plates_name_axes():
    def model(x):
        with numpyro.plate("subject", 4, dim=-2), numpyro.plate("visit", 5):
            value: Any = numpyro.sample("value", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
            numpyro.deterministic("first", value[..., 0])
        with numpyro.plate("subject_again", 4):
            numpyro.sample("x", dist.Normal(0.0, 1.0), obs=x)
        with numpyro.handlers.scope(prefix="part"), numpyro.plate("arm", 3):
            numpyro.sample("effect", dist.Normal(0.0, 1.0))

    found = names(model, {"x": np.zeros(4)}, coords={"visit": list("abcde")})
    assert found.dims == {
        "value": ("subject", "visit", None), "first": ("subject", "visit"), "x": ("subject_again",),
        "part/effect": ("part.arm",),
    }  # fmt: skip
    assert found.labels["value"] == (None, tuple("abcde"), None)


def test_found_names_that_do_not_agree_are_left_out():
    def twice(site, other):
        phx.sample("y", dist.Normal(normal("both", 2, 2)[site, other] + normal("site", 2)[site], 1.0), obs=jnp.zeros(6))

    data = {"site": DATA["site"], "other": DATA["site"].cat.rename_categories(["a", "b"])}
    assert names(twice, data).dims == {"both": (None, "other")}  # `site` is a variable
    data = {"site": DATA["site"], "other": DATA["site"]}

    def square(site, other):
        phx.sample("y", dist.Normal(normal("both", 2, 2)[site, site], 1.0), obs=jnp.zeros(6))

    assert names(square, data).dims == {"both": ("site", None)}
    rows = {"a": xr.DataArray(np.zeros(2), dims="row"), "b": xr.DataArray(np.zeros(3), dims="row")}
    assert names(lambda a, b: normal("z"), rows).dims == {}


@pytest.mark.parametrize(
    "dims, coords, error, words",
    [
        ({"w": ["a", "b"]}, None, ValueError, "dims['w']: 2 names, ['a', 'b'], for shape (3,) of 1 axes."),
        ({"v": ["a"]}, None, ValueError, "dims: the model has no variable or argument 'v'; it has 'w', 'level', "),
        ({"x": ["row"]}, None, ValueError, "dims['x']: 1 names, ['row'], for shape (6, 3) of 2 axes."),
        ({"w": ["a"], "level": ["a"]}, None, ValueError, "the dimension 'a' has 3 entries in 'w', and 2 in 'level'."),
        ({"w": ["level"]}, None, ValueError, "dims['w']: the dimension 'level' has the name of a variable"),
        ({"w": ["chain"]}, None, ValueError, "dims['w']: 'chain' names another dimension of the draws already."),
        ({"w": ["level_dim_0"]}, None, ValueError, "'level_dim_0' names another dimension"),
        ({"x": ["a", "a"]}, None, ValueError, "dims['x'] names two axes 'a'. Give them two names, such as 'a' and"),
        ({"w": ["a/b"]}, None, TypeError, "dims['w']: expected words without '/'"),
        ({"w": [3]}, None, TypeError, "dims['w']: expected words"),
        ({"w": 3}, None, TypeError, "dims['w']: expected a list of names, one for each axis; got 3."),
        (["w"], None, TypeError, "dims: expected a dict of names by variable"),
        ({"w": ["f"]}, {"f": ["a", "b"]}, ValueError, "coords['f'] has 2 names, and 'w' has 3 entries along this dim"),
        (None, {"site": ["a"]}, ValueError, "coords['site'] has 1 names, and 'level' has 2 entries along "
         "this dimension. Give one name for each entry; or give the axis of 'level' another name in dims=."),
        ({"w": ["feature"]}, {"features": ["a"]}, ValueError, "there is no dimension 'features'; there are 'feature'"),
        ({"w": ["f"]}, {"f": ["a", 1, "1"]}, ValueError, "coords['f'] has the name '1' twice, at 1 and 2."),
        ({"w": ["f"]}, {"f": "abc"}, TypeError, "coords['f']: expected a list of names, one for each entry; got 'abc'"),
        ({"w": ["f"]}, {"f": np.zeros((3, 1))}, TypeError, "coords['f']: expected a list of names, one for each entry"),
        (None, [3], TypeError, "coords: expected a dict of names by dimension"),
    ],
)  # fmt: skip
def test_wrong_names_are_refused(dims, coords, error, words):
    with pytest.raises(error, match=re.escape(words)):
        names(dims=dims, coords=coords)
