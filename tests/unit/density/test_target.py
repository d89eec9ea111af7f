"""Targets on one device, against log densities written by hand; and what a target refuses."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import polars as pl
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import phalanx as phx

X = np.array([[0.5, 1.0], [-1.0, 0.2], [0.3, -0.7], [2.0, 1.1], [0.0, 0.4], [1.0, 1.0]], np.float32)
Y = np.array([0.5, -1.0, 2.0, 0.1, 0.7, -0.2], np.float32)


def level():
    return phx.sample("level", dist.Normal(0.0, 1.0))


def regression(x, y):
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([2]))
    phx.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def test_the_log_density_of_unconstrained_positions_by_hand():
    """top = exp(u), below = top * sigmoid(v): log p + log top + log (top s (1 - s))."""

    def program():
        top = phx.sample("top", dist.Gamma(2.0, 3.0))
        phx.sample("below", dist.Uniform(0.0, top))

    def by_hand(p):
        top, s = jnp.exp(p["top"]), jax.nn.sigmoid(p["below"])
        density = 2 * jnp.log(3.0) + jnp.log(top) - 3 * top - jnp.log(top)
        return density + p["top"] + jnp.log(top * s * (1 - s))

    target = phx.Target(program)
    position = {"top": jnp.array(0.3), "below": jnp.array(-0.4)}
    value, gradient = target.value_and_grad(position)
    expected, expected_gradient = jax.value_and_grad(by_hand)(position)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for name, leaf in expected_gradient.items():
        np.testing.assert_allclose(gradient[name], leaf, rtol=1e-4)
    values = target.constrain(position)
    np.testing.assert_allclose(values["below"], jnp.exp(0.3) * jax.nn.sigmoid(-0.4), rtol=1e-5)
    back = target.unconstrain(values)
    np.testing.assert_allclose(back["below"], -0.4, rtol=1e-4)


def test_each_variable_tells_its_contribution(mesh_of):
    mesh = mesh_of(1, 4)
    target = phx.Target(regression, phx.shard({"x": X, "y": Y}, mesh))
    w = jnp.array([0.3, -0.1])
    run = jax.shard_map(
        lambda arrays: target.on_device(arrays).contributions({"w": w}), mesh=mesh,
        in_specs=(target.array_specs(),), out_specs=jax.sharding.PartitionSpec(), check_vma=False,
    )  # fmt: skip
    found = jax.jit(run)(target.place_arrays())
    assert found["w"] == pytest.approx(float(dist.Normal(0.0, 1.0).log_prob(w).sum()), rel=1e-5)
    assert found["y"] == pytest.approx(float(dist.Normal(X @ w, 1.0).log_prob(Y).sum()), rel=1e-5)


def test_a_missing_value_names_the_variable():
    target = phx.Target(regression, {"x": X, "y": Y})
    words = "No value was given for variable 'w'; give one for every latent variable."
    with pytest.raises(ValueError, match=re.escape(words)):
        target.unconstrain({})


def no_variables(y):
    return y


def only_data(y):
    phx.sample("y", dist.Normal(0.0, 1.0), obs=y)


def twice(y):
    level()
    level()


def wrong_shape(y):
    phx.sample("y", dist.Normal(jnp.zeros(4), 1.0), obs=y)


def discrete(y):
    phx.sample("kind", dist.Bernoulli(0.5))


@pytest.mark.parametrize("model, words", [
    (no_variables, "The model no_variables has no random variables to infer. Call phx.sample(name, "
                   "distribution) in it."),
    (only_data, "The model only_data has no latent variables to infer: all of 'y' are observed or computed."),
    (twice, "Two variables are named 'level'."),
    (wrong_shape, "Variable 'y': the value has shape (6,), but its distribution Normal needs shape (4,)"),
    (discrete, "Variable 'kind' is discrete (BernoulliProbs), and gradient-based and random-walk kernels move "
               "continuous positions. Sum it out of the model, phx.marginalize(model), if it has finitely many "
               "values; or observe it with obs=."),
])  # fmt: skip
@pytest.mark.parametrize("sharded", [False, True])
def test_a_model_with_nothing_to_infer_or_that_does_not_fit(model, words, sharded, mesh_of):
    data = phx.shard({"y": Y}, mesh_of(1, 2)) if sharded else {"y": Y}
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.Target(model, data)


@pytest.mark.parametrize("data, error, words", [
    ([X, Y], TypeError, "data must be a dict of the model's keyword arguments, such as {'x': x, 'y': y}; got list."),
    ({"x": X}, TypeError, "data does not fit the model regression(x, y): missing a required argument: 'y'. "
                          "data gives 'x'."),
    ({"x": X, "y": Y, "z": Y}, TypeError, "got an unexpected keyword argument 'z'. data gives 'x', 'y', 'z'."),
    ({}, TypeError, "missing a required argument: 'x'. data gives nothing."),
    ({"x": X[:0], "y": Y[:0]}, ValueError, "data: x has shape (0, 2): it is empty. Give it at least one row."),
    ({"x": X, "y": np.array(["a"])}, TypeError,
     "data: y is an array of <U1, which cannot be computed with; encode it as numbers."),
    ({"x": {"in": np.array([{}])}, "y": Y}, TypeError, "data: x['in'] is an array of object, which"),
    (pl.LazyFrame({"x": [1.0], "y": [1.0]}), TypeError, "got LazyFrame. It is not computed yet: give what .collect() "
                                                        "returns."),
    ({"x": X, "y": pl.LazyFrame()}, TypeError, "strings or functions. It is not computed yet: give what .collect() "
                                               "returns."),
    ({"x": X, "y": bytearray()}, TypeError,
     "data: y is a bytearray, which cannot be part of a compiled program; give arrays, numbers, strings or functions."),
])  # fmt: skip
def test_data_that_do_not_fit_the_model(data, error, words):
    with pytest.raises(error, match=re.escape(words)):
        phx.Target(regression, data)


def test_data_lie_on_one_mesh(mesh_of):
    placed = phx.shard({"x": X, "y": Y}, mesh_of(1, 2))
    words = (
        "mesh: the data were placed with phx.shard on a mesh of shape {'chain': 1, 'data': 2, 'model': 1}, but the run "
        "has {'chain': 4, 'data': 2, 'model': 1}. Use one mesh for both."
    )
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.Target(regression, placed, mesh=mesh_of(4, 2))
    two = {"x": phx.shard(X, mesh_of(1, 2)), "y": phx.shard(Y, mesh_of(1, 3))}
    words = (
        "data: arrays were placed with phx.shard on different meshes, of shapes {'chain': 1, 'data': 2, 'model': 1} "
        "and {'chain': 1, 'data': 3, 'model': 1}. Use one for all."
    )
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.Target(regression, two)


def test_copies_of_an_array_on_another_mesh_are_moved(mesh_of):
    everywhere = NamedSharding(mesh_of(2, 4), PartitionSpec())
    mesh = mesh_of(1, 2)
    data = {"x": jax.device_put(X, everywhere), "y": jax.device_put(Y, everywhere)}
    target, truth = phx.Target(regression, data, mesh=mesh), phx.Target(regression, {"x": X, "y": Y})
    position = {"w": jnp.array([0.3, -0.1])}
    assert target.log_density(position) == pytest.approx(float(truth.log_density(position)), rel=1e-5)


def test_explicit_axes_of_a_mesh_made_by_hand_are_no_other_mesh():
    mesh = jax.make_mesh((1, 2), ("chain", "data"), devices=jax.devices()[:2])
    data = {name: jax.device_put(leaf, NamedSharding(mesh, PartitionSpec("data"))) for name, leaf in
            {"x": X, "y": Y}.items()}  # fmt: skip
    target, truth = phx.Target(regression, data, mesh=mesh), phx.Target(regression, {"x": X, "y": Y})
    position = {"w": jnp.array([0.3, -0.1])}
    assert target.log_density(position) == pytest.approx(float(truth.log_density(position)), rel=1e-5)


@pytest.mark.parametrize("given", [True, False])
def test_a_mesh_needs_an_axis_for_chains(given):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    words = "mesh: needs an axis 'chain'; it has ('data',). Make it with phx.make_mesh."
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.Target(regression, phx.shard({"x": X, "y": Y}, mesh), mesh=mesh if given else None)


def test_data_are_not_sharded_over_chains(mesh_of):
    words = (
        "data: x is sharded over 'chain', the axis that chains are sharded over, so each chain would see a part of it. "
        "Shard it over 'data' or 'model'."
    )
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.Target(regression, phx.shard({"x": X, "y": Y}, mesh_of(2, 1), "chain"))


def test_a_mesh_without_devices_of_some_process_is_refused(mesh_of, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="there are 2 processes, and the mesh of shape .* has no devices of some"):
        phx.mcmc(regression, {"x": X, "y": Y}, mesh=mesh_of(1, 4), num_chains=4, progress=False)
