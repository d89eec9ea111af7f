"""Properties of the leapfrog and the metric that make Hamiltonian Monte Carlo exact, and of HMC itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax
from jax.sharding import PartitionSpec
from tests.conformance.agreement import assert_moments

import phalanx as phx
from phalanx.inputs.arguments import split_arguments
from phalanx.kernels.integrators.acceptance import metropolis
from phalanx.kernels.integrators.leapfrog import PhasePoint, kinetic_energy, leapfrog
from phalanx.kernels.metric.given_metric import given_metric, metric_on
from phalanx.kernels.metric.low_rank import LaneMetric
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.position import Vector
from phalanx.mesh.random_numbers import Keys

COVARIANCE = np.array([[2.0, 0.6, 0.0], [0.6, 1.0, -0.3], [0.0, -0.3, 0.5]])
METRICS = {
    "identity": None,
    "diagonal": {"a": np.array(2.0), "b": np.array([1.0, 0.5])},
    "dense": COVARIANCE,
}


def model():
    a = phx.sample("a", dist.Normal(0.0, 1.0))
    phx.sample("b", dist.Normal(a, 0.7).expand([2]))


def with_lanes(name, count, f):
    """`f(target, metric, keys)` of some lanes on one device."""
    target = phx.Target.of(model, split_arguments(model, {}), phx.make_mesh(devices=jax.devices()[:1]))
    given = None if METRICS[name] is None else metric_on(given_metric("hmc", METRICS[name]), target)

    def run(arrays):
        on_lanes = LaneTarget(target.on_device(arrays, count), count)
        on_lanes.cache_coordinate_numbers()
        metric = LaneMetric.of(jax.tree.map(jnp.asarray, given), on_lanes)
        return f(on_lanes, metric, Keys.of_chains(0, jnp.arange(count)))

    everywhere = PartitionSpec()
    on_mesh = jax.shard_map(run, mesh=target.mesh, in_specs=(everywhere,), out_specs=everywhere, check_vma=False)
    return jax.tree.map(np.asarray, jax.jit(on_mesh)(target.place_arrays()))


def phase_of(target, metric, keys):
    position, normals = target.normal(keys.of_draw(0)), target.normal(keys.of_draw(1))
    return PhasePoint(position, metric.momentum(normals), *target.value_and_grad(position))


def moved(phase, step_size, steps, target, metric):
    return lax.fori_loop(0, steps, lambda _, now: leapfrog(now, jnp.float32(step_size), target, metric), phase)


SOME = [pytest.param(name, marks=[] if name == "dense" else pytest.mark.slow) for name in METRICS]


@pytest.mark.parametrize("name", SOME)
def test_a_trajectory_backwards_returns_to_its_start(name):
    def there_and_back(target, metric, keys):
        start = phase_of(target, metric, keys)
        end = moved(start, 0.05, 20, target, metric)
        by_sign = moved(end._replace(momentum=-end.momentum), 0.05, 20, target, metric)
        in_time = moved(end, -0.05, 20, target, metric)
        return start.position, end.position, by_sign.position, in_time.position

    start, end, by_sign, in_time = (x.parts[0] for x in with_lanes(name, 3, there_and_back))
    np.testing.assert_allclose(by_sign, start, atol=1e-5)
    np.testing.assert_allclose(in_time, start, atol=1e-5)
    assert np.abs(end - start).min() > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_the_energy_error_falls_with_the_square_of_the_step_size(name):
    def errors(target, metric, keys):
        start = phase_of(target, metric, keys)

        def error(step_size, steps):
            end = moved(start, step_size, steps, target, metric)
            before, after = (kinetic_energy(p.momentum, target, metric) - p.log_density for p in (start, end))
            return jnp.abs(after - before)

        return error(0.2, 5), error(0.1, 10)

    coarse, fine = with_lanes(name, 50, errors)
    assert 2.5 < np.median(coarse) / np.median(fine) < 6.5  # 4 to leading order


@pytest.mark.parametrize("name", METRICS)
def test_momenta_have_the_inverse_of_the_inverse_mass_matrix_for_covariance(name):
    count, along = 40_000, np.array([1.0, 2.0, 3.0], np.float32)

    def draw(target, metric, keys):
        some = Vector((jnp.broadcast_to(along[:, None], (3, count)),))
        return metric.momentum(target.normal(keys.of_draw(1))), metric.velocity(some)

    momenta, velocity = (x.parts[0] for x in with_lanes(name, count, draw))
    inverse_mass = {"identity": np.eye(3), "diagonal": np.diag([2.0, 1.0, 0.5]), "dense": COVARIANCE}[name]
    mass = np.linalg.inv(inverse_mass)
    # Wishart: var of a sample covariance is (m_ij^2 + m_ii m_jj) / n; six standard errors, false failures 1e-8
    error = np.sqrt((mass**2 + np.outer(np.diag(mass), np.diag(mass))) / count)
    assert (np.abs(np.cov(momenta) - mass) < 6 * error).all()
    np.testing.assert_allclose(velocity[:, 0], inverse_mass @ along, rtol=1e-5)


def test_kinetic_energy_is_half_the_squared_norm_under_the_identity():
    momentum = np.array([[3.0], [4.0], [0.0]], np.float32)
    energy = with_lanes("identity", 1, lambda t, metric, _: kinetic_energy(Vector((jnp.asarray(momentum),)), t, metric))
    assert energy == 12.5


@pytest.mark.parametrize(
    "log_ratio, probability", [(0.5, 1.0), (jnp.log(0.3), 0.3), (-jnp.inf, 0.0), (jnp.nan, 0.0), (jnp.inf, 0.0)]
)
def test_the_metropolis_rule(log_ratio, probability):
    accepted, rate, broken = metropolis(jnp.array([0.0, 0.29, 0.31, 0.99]), jnp.full(4, log_ratio))
    np.testing.assert_allclose(rate, probability, rtol=1e-6)
    assert (broken == ~np.isfinite(log_ratio)).all()
    np.testing.assert_array_equal(accepted, np.array([0.0, 0.29, 0.31, 0.99]) < probability)


@pytest.mark.slow
def test_trajectories_near_a_period_of_the_motion_still_mix():
    # Without jitter six leapfrogs of the tuned step size are a period of this posterior: R-hat was 1.17.
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3))
    y = x @ [1.0, -2.0, 0.5] + rng.normal(size=500)

    def regression(x, y):
        weights = phx.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]))
        noise = phx.sample("noise", dist.HalfNormal(1.0))
        phx.sample("y", dist.Normal(x @ weights, noise), obs=y)

    posterior = phx.mcmc(regression, {"x": x, "y": y}, kernel=phx.hmc(num_steps=6), progress=False)
    assert posterior.summary()["r_hat"].to_numpy().max() < 1.05


WIDTHS = np.array([0.01, 1.0, 100.0], np.float32)


def of_different_widths(**kernel):
    sizes = {"num_chains": 8, "num_warmup": 400, "num_samples": 300, "progress": False}
    return phx.mcmc(lambda: phx.sample("x", dist.Normal(0.0, WIDTHS)), kernel=phx.hmc(num_steps=5, **kernel), **sizes)


@pytest.mark.slow
def test_hmc_learns_the_metric_where_it_learns_the_step_size():
    learned = of_different_widths()
    assert_moments(learned.draws["x"], np.zeros(3), WIDTHS)
    assert learned.stats["step_size"].mean() > 0.2  # in units of the widths; 0.02 is the most without a metric


@pytest.mark.slow
def test_hmc_learns_no_metric_where_it_is_asked_for_none():
    plain = of_different_widths(metric="identity")
    assert plain.stats["step_size"].mean() < 0.03


@pytest.mark.slow
def test_a_given_metric_of_rows_spread_over_devices_is_that_of_one_device(mesh_of):
    def rows(y):
        level = phx.sample("level", dist.Normal(0.0, 1.0))
        phx.sample("y", dist.Normal(phx.sample("x", dist.Normal(level, 1.0).expand([len(y)])), 1.0), obs=y)

    y, variances = np.arange(5, dtype=np.float32), {"level": 0.2, "x": np.array([0.1, 0.5, 1.0, 2.0, 0.7])}
    kernel = phx.hmc(4, step_size=0.3, inverse_mass_matrix=variances)
    sizes: dict[str, Any] = {"num_warmup": 0, "num_samples": 5, "num_chains": 2}
    draws = [
        phx.mcmc(rows, phx.shard({"y": y}, mesh), kernel=kernel, mesh=mesh, progress=False, **sizes).draws["x"]
        for mesh in (mesh_of(1, 1), mesh_of(2, 4))
    ]
    np.testing.assert_allclose(*draws, rtol=2e-3, atol=2e-4)


def test_two_metrics_at_once_are_refused():
    with pytest.raises(ValueError, match="hmc: metric='dense' asks for a metric, and inverse_mass_matrix= gives"):
        phx.hmc(metric="dense", inverse_mass_matrix=np.eye(2))
    with pytest.raises(ValueError, match="hmc: metric must be one of 'auto', 'diagonal', 'dense', 'identity'"):
        phx.hmc(metric="full")
