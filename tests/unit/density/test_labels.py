"""Names reach the variables whose entries the program brings together with them, and no others."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import polars as pl
import pytest
import xarray as xr

import phalanx as phx
from phalanx.density.given_names import GivenNames
from phalanx.density.naming import Naming
from phalanx.inputs.arguments import split_arguments
from phalanx.programs.traced_program import TracedProgram

COLUMNS, LEVELS = ("age", "income", "old"), ("ADAMS", "COOK", "ST LOUIS")
X = pd.DataFrame(np.random.default_rng(0).normal(size=(6, 3)), columns=list(COLUMNS))
COUNTY = pd.Series(pd.Categorical([LEVELS[i] for i in (0, 2, 1, 0, 1, 2)]))


def found(mean, x: Any = X, county: Any = COUNTY, other=None):
    """The names of entries in a program that observes `mean(x, county, other)`."""
    return {name: labels for name, axes in axes_of(mean, x, county, other).items() if any(labels := entries(axes))}


def entries(axes):
    return tuple(axis.labels for axis in axes)


def axes_of(mean, x: Any = X, county: Any = COUNTY, other=None):

    def model(x, county, other):
        phx.sample("y", dist.Normal(mean(x, county, other), 1.0), obs=jnp.zeros(6))

    other = np.zeros(6, np.int32) if other is None else other
    arguments = split_arguments(model, {"x": x, "county": county, "other": other})
    with jax.numpy_rank_promotion("allow"):  # as users write models
        whole = TracedProgram.of_whole(model, arguments, {})
    return Naming.of(whole, arguments, GivenNames()).axes_of_data(arguments)


def normal(name, *shape):
    return phx.sample(name, dist.Normal(0.0, 1.0).expand(shape))


@pytest.mark.parametrize(
    "product",
    [
        lambda x, b: x @ b,
        lambda x, b: (x * b).sum(-1),
        lambda x, b: jnp.dot(x, jnp.exp(b)),
        lambda x, b: jnp.einsum("k,nk->n", b, x),
        lambda x, b: jax.vmap(lambda row: row @ b)(x),
        lambda x, b: jax.lax.map(lambda row: row @ b, x),
        lambda x, b: jax.jit(lambda x: ((x - x.mean(0)) / x.std(0)) @ b)(x),
        lambda x, b: (b[None, :] @ x.T)[0],
        lambda x, b: jnp.cumsum(x, axis=0) @ b,
        lambda x, b: (x.reshape(2, 3, 3) @ b).ravel(),
    ],
)
def test_columns_name_what_they_are_multiplied_with(product):
    assert found(lambda x, *_: product(x, normal("b", 3)) + normal("as_long", 3).sum()) == {"b": (COLUMNS,)}


@pytest.mark.parametrize(
    "pick",
    [
        lambda w, g: w[g],
        lambda w, g: jnp.take(w, g),
        lambda w, g: w[g[:, None]][:, 0],
        lambda w, g: w.at[g].get(mode="clip"),
        lambda w, g: jax.vmap(lambda i: w[i])(g),
        lambda w, g: jax.lax.map(lambda i: w[i], g),
        lambda w, g: jnp.log(w**2)[g.astype(int)],
    ],
)
def test_levels_name_what_codes_pick_from(pick):
    assert found(lambda x, g, _: pick(normal("w", 3), g) + normal("as_long", 3).sum()) == {"w": (LEVELS,)}


def test_an_axis_at_a_time():
    def mean(x, g, _):
        both = normal("both", 3, 2)[g, 0] + jnp.sum(x @ normal("b", 3, 2), -1)
        return both + jnp.take(normal("t", 2, 3), g, axis=1)[1] + (normal("slopes", 3, 3)[g] * x).sum(-1)

    expected = {"both": (LEVELS, None), "b": (COLUMNS, None), "t": (None, LEVELS), "slopes": (LEVELS, COLUMNS)}
    assert found(mean) == expected


def test_names_go_on_to_what_entries_are_made_of():
    def mean(x, g, _):
        z, scale = normal("z", 3), phx.sample("tau", dist.HalfNormal(1.0))
        w = phx.deterministic("w", normal("mu") + scale * z)
        local = phx.sample("local", dist.HalfCauchy(jnp.ones(3)))
        return w[g] + x @ phx.deterministic("b", local * normal("raw", 3))

    expected = {"z": (LEVELS,), "w": (LEVELS,), "local": (COLUMNS,), "raw": (COLUMNS,), "b": (COLUMNS,)}
    assert found(mean) == expected


@pytest.mark.parametrize(
    "prior",
    [
        dist.LogNormal(0.0, 1.0).expand([3]),
        dist.Dirichlet(np.ones(3)),
        dist.MultivariateNormal(np.zeros(3), np.eye(3)),
        dist.TransformedDistribution(dist.Normal(np.zeros(3), 1.0).to_event(1), dist.transforms.OrderedTransform()),
    ],
)
def test_constrained_variables_are_named_like_others(prior):
    assert found(lambda x, g, _: phx.sample("w", prior)[g]) == {"w": (LEVELS,)}


def test_variables_with_common_labels_stay_apart():
    def mean(x, g, other):
        zeros, scales = jnp.zeros(3), jnp.array([1.0, 2.0, 3.0])
        b, alike = (phx.sample(name, dist.Normal(zeros, scales)) for name in ("b", "alike"))
        return x @ b + alike[other]

    assert found(mean) == {"b": (COLUMNS,)}


def test_data_without_names_do_not_pass_them_on():
    def mean(x, g, other):
        return x @ phx.sample("b", dist.Normal(0.0, other)) + phx.sample("c", dist.Normal(0.0, other)).sum()

    assert found(mean, other=np.ones(3)) == {"b": (COLUMNS,)}


@pytest.mark.parametrize(
    "mean",
    [
        lambda x, g, _: x @ (w := normal("w", 3)) + w[g],
        lambda x, g, _: x @ normal("w", 4)[1:],
        lambda x, g, _: x[:, ::-1] @ normal("w", 3),
        lambda x, g, _: x[:, np.array([2, 0, 1])] @ normal("w", 3),
        lambda x, g, _: jnp.sort(x, 1) @ normal("w", 3),
        lambda x, g, _: jnp.roll(x, 1, 1) @ normal("w", 3),
        lambda x, g, _: x @ jnp.eye(3) @ normal("w", 3),
        lambda x, g, _: jnp.concatenate([jnp.ones((6, 1)), x], 1) @ normal("w", 4),
        lambda x, g, _: normal("w", 3)[2 - g],
        lambda x, g, _: normal("w", 3)[jnp.where(g == 1, g, 0)],
        lambda x, g, _: normal("w", 3)[g % 2],
        lambda x, g, _: normal("w", 5)[g],
        lambda x, g, _: jnp.cumsum(normal("w", 3))[::-1][g],
        lambda x, g, other: normal("w", 3)[other],
        lambda x, g, _: jnp.zeros(6) + normal("w", 6),
    ],
)
def test_where_nothing_is_certain_there_are_no_names(mean):
    assert found(mean) == {}


def test_two_tables_that_differ_name_nothing_and_two_that_agree_do():
    other = X.rename(columns={"age": "height"})
    assert found(lambda x, g, other: x @ (b := normal("b", 3)) + other @ b, other=other) == {}
    assert found(lambda x, g, other: x @ (b := normal("b", 3)) + other @ b, other=X) == {"b": (COLUMNS,)}


def test_names_come_with_tables_of_every_kind():
    linear = lambda x, *_: x @ normal("b", 3)  # noqa: E731
    assert found(linear, x=pl.DataFrame({name: X[name].to_numpy() for name in COLUMNS})) == {"b": (COLUMNS,)}
    array = xr.DataArray(X.to_numpy(), dims=("row", "what"), coords={"what": list(COLUMNS)})
    assert found(linear, x=array) == {"b": (COLUMNS,)}
    codes = pl.Series(list(COUNTY), dtype=pl.Enum(LEVELS))
    assert found(lambda x, g, _: normal("w", 3)[g], county=codes) == {"w": (LEVELS,)}
    assert found(linear, x=X.to_numpy()) == {}


def test_coordinates_of_whole_numbers_are_names_and_not_levels():
    trials = xr.DataArray(np.array([2, 0, 1, 0, 1, 2]), dims="school", coords={"school": list("ABCDEF")})
    names = dict.fromkeys(("rate", "y"), (tuple("ABCDEF"),))
    assert found(lambda x, g, other: normal("rate", 6) * other + normal("w", 3)[other], other=trials) == names
