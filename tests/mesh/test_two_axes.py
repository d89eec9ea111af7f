"""Meshes on which data lie along two axes: log density and gradient are those of one device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from tests.mesh.agreement import assert_agree
from tests.mesh.models import X, Y

import phalanx as phx

A = np.random.default_rng(5).normal(size=12).astype(np.float32)
FEATURES = np.ascontiguousarray(X.T.repeat(2, axis=0))


def two_tables(x, y, a):
    """Rows of x and y along one axis, of a along another; latent variables for both and for neither."""
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([2]))
    level = phx.sample("level", dist.LogNormal(0.0, 1.0))
    of_x = phx.sample("of_x", dist.Normal(x @ w, level))
    of_a = phx.sample("of_a", dist.Normal(0.0, level).expand([a.shape[0]]))
    phx.factor("global", -jnp.sum(w**4))
    phx.sample("y", dist.Normal(of_x, 1.0), obs=y)
    phx.sample("a", dist.Normal(of_a, level), obs=a)


def rows_of_y(x, y):
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([2]))
    rows = phx.sample("rows", dist.LogNormal(x @ w, 1.0))
    phx.sample("y", dist.Normal(0.0, rows), obs=y)


def features(x, y):
    """Weights spread with the features; the user adds the pieces of the mean."""
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[0]]))
    spread = phx.sample("spread", dist.HalfNormal(1.0))
    phx.sample("y", dist.Normal(lax.psum(w @ x, "model"), spread), obs=y)


def weights_by_axis_size(y):
    """Large weights spread over an axis that no data lie along."""
    mine = 8 // lax.axis_size("model")
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([mine]), axis="model")
    mean = lax.psum(jnp.sum(jnp.sin(w)), "model")
    phx.sample("y", dist.Normal(mean, 1.0), obs=y)


def agree(model, data, axes, mesh):
    truth = phx.Target(model, data)
    position = truth.initial_position(jax.random.key(2))
    placed = {name: phx.shard(leaf, mesh, axes[name]) if axes.get(name) else leaf for name, leaf in data.items()}
    target = phx.Target(model, placed, mesh=mesh)
    assert_agree(target, position, *truth.value_and_grad(position))
    return target


@pytest.mark.parametrize(
    "sizes, rows_x, rows_a",
    [
        ((2, 2, 2), 13, 11),
        *(pytest.param(*c, marks=pytest.mark.slow) for c in (((1, 2, 2), 16, 12), ((1, 1, 4), 16, 11))),
    ],
)
def test_different_arrays_over_different_axes(sizes, rows_x, rows_a, mesh_of):
    data = {"x": X[:rows_x], "y": Y[:rows_x], "a": A[:rows_a]}
    agree(two_tables, data, {"x": "data", "y": "data", "a": "model"}, mesh_of(*sizes))


@pytest.mark.parametrize(
    "sizes, rows",
    [
        ((1, 2, 4), 13),
        *(pytest.param(*c, marks=pytest.mark.slow) for c in (((1, 1, 4), 16), ((1, 2, 2), 16), ((2, 2, 2), 13))),
    ],
)
def test_one_array_over_both_axes(sizes, rows, mesh_of):
    target = agree(rows_of_y, {"x": X[:rows], "y": Y[:rows]}, dict.fromkeys("xy", ("data", "model")), mesh_of(*sizes))
    assert target.sharding("rows").rows == rows


@pytest.mark.parametrize(
    "of_x, of_y",
    [
        pytest.param(("model", "data"), ("model", "data"), marks=pytest.mark.slow),
        (("model", "data"), ("data", "model")),
    ],
)
@pytest.mark.parametrize("rows", [pytest.param(16, marks=pytest.mark.slow), 13])
def test_the_order_in_which_axes_are_named_changes_nothing(of_x, of_y, rows, mesh_of):
    agree(rows_of_y, {"x": X[:rows], "y": Y[:rows]}, {"x": of_x, "y": of_y}, mesh_of(1, 2, 4))


def test_arrays_placed_by_hand_meet_row_by_row(mesh_of):
    mesh = mesh_of(1, 2, 2)
    x = jax.device_put(X, NamedSharding(mesh, PartitionSpec(("model", "data"))))
    y = jax.device_put(Y, NamedSharding(mesh, PartitionSpec(("data", "model"))))
    truth = phx.Target(rows_of_y, {"x": X, "y": Y})
    position = truth.initial_position(jax.random.key(2))
    assert_agree(phx.Target(rows_of_y, {"x": x, "y": y}), position, *truth.value_and_grad(position))


def test_columns_sharded_by_hand_are_gathered(mesh_of):
    mesh = mesh_of(1, 2, 2)
    x = jax.device_put(X, NamedSharding(mesh, PartitionSpec("data", "model")))
    truth = phx.Target(rows_of_y, {"x": X, "y": Y})
    position = truth.initial_position(jax.random.key(2))
    assert_agree(phx.Target(rows_of_y, {"x": x, "y": phx.shard(Y, mesh)}), position, *truth.value_and_grad(position))


@pytest.mark.parametrize(
    "sizes", [(2, 2, 2), *(pytest.param(c, marks=pytest.mark.slow) for c in ((1, 1, 2), (1, 1, 4)))]
)
def test_weights_spread_with_their_features(sizes, mesh_of):
    target = agree(features, {"x": FEATURES, "y": Y}, {"x": "model"}, mesh_of(*sizes))
    assert target.sharding("w").axes == ("model",)


@pytest.mark.parametrize(
    "sizes, shard_y", [((1, 1, 4), None), pytest.param((2, 2, 2), "data", marks=pytest.mark.slow), ((1, 4, 1), "data")]
)
def test_weights_spread_where_no_data_are(sizes, shard_y, mesh_of):
    target = agree(weights_by_axis_size, {"y": Y}, {"y": shard_y}, mesh_of(*sizes))
    assert target.sharding("w").axes == (("model",) if sizes[2] > 1 else ())


@pytest.mark.parametrize("axes", [("data",), ("model",), ("data", "model")], ids="-".join)
def test_a_mean_over_any_axis_is_of_all_rows(axes, mesh_of):
    """The rows are sharded over `model`; `data` has one device."""

    def centred(x, y):
        w = phx.sample("w", dist.Normal(0.0, 1.0))
        phx.sample("y", dist.Normal(w * (x[:, 0] - lax.pmean(x[:, 0].mean(), axes)), 1.0), obs=y)

    agree(centred, {"x": X[:13], "y": Y[:13]}, dict.fromkeys("xy", "model"), mesh_of(1, 1, 2))
