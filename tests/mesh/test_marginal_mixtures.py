"""Mixtures whose assignments are summed out, with rows sharded over devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx

ROWS = np.random.default_rng(0).normal(size=16).astype(np.float32)


def mixture(y):
    share = phx.sample("share", dist.Beta(2.0, 2.0))
    mean = phx.sample("mean", dist.Normal(jnp.array([-1.0, 1.0]), 1.0))
    group = phx.sample("group", dist.Bernoulli(share).expand(y.shape))
    phx.sample("y", dist.Normal(mean[group], 1.0), obs=y)


def chain_of_each_row(y):
    stay = phx.sample("stay", dist.Beta(2.0, 2.0))
    state = jnp.zeros(y.shape[0], jnp.int32)
    for t in range(2):
        state = phx.sample(f"state{t}", dist.Bernoulli(jnp.where(state == 1, stay, 1.0 - stay)))
        phx.sample(f"y{t}", dist.Normal(state * (t + 1.0), 1.0), obs=y)


@pytest.mark.parametrize("rows", [16, 13])
@pytest.mark.parametrize("model", [mixture, chain_of_each_row])
def test_shares_add_up_and_are_proved_to(model, rows, mesh_of):
    y, program = ROWS[:rows], phx.marginalize(model)
    one = phx.Target(program, {"y": y}, mesh=mesh_of(1, 1))
    mesh = mesh_of(1, 8)
    eight = phx.Target(program, {"y": phx.shard(y, mesh)}, mesh=mesh, check="strict")
    assert not eight.rows.problem, eight.rows
    position = {name: 0.3 + 0.0 * value for name, value in one.initial_position(jax.random.key(0)).items()}
    (value, gradient), (exact, exact_gradient) = eight.value_and_grad(position), one.value_and_grad(position)
    np.testing.assert_allclose(value, exact, rtol=1e-5)
    for name, found in gradient.items():
        np.testing.assert_allclose(found, exact_gradient[name], rtol=1e-4, atol=1e-5)


def test_one_value_for_rows_of_all_devices_is_refused(mesh_of):
    def model(y):
        mean = phx.sample("mean", dist.Normal(0.0, 1.0))
        kind = phx.sample("kind", dist.Bernoulli(0.5))
        phx.sample("y", dist.Normal(mean + kind, 1.0), obs=y)

    mesh = mesh_of(1, 8)
    with pytest.raises(ValueError, match="'kind'"):
        phx.Target(phx.marginalize(model), {"y": phx.shard(ROWS, mesh)}, mesh=mesh, check="strict")
