"""Comparison of the log density on a mesh with that on one device before a run."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.placements.rules import RULES
from phalanx.placements.rules.table import Plan
from phalanx.run import one_device_check

X = np.random.default_rng(0).normal(size=(203, 2)).astype(np.float32)


def model(x):
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([2]))
    phx.factor("f", -jnp.sqrt(1.0 + (x @ w) ** 2).sum())


def run(mesh, **options):
    return phx.mcmc(
        model, phx.shard({"x": X}, mesh), num_chains=2, num_warmup=5, num_samples=5, progress=False, **options
    )


@pytest.fixture
def wrong_rule(monkeypatch):
    """A rule of square roots that takes twice the rows of a device."""

    def rule(axis, equation, operands, placements):
        return Plan(placements, placements, local=lambda x: [2.0 * jnp.sqrt(x)])

    monkeypatch.setitem(RULES, "sqrt", rule)


@pytest.mark.usefixtures("wrong_rule")
def test_a_wrong_rule_is_refused_with_both_numbers(mesh_of):
    with pytest.raises(ValueError, match=r"the log density is -\d+\.\d+ on the mesh, and -\d+\.\d+ on one device"):
        run(mesh_of(2, 4))


@pytest.mark.usefixtures("wrong_rule")
def test_large_data_are_not_compared(mesh_of, monkeypatch):
    monkeypatch.setattr(one_device_check, "MOST_BYTES", X.nbytes - 1)
    assert run(mesh_of(2, 4)).draws["w"].shape == (2, 5, 2)


def test_a_sampler_compares_once(mesh_of, monkeypatch):
    calls = []
    before = one_device_check._on_one_device
    monkeypatch.setattr(one_device_check, "_on_one_device", lambda *given: calls.append(1) or before(*given))
    sampler = phx.compile(model, phx.shard({"x": X}, mesh_of(2, 2)), num_chains=2)
    for seed in range(2):
        sampler.run(num_warmup=5, num_samples=5, seed=seed, progress=False)
    assert len(calls) == 1


def test_numbers_that_are_not_finite_must_be_at_the_same_places():
    one = np.array([1.0, np.nan, np.inf])
    one_device_check._compare("w", one, one, one)
    with pytest.raises(ValueError, match=r"the derivative by 'w' at \[1\] is 2 on the mesh, and nan on one device"):
        one_device_check._compare("w", np.array([1.0, 2.0, np.inf]), one, one)


def test_rounding_of_an_ill_conditioned_density_passes():
    here, nearby = np.array([1.0, 100.0]), np.array([6.0, 100.0])
    one_device_check._compare("", np.array([4.0, 100.0]), here, nearby)
