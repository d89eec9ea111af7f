"""A fit on one device and on many: the same losses, the same guide."""

from __future__ import annotations

import jax
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from numpyro.distributions import constraints
from tests.mesh.row_programs import ADDS_UP, MIXES, OVER_DEVICES, data_of, model_of

import phalanx as phx
from phalanx.mesh.compatibility.jax_internals import RARELY
from phalanx.placements import over_mesh
from phalanx.variational.methods.step import Steps
from phalanx.variational.start import pair_of

ROWS = 16
RANDOM = np.random.default_rng(1)
DATA = {"x": RANDOM.normal(size=(ROWS, 2)).astype(np.float32), "y": RANDOM.normal(size=ROWS).astype(np.float32)}
SHORT = {"num_steps": 20, "num_particles": 8, "until": False, "progress": False}


def model(x, y):
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]))
    scale = phx.sample("scale", dist.HalfNormal(1.0))
    row = phx.sample("row", dist.Normal(0.0, scale).expand([len(y)]))
    phx.sample("y", dist.Normal(x @ w + row, 0.5), obs=y)


def guide(x):
    spread = phx.param("spread", 0.1, constraints.positive)
    phx.sample("w", dist.Normal(phx.param("loc", lambda key: 0.0 * jax.random.normal(key, (2,))), spread))
    phx.sample("scale", dist.LogNormal(phx.param("level", -1.0), 0.1))
    phx.sample("row", dist.Normal(x @ phx.param("amortised", np.zeros(2)), spread))


GUIDES = {
    "program": guide,
    "mean_field": phx.guides.mean_field(init_scale=0.1),
    "structured": phx.guides.structured(init_scale=0.1),
}


CASES = [
    pytest.param(name, rows, marks=[] if (name, rows) in {("program", 13), ("mean_field", 16)} else pytest.mark.slow)
    for name in GUIDES
    for rows in (16, 13)
]


@pytest.mark.slow
@pytest.mark.parametrize("name, rows", CASES)
def test_the_same_on_one_device_and_on_eight(name, rows, mesh_of):
    data = {key: values[:rows] for key, values in DATA.items()}
    alone = phx.fit(model, GUIDES[name], data, **SHORT)
    mesh = mesh_of(2, 4)
    spread = phx.fit(model, GUIDES[name], phx.shard(data, mesh), mesh=mesh, **SHORT)
    np.testing.assert_allclose(spread.losses.elbo, alone.losses.elbo, rtol=2e-4)
    for key, value in alone.params.items():
        np.testing.assert_allclose(spread.params[key], value, rtol=2e-3, atol=2e-3)
    assert spread.sample(seed=0, n=5)["row"].shape == (5, rows)


@pytest.mark.slow
def test_parameters_of_rows_live_where_the_rows_live(mesh_of):
    mesh = mesh_of(1, 8)
    fit = phx.fit(model, GUIDES["mean_field"], phx.shard(DATA, mesh), mesh=mesh, **SHORT)
    assert fit.free is not None
    assert {shard.data.shape for shard in fit.free["row.loc"].addressable_shards} == {(2,)}
    assert fit.free["w.loc"].sharding.is_fully_replicated


@pytest.mark.slow
@pytest.mark.parametrize("guide", [phx.guides.structured(init_scale=0.1), phx.guides.flow(init_scale=0.1)])
def test_messages_to_rows_lie_with_the_rows(guide, mesh_of):
    mesh = mesh_of(1, 8)
    fit = phx.fit(model, guide, phx.shard(DATA, mesh), mesh=mesh, **SHORT)
    assert fit.free is not None
    assert {shard.data.shape for shard in fit.free["row.loc"].addressable_shards} == {(2,)}
    assert fit.sample(seed=0, n=5)["row"].shape == (5, ROWS) and np.isfinite(fit.losses.elbo).all()
    if "row.on.scale" in fit.free:
        assert {shard.data.shape for shard in fit.free["row.on.scale"].addressable_shards} == {(2, 1)}
    else:
        assert fit.params["loc"].shape == (3,)


