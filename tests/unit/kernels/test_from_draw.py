"""A stranger's kernel: a function that makes a draw is tuned, and runs on any mesh."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from tests.conformance.agreement import assert_moments
from tests.conformance.langevin import block_of, langevin

import phalanx as phx
from phalanx.kernels import Info, Kernel, Machine, Point

COVARIANCE = np.array([[1.0, 9.5, 0.0], [9.5, 100.0, 0.05], [0.0, 0.05, 0.01]])
PRECISION = np.linalg.inv(COVARIANCE)


def gaussian(a):
    """With rows of data, so that a mesh has something to spread; they say nothing of x."""
    x = phx.sample("x", dist.MultivariateNormal(jnp.zeros(3), precision_matrix=PRECISION.astype(np.float32)))
    phx.sample("rows", dist.Normal(0.0 * x[0], 1.0).expand([len(a)]))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(1, 1), pytest.param((2, 2), marks=pytest.mark.slow)])
def test_a_function_recovers_a_correlated_gaussian_with_step_size_and_metric_learned(sizes, mesh_of):
    kernel, mesh = phx.from_draw(langevin, target_acceptance=0.574), mesh_of(*sizes)
    data = phx.shard({"a": np.zeros(5, np.float32)}, mesh)
    posterior = phx.mcmc(
        gaussian, data, kernel=kernel, mesh=mesh, num_chains=8, num_warmup=500, num_samples=1500, progress=False
    )
    assert_moments(posterior.draws["x"], np.zeros(3), np.sqrt(np.diag(COVARIANCE)))
    assert_moments(posterior.draws["rows"], np.zeros(5), np.ones(5))
    correlated = posterior.draws["x"][..., 0] * posterior.draws["x"][..., 1] / 10
    assert correlated.mean() == pytest.approx(0.95, rel=0.1)
    # without a metric no step is longer than the narrowest direction is wide, 0.1; with one it goes with its scale, 1
    assert posterior.stats["step_size"].mean() > 0.5
    # the harmonic mean is tuned, which is the lower one: rates of this kernel differ much from place to place
    assert 0.5 < posterior.stats["acceptance_rate"].mean() < 0.75


def test_it_takes_forty_lines_at_most():
    assert len(block_of("langevin").strip().splitlines()) <= 40


@pytest.mark.slow
def test_a_chain_is_the_same_whatever_the_number_of_chains_and_devices(mesh_of):
    kernel = phx.from_draw(langevin, step_size=0.1, metric=None)
    sizes = {"num_warmup": 0, "num_samples": 6, "progress": False}

    def draws(mesh, num_chains):
        data = phx.shard({"a": np.zeros(5, np.float32)}, mesh)
        return phx.mcmc(gaussian, data, kernel=kernel, mesh=mesh, num_chains=num_chains, **sizes).draws

    few, many = draws(mesh_of(1, 1), 2), draws(mesh_of(2, 4), 6)
    for name in ("x", "rows"):
        np.testing.assert_allclose(few[name], many[name][:2], rtol=2e-3, atol=2e-4)


@pytest.mark.slow
def test_kernels_of_one_function_compile_once():
    def run(seed):
        kernel = phx.from_draw(langevin, step_size=0.2, metric=None)
        return phx.mcmc(
            lambda: phx.sample("x", dist.Normal(0.0, 1.0)), kernel=kernel, num_warmup=2, num_samples=2, seed=seed,
            progress=False,
        )  # fmt: skip

    first, second = (run(seed).timing.compilations for seed in (0, 1))
    assert first > 0 and second == 0


def test_numbers_of_one_draw_are_unrelated_and_info_may_be_of_all_lanes():
    def draw(key, at, target, tuning):
        position = target.normal(key) + target.normal(key, 1) + target.normal(key, 2)
        value, gradient = target.value_and_grad(position)
        return Point(position, value, gradient), Info(target.uniform(key), jnp.zeros((), bool), jnp.int32(1), -value)

    kernel = phx.from_draw(draw, step_size=1.0, metric=None)
    run = phx.mcmc(
        lambda: phx.sample("x", dist.Normal(0.0, 1.0).expand([2])), kernel=kernel, num_chains=8, num_warmup=0,
        num_samples=2000, progress=False,
    )  # fmt: skip
    draws, uniforms = run.draws["x"], run.stats["acceptance_rate"]
    assert_moments(draws, np.zeros(2), np.full(2, np.sqrt(3)))
    assert_moments(uniforms[..., None], np.full(1, 0.5), np.full(1, np.sqrt(1 / 12)))
    related = np.corrcoef(np.stack([draws[..., 0].ravel(), draws[..., 1].ravel(), uniforms.ravel()])) - np.eye(3)
    assert np.abs(related).max() < 5 / np.sqrt(uniforms.size)  # false failures 2e-6


def test_wrong_options_are_refused():
    with pytest.raises(TypeError, match="from_draw: expected a function draw"):
        phx.from_draw("mala")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="from_draw: metric must be one of"):
        phx.from_draw(langevin, metric="full")
    with pytest.raises(ValueError, match="from_draw: step_size must be a positive number"):
        phx.from_draw(langevin, step_size=-1.0)


class WithTick(Machine):
    """A machine as Phalanx 0.1 had them."""

    def tick(self, now, active, keys, target, tuning):
        return now, active, ()


def test_a_machine_without_a_step_is_refused():
    message = (
        r"^mine: the machine WithTick must have a method step\(now, active, keys, target, tuning\), as "
        r"phx\.kernels\.Machine describes it; before 0\.2 it was called tick\.$"
    )
    with pytest.raises(TypeError, match=message):
        Kernel("mine", WithTick(), ())  # pyright: ignore[reportAbstractUsage]
