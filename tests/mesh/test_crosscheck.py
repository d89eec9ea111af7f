"""Models that the share rule alone would get wrong are found by trying them out, and none that it gets right."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from tests.mesh.agreement import on_mesh, ranks
from tests.mesh.models import CASES, X, Y

import phalanx as phx
from phalanx.programs import crosscheck

N = len(Y)


@pytest.mark.parametrize("name", CASES)
def test_no_model_of_the_table_is_refused_or_left_unchecked(name, mesh_of, monkeypatch):
    compared = []
    compare = crosscheck._compare

    def record(shares, totals, *rest):
        compared.append(all(np.isfinite(total) for total in totals.values()))
        compare(shares, totals, *rest)

    monkeypatch.setattr(crosscheck, "_compare", record)
    with ranks(name):
        on_mesh(name, 16, mesh_of(1, 4))
    assert compared == [True]


def level():
    return phx.sample("level", dist.Normal(0.0, 1.0))


def centred(x, y):
    phx.sample("y", dist.Normal(level() * (x[:, 0] - x[:, 0].mean()), 1.0), obs=y)


def standardised(x, y):
    phx.sample("y", dist.Normal(level() * x[:, 0] / x[:, 0].std(), 1.0), obs=y)


def the_row_before(x, y):
    phx.sample("y", dist.Normal(level() * y[:-1], 1.0), obs=y[1:])


def cumulative(x, y):
    phx.sample("y", dist.Normal(level() * jnp.cumsum(x[:, 0]), 1.0), obs=y)


def first_row(x, y):
    phx.sample("y", dist.Normal(level() + x[0, 0], 1.0), obs=y)


def softmax_over_rows(x, y):
    phx.factor("y", jnp.sum(y * log_softmax(level() * x[:, 0])))


def log_softmax(x):
    return x - jnp.log(jnp.sum(jnp.exp(x)))


def log_of_a_sum(x, y):
    phx.factor("y", jnp.log(jnp.sum(jnp.exp(level() * y))))


def mean_of_terms(x, y):
    phx.factor("y", N * jnp.mean(dist.Normal(level(), 1.0).log_prob(y)))


def walk(x, y):
    """A random walk over the rows: each latent variable follows the one before."""
    path = phx.sample("path", dist.Normal(0.0, 1.0).expand([y.shape[0]]))
    phx.sample("y", dist.Normal(level() + jnp.cumsum(path), 1.0), obs=y)


def constant_from_rows(x, y):
    phx.factor("y", jnp.asarray(np.array([1.0, y.shape[0]], np.float32)) @ jnp.ones(2) * level())
    phx.sample("rows", dist.Normal(level_of_rows(y), 1.0), obs=y)


def level_of_rows(y):
    return jnp.zeros(y.shape[0])


MIXING = [centred, standardised, the_row_before, cumulative, first_row, softmax_over_rows, log_of_a_sum, mean_of_terms,
          walk, constant_from_rows]  # fmt: skip


@pytest.mark.parametrize("model", MIXING)
def test_a_model_that_mixes_rows_is_refused(model, mesh_of):
    mesh = mesh_of(1, 4)
    words = "Variable 'y': its log density on the whole data is not the sum of those on the rows of each device along "
    with pytest.raises(ValueError, match=re.escape(words + "'data'; on made-up rows it is ")) as error:
        phx.Target(model, phx.shard({"x": X, "y": Y}, mesh))
    assert "over all devices, as in jax.lax.pmean(x.mean(0), 'data'); or do not shard these data." in str(error.value)
    phx.Target(model, {"x": X, "y": Y}, mesh=mesh)  # unsharded, it is fine


def test_a_deterministic_value_that_depends_on_the_number_of_rows_is_refused(mesh_of):
    def model(y):
        phx.deterministic("rows", y.shape[0])
        phx.sample("y", dist.Normal(level(), 1.0), obs=y)

    words = "The deterministic value 'rows' is not on one device what it is on the whole data: it depends on how many"
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.Target(model, phx.shard({"y": Y}, mesh_of(1, 4)))


def test_a_latent_declared_over_the_wrong_axis_is_refused(mesh_of):
    def model(y):
        rows = phx.sample("rows", dist.Normal(0.0, 1.0).expand([y.shape[0]]), axis="model")
        phx.sample("y", dist.Normal(rows, 1.0), obs=y)

    with pytest.raises(ValueError, match="along 'data' and 'model'; on made-up rows"):
        phx.Target(model, phx.shard({"y": Y}, mesh_of(1, 2, 2)))


def test_rows_spread_over_different_axes_do_not_meet(mesh_of):
    mesh = mesh_of(1, 2, 2)

    def model(x, y):
        phx.sample("y", dist.Normal(level() * x[:, 0], 1.0), obs=y)

    with pytest.raises(ValueError, match="Variable 'y': its log density on the whole data is not the sum"):
        phx.Target(model, {"x": phx.shard(X, mesh, "data"), "y": phx.shard(Y, mesh, "model")})


def test_a_model_of_fixed_groups_of_rows_is_tried_out_on_more_rows(mesh_of):
    def model(y):
        of_groups = level() * jnp.mean(y.reshape(-1, 8), axis=1, keepdims=True)
        phx.factor("y", -jnp.sum((y.reshape(-1, 8) - of_groups) ** 2))

    def mixing(y):
        phx.factor("y", -(jnp.sum(level() - jnp.mean(y.reshape(-1, 8), axis=1)) ** 2))

    data = phx.shard({"y": np.concatenate([Y, Y])}, mesh_of(1, 2))
    phx.Target(model, data)
    with pytest.raises(ValueError, match="not the sum of those on the rows of each device"):
        phx.Target(mixing, data)


def test_values_that_no_distribution_takes_are_no_reason_to_refuse(mesh_of):
    def model(y):
        phx.sample("y", dist.Pareto(1.0, jnp.exp(level())), obs=y)  # made-up values lie below its support

    phx.Target(model, phx.shard({"y": 1 + np.abs(Y)}, mesh_of(1, 4)))
