"""Properties of the integrator and the metrics that make Hamiltonian Monte Carlo exact."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.kernels.acceptance import metropolis
from phalanx.kernels.integrators import Phase, trajectory
from phalanx.kernels.metrics import Identity, as_metric, kinetic_energy
from phalanx.mesh.space import everywhere_alike

COVARIANCE = np.array([[2.0, 0.6, 0.0], [0.6, 1.0, -0.3], [0.0, -0.3, 0.5]])
METRICS = {
    "identity": None,
    "diagonal": {"a": np.array(2.0), "b": np.array([1.0, 0.5])},
    "dense": COVARIANCE,
}


def model():
    a = phx.sample("a", dist.Normal(0.0, 1.0))
    phx.sample("b", dist.Normal(a, 0.7).expand([2]))


def phase_of(density, metric, key):
    position = density.initial_position(key)
    momentum = metric.momentum(density.space, jax.random.fold_in(key, 1), position)
    return Phase(position, momentum, *density.value_and_grad(position))


def on_device():
    target = phx.Target(model)
    return target.on_device(target.place_arrays())


@pytest.mark.parametrize("name", METRICS)
def test_a_trajectory_backwards_returns_to_its_start(name):
    density, metric = on_device(), as_metric(METRICS[name])
    start = phase_of(density, metric, jax.random.key(0))
    end = trajectory(density, metric, start, jnp.float32(0.05), jnp.int32(20))
    turned = end._replace(momentum=jax.tree.map(jnp.negative, end.momentum))
    back = trajectory(density, metric, turned, jnp.float32(0.05), jnp.int32(20))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), back.position, start.position)


@pytest.mark.parametrize("name", METRICS)
def test_the_energy_error_falls_with_the_square_of_the_step_size(name):
    density, metric = on_device(), as_metric(METRICS[name])
    start = phase_of(density, metric, jax.random.key(0))

    def error(step_size, steps):
        end = trajectory(density, metric, start, jnp.float32(step_size), jnp.int32(steps))
        energies = [kinetic_energy(metric, density.space, p.momentum) - p.log_density for p in (start, end)]
        return abs(float(energies[1] - energies[0]))

    ratio = error(0.2, 5) / error(0.1, 10)
    assert 2.5 < ratio < 6.5  # 4 to leading order


@pytest.mark.parametrize("name", METRICS)
def test_momenta_have_the_inverse_of_the_inverse_mass_matrix_for_covariance(name):
    like = {"a": jnp.zeros(()), "b": jnp.zeros(2)}
    metric, space = as_metric(METRICS[name]), everywhere_alike(like)
    count = 40_000
    drawn = jax.vmap(lambda k: metric.momentum(space, k, like))(jax.random.split(jax.random.key(0), count))
    flat = np.concatenate([np.asarray(drawn["a"])[:, None], drawn["b"]], axis=1)
    inverse_mass = {"identity": np.eye(3), "diagonal": np.diag([2.0, 1.0, 0.5]), "dense": COVARIANCE}[name]
    mass = np.linalg.inv(inverse_mass)
    # Wishart: var of a sample covariance is (m_ij^2 + m_ii m_jj) / n; six standard errors, false failures 1e-8
    error = np.sqrt((mass**2 + np.outer(np.diag(mass), np.diag(mass))) / count)
    assert (np.abs(np.cov(flat.T) - mass) < 6 * error).all()

    velocity = metric.velocity(space, {"a": jnp.asarray(1.0), "b": jnp.array([2.0, 3.0])})
    np.testing.assert_allclose(
        np.concatenate([np.ravel(velocity["a"]), velocity["b"]]), inverse_mass @ [1.0, 2.0, 3.0], rtol=1e-5
    )


def test_kinetic_energy_is_half_the_squared_norm_under_the_identity():
    momentum = {"a": jnp.asarray(3.0), "b": jnp.array([4.0, 0.0])}
    assert kinetic_energy(Identity(), everywhere_alike(momentum), momentum) == 12.5


@pytest.mark.parametrize(
    "log_ratio, probability", [(0.5, 1.0), (jnp.log(0.3), 0.3), (-jnp.inf, 0.0), (jnp.nan, 0.0), (jnp.inf, 0.0)]
)
def test_the_metropolis_rule(log_ratio, probability):
    accepted, rate = metropolis(jnp.array([0.0, 0.29, 0.31, 0.99]), jnp.full(4, log_ratio))
    np.testing.assert_allclose(rate, probability, rtol=1e-6)
    np.testing.assert_array_equal(accepted, np.array([0.0, 0.29, 0.31, 0.99]) < probability)


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
    assert posterior.summary()["r_hat"].max() < 1.05
