"""Where the share rule cannot place a term or a variable, it names the variable and the way out."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax

import phalanx as phx

X = np.random.default_rng(0).normal(size=(16, 2)).astype(np.float32)
Y = X[:, 0]
EVEN, UNEVEN = 16, 13


def level():
    return phx.sample("level", dist.Normal(0.0, 1.0))


def likelihood(mean, y):
    phx.sample("y", dist.Normal(mean, 1.0), obs=y)


def scalar_factor(x, y):
    phx.factor("y", -jnp.sum((y - level()) ** 2))


def mean_factor(x, y):
    phx.factor("y", -jnp.mean((y - level()) ** 2) * 13)


def row_of_terms(x, y):
    """One term per row, but not along the leading dimension."""
    phx.factor("y", -((y - level()) ** 2)[None])


def event_over_rows(x, y):
    phx.sample("y", dist.Normal(level(), 1.0).expand([y.shape[0]]).to_event(1), obs=y)


def multivariate_rows(x, y):
    n = y.shape[0]
    phx.sample("y", dist.MultivariateNormal(jnp.full(n, level()), jnp.eye(n)), obs=y)


def constant_size(x, y):
    """Sixteen whatever the data."""
    phx.sample("rows", dist.Normal(0.0, 1.0).expand([16]), axis="data")
    likelihood(level(), y)


def constant_size_with_rows(x, y):
    likelihood(phx.sample("rows", dist.Normal(0.0, 1.0).expand([EVEN])), y)


def unknown_axis(x, y):
    likelihood(phx.sample("rows", dist.Normal(0.0, 1.0).expand([y.shape[0]]), axis="rows"), y)


def chain_axis(x, y):
    likelihood(phx.sample("rows", dist.Normal(0.0, 1.0).expand([y.shape[0]]), axis="chain"), y)


def contradiction(x, y):
    likelihood(phx.sample("rows", dist.Normal(x[:, 0], 1.0).expand([y.shape[0]]), axis="model"), y)


def local_without_rows(x, y):
    likelihood(phx.sample("mean", dist.Normal(x.mean(), 1.0)), y)


def local_of_one_row(x, y):
    likelihood(phx.sample("mean", dist.Normal(x.mean(), 1.0).expand([1]))[0], y)


def rows_behind(x, y):
    rows = phx.sample("rows", dist.Normal(0.0, 1.0).expand([2, y.shape[0]]))
    likelihood(rows.sum(0), y)


def local_deterministic(x, y):
    phx.deterministic("mean", x.mean())
    likelihood(level(), y)


def own_sum(x, y):
    likelihood(level() * lax.pmean(x.mean(), "data"), y)


def number_of_rows(x, y):
    phx.factor("f", -jnp.sqrt(x.shape[0]) * level() ** 2)
    likelihood(level_again(), y)


def level_again():
    return phx.sample("again", dist.Normal(0.0, 1.0))


def additive_number_of_rows(x, y):
    phx.factor("f", -x.shape[0] * level() ** 2)
    likelihood(level_again(), y)


def gathered(x, y):
    likelihood(level() * lax.all_gather(x, "data", tiled=True).mean(), y)


def several_rows(x, y):
    phx.factor("y", -jnp.cumsum(y[1:])[-1] * level())


CANNOT_BE_MASKED = (
    "Variable 'y': the rows of the data do not divide evenly over 4 devices, and the model {} (its log density has "
    "shape {} on the whole data). Keep one term per row (no to_event or sum over rows), compute what needs all rows "
    "before the data are sharded, or give a number of rows divisible by 4."
)
OVER_DEVICES = (
    "adds or gathers over devices itself, in a way for which Phalanx cannot prove that padded rows can be masked. It "
    "can for jax.lax.psum of a sum over rows, for jax.lax.pmean of a mean, and for jax.lax.pmax of a maximum"
)
NEEDS_ROWS = (
    "{} depends on data sharded over 'data', so it needs one leading row for each row of the data; but its shape is {} "
    "on the whole data and {} on one of 4 devices. Take its size from the data, as in .expand([x.shape[0]]); or, if it "
    "is meant to be global, make its inputs equal on all devices first, with jax.lax.pmean or psum over 'data'."
)
NUMBER_OF_ROWS = (
    "Variable 'f': its log density depends on the number of rows on a device, and does not add up to that of the whole "
    "data. Pass the number of rows as data, for instance data={{'num_rows': {}, ...}}, and use it instead of "
    "x.shape[0]."
)

CASES = [
    (mean_factor, UNEVEN, "Variable 'y': its log density on the whole data is not the sum of those on the rows of each "
                          "device along 'data'; on 13 of your rows it is"),
    (several_rows, UNEVEN, "Variable 'y': the rows of the data do not divide evenly over 4 devices, and the model sums "
                           "over rows itself, and the model does not run on a single row: "),
    (multivariate_rows, EVEN, "Variable 'y': the event of MultivariateNormal runs over the sharded rows (shape (16,)), "
                              "and its density is no product over rows, so it cannot be sharded over devices. Do not "
                              "shard these data."),
    (constant_size, EVEN, "Variable 'rows' is declared axis='data', but its shape is (16,) on the whole data and (16,) "
                          "on one of 4 devices: its rows are not sharded over them. Take its size from the data, as in "
                          ".expand([x.shape[0]]), or leave out axis=."),
    (constant_size_with_rows, EVEN, "The model runs on the whole data but not on the rows one device holds (x (4, 2), "
                                    "y "
                                    "(4,)). Inside the model take sizes from the data, as in x.shape[0], not from "
                                    "constants, and do not mix sharded with unsharded rows. The error: Variable 'y': "
                                    "the value has shape (4,), but its distribution Normal needs shape (16,)"),
    (unknown_axis, EVEN, "Variable 'rows': axis='rows' is not an axis that a variable can be sharded over; choose from "
                         "'data', 'model'."),
    (chain_axis, EVEN, "Variable 'rows': axis='chain' is not an axis that a variable can be sharded over; choose from "
                       "'data', 'model'."),
    (local_without_rows, EVEN, NEEDS_ROWS.format("Variable 'mean'", "()", "()")),
    (local_of_one_row, EVEN, NEEDS_ROWS.format("Variable 'mean'", "(1,)", "(1,)")),
    (rows_behind, EVEN, "Variable 'rows' has shape (2, 16) on the whole data but (2, 4) on one device: its size "
                        "depends on the sharded rows, but they are not its leading dimension. Give it one leading row "
                        "for each row of the data."),
    (local_deterministic, EVEN, NEEDS_ROWS.format("The deterministic value 'mean'", "()", "()")),
    (gathered, UNEVEN, CANNOT_BE_MASKED.format(OVER_DEVICES, "(13,)")),
    (number_of_rows, EVEN, NUMBER_OF_ROWS.format(EVEN)),
]  # fmt: skip


@pytest.mark.parametrize("model, rows, words", CASES, ids=lambda v: getattr(v, "__name__", None))
def test_the_variable_and_the_way_out_are_named(model, rows, words, mesh_of):
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.Target(model, phx.shard({"x": X[:rows], "y": Y[:rows]}, mesh_of(1, 4)))


@pytest.mark.parametrize("model", [scalar_factor, row_of_terms, event_over_rows, own_sum, additive_number_of_rows])
@pytest.mark.parametrize("rows", [EVEN, UNEVEN])
def test_sums_are_those_of_one_device(model, rows, mesh_of):
    data = {"x": X[:rows], "y": Y[:rows]}
    found, one = (phx.Target(model, phx.shard(data, mesh_of(1, devices))) for devices in (4, 1))
    position = {latent.name: np.float32(0.3) for latent in one.shares.latents}
    np.testing.assert_allclose(found.log_density(position), one.log_density(position), rtol=1e-5)


@pytest.mark.parametrize("model", [unknown_axis, chain_axis])
def test_a_wrong_axis_is_found_on_one_device_too(model):
    with pytest.raises(ValueError, match="Variable 'rows': axis='(rows|chain)' is not an axis that a variable can be"):
        phx.Target(model, {"x": X, "y": Y})


def test_an_axis_that_contradicts_the_dependence(mesh_of):
    mesh = mesh_of(1, 2, 2)
    words = (
        "Variable 'rows' is declared axis='model', but its distribution depends on what is sharded over 'data'. "
        "Declare "
        "that axis, or none: it then follows from the data."
    )
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.Target(contradiction, phx.shard({"x": X, "y": Y}, mesh))


def test_rows_that_could_be_those_of_two_tables(mesh_of):
    """Eight rows over two devices along either axis: the shape alone does not tell."""
    mesh = mesh_of(1, 2, 2)

    def model(x, y, axis=None):
        rows = phx.sample("rows", dist.Normal(0.0, 1.0).expand([y.shape[0]]), axis=axis)
        phx.sample("x", dist.Normal(level(), 1.0), obs=x)
        likelihood(rows, y)

    data = {"x": phx.shard(Y, mesh, "data"), "y": phx.shard(Y, mesh, "model")}
    words = (
        "Variable 'rows' has one row for each row of the data, but some data of 16 rows are sharded over 'data' and "
        "others over 'model': choose one, as in phx.sample(name, distribution, axis='data')."
    )
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.Target(model, data)
    assert phx.Target(model, {**data, "axis": "model"}).sharding("rows").axes == ("model",)
