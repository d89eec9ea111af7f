"""Rows that devices have of variables and values, and axes that a variable cannot be sharded over."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx

X = np.random.default_rng(0).normal(size=(13, 2)).astype(np.float32)
DATA = {"x": X, "y": X[:, 0]}


def model_of(rows, mean=lambda rows, x: rows):
    def model(x, y):
        phx.sample("y", dist.Normal(mean(rows(x), x), 1.0), obs=y)

    return model


def declared(axis):
    return model_of(lambda x: phx.sample("rows", dist.Normal(0.0, 1.0).expand([x.shape[0]]), axis=axis))


def total_of(distribution):
    return model_of(lambda x: phx.sample("w", distribution(), axis="data"), lambda w, x: w.sum() + x[:, 0])


REFUSED = {
    "unknown": (declared("rows"), "Variable 'rows': axis='rows' is not an axis that a variable can be sharded over; "
                                  "choose from 'data', 'model'."),
    "chains": (declared("chain"), "Variable 'rows': axis='chain' is not an axis that a variable can be sharded over; "
                                  "choose from 'data', 'model'."),
    "one number": (total_of(lambda: dist.Normal(0.0, 1.0)), (
        "Variable 'w': it is declared axis='data', but it is one number, without rows to shard. Leave out axis=, or "
        "give it rows, as in dist.Normal(0.0, 1.0).expand([n])."
    )),
    "one event": (total_of(lambda: dist.Dirichlet(jnp.ones(8))), (
        "Variable 'w': it is declared axis='data', but its 8 rows are one event, with (7,) unconstrained numbers. "
        "Leave out axis=, or give it independent rows, as in dist.Normal(0.0, 1.0).expand([8])."
    )),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("devices", [1, 4])
def test_an_axis_that_a_variable_cannot_be_sharded_over_is_refused_on_any_mesh(name, devices, mesh_of):
    model, words = REFUSED[name]
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        phx.Target(model, phx.shard(DATA, mesh_of(1, devices)))


def values(x, y):
    rows = phx.sample("rows", dist.Normal(0.0, 1.0).expand([x.shape[0]]))
    few = phx.sample("few", dist.Normal(0.0, 1.0).expand([5]), axis="model")
    own = phx.sample("own", dist.Normal(0.0, 1.0).expand([5]))
    phx.deterministic("product", rows * y)
    phx.deterministic("mean", rows.mean())
    phx.deterministic("columns", rows[None] * own[:, None])
    phx.sample("y", dist.Normal(rows + few.sum(), 1.0), obs=y)


def test_variables_and_values_are_sharded_as_rows_of_data_are(mesh_of):
    target = phx.Target(values, phx.shard(DATA, mesh_of(1, 2, 2)))
    found = {name: (s.axes, s.rows, s.local_rows) for name, s in target.sites.values.items() if s.axes}
    assert found == {
        "rows": (("data",), 13, 7), "few": (("model",), 5, 3), "product": (("data",), 13, 7)
    }  # fmt: skip
    assert target.sites.observations["y"].axes == ("data",)


def test_nothing_is_sharded_on_one_device():
    target = phx.Target(values, DATA)
    assert not target.sites.is_divided
    assert not any(sharding.axes for sharding in target.sites.values.values())
