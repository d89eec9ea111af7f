"""Every kernel on every mesh recovers posteriors that have a closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpyro.distributions as dist
import pytest
from tests.conformance.agreement import assert_moments
from tests.conformance.kernels import KERNELS, KERNELS_ON_MESHES, KNOWING_MESHES, MESHES, NAMES

import phalanx as phx
from phalanx.run.device.executables import block_arguments, first_tuning
from phalanx.run.init_values import Initial

ROWS = 13  # divides by no number of devices: padded rows must not count
X = np.random.default_rng(1).normal(size=(ROWS, 3)).astype(np.float32)
Y = (X @ [0.5, -1.0, 0.2] + np.random.default_rng(2).normal(size=ROWS)).astype(np.float32)


def linear(x, y):
    weights = phx.sample("weights", dist.Normal(0.0, 1.0).expand([3]))
    phx.sample("y", dist.Normal(x @ weights, 1.0), obs=y)


def exact_weights():
    covariance = np.linalg.inv(np.eye(3) + X.T.astype(float) @ X)
    return covariance @ X.T @ Y, np.sqrt(np.diag(covariance))


@pytest.mark.parametrize("name, chain, data", KERNELS_ON_MESHES)
def test_conjugate_regression(name, chain, data, mesh_of):
    mesh = mesh_of(chain, data)
    posterior = phx.mcmc(
        linear, phx.shard({"x": X, "y": Y}, mesh), kernel=KERNELS[name], mesh=mesh,
        num_chains=8, num_warmup=300, num_samples=600, thin=3 if name == "rwmh" else 1, progress=False,
    )  # fmt: skip
    assert_moments(posterior.draws["weights"], *exact_weights())


def local_level(y):
    """One latent variable per row of the data, and one for all."""
    level = phx.sample("level", dist.Normal(0.0, 1.0))
    rows = phx.sample("rows", dist.Normal(level, 1.0).expand([y.shape[0]]))
    phx.sample("y", dist.Normal(rows, 0.5), obs=y)


def exact_local_level():
    # in the order (level, rows): precision of the joint Gaussian, and its linear term
    n = len(Y)
    precision = np.zeros((n + 1, n + 1))
    precision[0, 0] = 1 + n
    precision[0, 1:] = precision[1:, 0] = -1
    precision[1:, 1:] = np.eye(n) * (1 + 4)
    covariance = np.linalg.inv(precision)
    return covariance @ np.concatenate([[0.0], 4 * Y]), covariance


@pytest.mark.parametrize("chain, data", MESHES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_a_latent_variable_per_row(name, chain, data, mesh_of):
    mesh = mesh_of(chain, data)
    posterior = phx.mcmc(
        local_level, phx.shard({"y": Y}, mesh), kernel=KNOWING_MESHES[name], mesh=mesh,
        num_chains=8, num_warmup=300, num_samples=800, progress=False,
        thin=4 if name == "rwmh" else 1,
    )  # fmt: skip
    mean, covariance = exact_local_level()
    assert posterior.draws["rows"].shape == (8, posterior.num_draws, ROWS)
    both = np.concatenate([posterior.draws["level"][..., None], posterior.draws["rows"]], axis=-1)
    assert_moments(both, mean, np.sqrt(np.diag(covariance)))

    # Coordinates on different devices are as correlated as the posterior says, and no more (0.98 if they shared
    # momenta).
    if name == "hmc":
        correlation = np.corrcoef(both.reshape(-1, ROWS + 1).T)
        exact = covariance / np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
        assert np.abs(correlation - exact).max() < 0.15


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [phx.hmc(num_steps=5, step_size=0.1), phx.rwmh(step_size=0.1)], ids=["hmc", "rwmh"])
def test_the_same_seed_gives_the_same_chains_on_every_mesh(kernel, mesh_of):
    def first_draws(chain, data, model, values):
        mesh = mesh_of(chain, data)
        values = values if data == 1 else phx.shard(values, mesh)
        return phx.mcmc(
            model, values, kernel=kernel, mesh=mesh, num_chains=8, num_warmup=5, num_samples=20, seed=3, progress=False
        ).draws

    for model, values in ((linear, {"x": X, "y": Y}), (local_level, {"y": Y})):
        alone = first_draws(1, 1, model, values)
        for chain, data in [(2, 1), (8, 1), (2, 4), (1, 8)]:
            draws = first_draws(chain, data, model, values)
            for name in alone:
                np.testing.assert_allclose(
                    draws[name], alone[name], rtol=2e-3, atol=2e-4, err_msg=f"{chain}x{data} {name}"
                )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_global_variables_stay_bit_equal_on_all_devices(name, mesh_of):
    mesh = mesh_of(2, 4)
    sampler = phx.compile(local_level, phx.shard({"y": Y}, mesh), kernel=KNOWING_MESHES[name], mesh=mesh, num_chains=4)
    blocks: Any = sampler.executables
    tuning = first_tuning(sampler.executables.blocks)
    begun = blocks.start(np.uint32(0), sampler.arrays, Initial())
    order = block_arguments(np.full(4, 20), ticks=500)
    none = blocks.no_records(sampler.arrays, np.zeros(blocks.blocks.num_chains, np.int32))
    advanced = blocks.record(np.uint32(0), sampler.arrays, tuning, order, blocks.rounds.no_rounds(), begun.chains, none)
    shared = advanced.sinks.states[0][0]  # the level, the statistics
    held = [np.asarray(piece.data) for piece in shared.addressable_shards]
    for first in (0, 4):  # the four devices of each chain group
        assert held[first][:20].any()
        assert all(np.array_equal(held[first], other) for other in held[first : first + 4])
    rows = [np.asarray(piece.data)[:20, :, :4] for piece in advanced.sinks.states[0][1].addressable_shards]
    assert not any(np.allclose(rows[0][..., 0], other[..., 0]) for other in rows[1:3])


def independent_rows(y):
    """Every variable has a row per row of the data: no variable is replicated."""
    level = phx.sample("level", dist.Normal(0.0, 1.0).expand([len(y)]))
    phx.sample("y", dist.Normal(level, 1.0), obs=y)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_all_variables_may_be_spread_over_devices(name, mesh_of):
    mesh, y = mesh_of(2, 4), np.linspace(-2.0, 2.0, 6).astype(np.float32)
    posterior = phx.mcmc(
        independent_rows, phx.shard({"y": y}, mesh), kernel=KNOWING_MESHES[name], mesh=mesh, num_chains=4,
        num_warmup=400, num_samples=1000, progress=False,
    )  # fmt: skip
    assert_moments(posterior.draws["level"], y / 2, np.full(6, np.sqrt(0.5)))
