"""Derivatives of log densities by code that knows no mesh: forward, in reverse, twice."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx

ROWS = 7
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
Y = (X.sum(1) + np.random.default_rng(1).normal(size=ROWS)).astype(np.float32)
POSITION = {"b": jnp.array([0.1, 0.2, 0.3]), "z": jnp.linspace(-1.0, 1.0, ROWS), "s": jnp.array(0.3)}


def model(x, y):
    b = phx.sample("b", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    z = phx.sample("z", dist.Normal(0.0, 1.0).expand([len(y)]))
    s = phx.sample("s", dist.LogNormal(0.0, 1.0))
    phx.factor("f", -jnp.log1p((y - x @ b - z) ** 2 / s).sum() - 0.5 * (y - x @ b).max() ** 2)


def blocked(x, y):
    b = phx.sample("b", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    z = phx.sample("z", dist.Normal(0.0, 1.0).expand([len(y)]))
    s = phx.sample("s", dist.LogNormal(0.0, 1.0))
    phx.sample("y", phx.blocked(lambda x, z: dist.Cauchy(x @ b + z, s), x, z, block=2), obs=y)


def log_densities(program, mesh):
    data = {"x": X, "y": Y}
    return [phx.Target(program, phx.shard(data, mesh)).log_density, phx.Target(program, data).log_density]


def along_itself(f):
    return jax.jvp(f, (POSITION,), (POSITION,))[1]


WAYS = {
    "gradient": lambda f: jax.grad(f)(POSITION),
    "forward": along_itself,
    "forward over reverse": lambda f: jax.hessian(f)(POSITION),
    "reverse over reverse": lambda f: jax.jacrev(jax.grad(f))(POSITION),
    "compiled": lambda f: jax.jit(jax.hessian(f))(POSITION),
    "of the gradient's norm": lambda f: jax.grad(lambda u: sum(jnp.vdot(g, g) for g in jax.grad(f)(u).values()))(
        POSITION
    ),
}


QUICK = {"gradient", "forward"}


@pytest.mark.parametrize("way", [pytest.param(way, marks=() if way in QUICK else pytest.mark.slow) for way in WAYS])
def test_derivatives_are_those_of_one_device(way, mesh_of):
    found, wanted = (jax.device_get(WAYS[way](f)) for f in log_densities(model, mesh_of(1, 4)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found, wanted)


@pytest.mark.slow
def test_a_likelihood_read_block_by_block_has_a_hessian(mesh_of):
    found, wanted = (jax.device_get(jax.jacrev(jax.grad(f))(POSITION)) for f in log_densities(blocked, mesh_of(1, 2)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), found, wanted)


@pytest.mark.slow
def test_the_derivatives_of_one_device_are_those_of_the_formula():
    def formula(b):
        residual = Y - X @ b
        return (
            dist.Normal(0.0, 1.0).log_prob(b).sum()
            - jnp.log1p((residual - POSITION["z"]) ** 2 / jnp.exp(POSITION["s"])).sum()
            - 0.5 * residual.max() ** 2
        )

    target = phx.Target(model, {"x": X, "y": Y})
    found = jax.hessian(lambda b: target.log_density({**POSITION, "b": b}))(POSITION["b"])
    np.testing.assert_allclose(found, jax.hessian(formula)(POSITION["b"]), rtol=1e-4, atol=1e-4)


def test_code_on_a_device_differentiates_twice(mesh_of):
    mesh = mesh_of(1, 4)
    target, one = phx.Target(model, phx.shard({"x": X, "y": Y}, mesh)), phx.Target(model, {"x": X, "y": Y})
    direction = {name: jnp.ones_like(leaf) for name, leaf in POSITION.items()}

    def product(f, position, direction):
        return jax.jvp(jax.grad(f), (position,), (direction,))[1]

    def on_device(position, direction, arrays):
        return product(target.on_device(arrays).log_density, position, direction)

    specs = target.position_specs()
    run = jax.shard_map(
        on_device, mesh=mesh, in_specs=(specs, specs, target.array_specs()), out_specs=specs, check_vma=False
    )
    padded = [{**tree, "z": jnp.append(tree["z"], 0.0)} for tree in (POSITION, direction)]
    found = jax.device_get(jax.jit(run)(*padded, target.place_arrays()))
    wanted = jax.device_get(product(one.log_density, POSITION, direction))
    for name, values in wanted.items():
        np.testing.assert_allclose(target.trim(name, found[name]), values, rtol=1e-4, atol=1e-4)