@pytest.mark.slow
def test_a_parameter_is_laid_out_as_its_spec_says(mesh_of):
    def model_of_weights(x, y):
        weights = phx.param("weights", np.ones((8, 2)), spec=("model", None))
        w = phx.sample("w", dist.Normal(0.0, 1.0).expand([2]))
        phx.sample("y", dist.Normal((x @ weights.T).mean(1) + x @ w, 0.5), obs=y)

    mesh = mesh_of(1, 2, 4)
    options = {**SHORT, "num_steps": 5}
    alone = phx.fit(model_of_weights, phx.guides.mean_field(init_scale=0.1), DATA, mesh=mesh_of(1, 1), **options)
    spread = phx.fit(
        model_of_weights, phx.guides.mean_field(init_scale=0.1), phx.shard(DATA, mesh), mesh=mesh, **options
    )
    assert spread.free is not None
    assert {shard.data.shape for shard in spread.free["weights"].addressable_shards} == {(2, 2)}
    np.testing.assert_allclose(spread.losses.elbo, alone.losses.elbo, rtol=2e-4)


def test_a_spec_that_does_not_fit_is_refused(mesh_of):
    def model_of_three(y):
        weights = phx.param("weights", np.ones(3), spec=("model",))
        phx.sample("y", dist.Normal(phx.sample("m", dist.Normal(0.0, 1.0)), weights.sum()), obs=y)

    with pytest.raises(ValueError, match="'weights' of shape .* cannot be laid out"):
        phx.fit(model_of_three, phx.guides.mean_field(), {"y": DATA["y"]}, mesh=mesh_of(1, 1, 2), **SHORT)


@pytest.mark.slow
def test_a_model_that_adds_over_the_mesh_itself(mesh_of):
    def summed(x, y):
        mean = jax.lax.psum(y.sum(), "data") / ROWS
        phx.sample("y", dist.Normal(phx.sample("m", dist.Normal(mean, 1.0)), 1.0), obs=y)

    mesh = mesh_of(1, 2)
    fit = phx.fit(summed, phx.guides.mean_field(init_scale=0.1), phx.shard(DATA, mesh), mesh=mesh, **SHORT)
    assert np.isfinite(fit.losses.elbo).all()


@pytest.mark.slow
def test_fixed_draws_climb_where_all_parameters_would_divide_over_the_devices(mesh_of):
    """21 rows make 44 parameters of 4 devices."""

    def rows_of(y):
        scale = phx.sample("scale", dist.HalfNormal(1.0))
        phx.sample("y", dist.Normal(phx.sample("row", dist.Normal(0.0, scale).expand([len(y)])), 0.5), obs=y)

    def climbed(mesh):
        data = {"y": np.arange(21, dtype=np.float32) / 10}
        given = phx.shard(data, mesh) if mesh is not None else data
        return phx.fit(
            rows_of, phx.guides.mean_field(), given, mesh=mesh, optimizer="lbfgs", until=False, progress=False
        )

    assert climbed(mesh_of(1, 4)).losses.elbo[-1] == pytest.approx(climbed(None).losses.elbo[-1], abs=0.02)


def gradient_of_a_step(factor, data, mesh):
    """Return the gradient that a step follows, and the bound of each of four particles."""
    given = data if mesh is None else phx.shard(data, mesh)
    pair = pair_of(model_of(factor), phx.guides.mean_field(), given, mesh, None, None)
    steps = Steps(pair, phx.guides.elbo(), optax.sgd(0.1), num_particles=4)
    shapes = {latent.name: latent.unconstrained_shape for latent in pair.problem.latents}
    free = {f"{name}.loc": np.zeros(shape, np.float32) for name, shape in shapes.items()}
    free |= {f"{name}.scale": np.full(shape, -2.0, np.float32) for name, shape in shapes.items()}
    arrays = pair.problem.place_arrays()

    def gradient(free, arrays):
        return steps.gradient(free, jax.random.key(0), arrays)

    run = gradient if mesh is None else over_mesh(gradient, mesh, (free, arrays))
    return jax.jit(run).lower(free, arrays).compile(RARELY)(free, arrays)


ALL = {**ADDS_UP, **OVER_DEVICES, **MIXES}
del ALL["while"]  # JAX differentiates no such loop in reverse, on one device either
QUICK = {"scan", "median", "group means", "gaussian process", "pmean"}
FACTORS = {name: factor for number, (name, factor) in enumerate(ALL.items()) if name in QUICK or number % 5 == 0}
"""Every fifth: `test_row_programs` has the gradients of all."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FACTORS]
)
def test_a_step_on_any_program_over_rows_is_that_of_one_device(name, mesh_of):
    data = data_of(13)
    found, wanted = (gradient_of_a_step(FACTORS[name], data, mesh) for mesh in (mesh_of(2, 4), None))
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        scale = 1.0 + np.max(np.abs(theirs))
        np.testing.assert_allclose(ours / scale, theirs / scale, atol=1e-4)
