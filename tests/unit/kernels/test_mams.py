"""MAMS: its dynamics keep speed and energy, and what it refuses."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax
from jax.sharding import PartitionSpec
from tests.conformance.exact_starts import Drawer

import phalanx as phx
from phalanx.inputs.arguments import split_arguments
from phalanx.kernels.mams import Microcanonical
from phalanx.kernels.metric.low_rank import LaneMetric
from phalanx.kernels.protocol.kernel import Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.position import Vector

SIZES = {"num_chains": 16, "num_warmup": 200, "num_samples": 50, "progress": False}


def gaussian():
    phx.sample("x", dist.Normal(0.0, jnp.array([1.0, 2.0, 0.5, 1.5])))


def flown(steps, step_size):
    """Energy errors and lengths of the directions of 5 lanes after some leapfrogs."""
    mesh = phx.make_mesh(devices=jax.devices()[:1])
    target = phx.Target.of(gaussian, split_arguments(gaussian, {}), mesh)

    def run(arrays):
        lanes, dynamics = LaneTarget(target.on_device(arrays), 5), Microcanonical()
        metric = LaneMetric.of(None, lanes)
        random = np.random.default_rng(0)
        x, z = (Vector((jnp.asarray(random.normal(size=(4, 5)), jnp.float32),), lanes.layout) for _ in range(2))
        begin = dynamics.begin(Point(x, *lanes.value_and_grad(x)), z, lanes, metric)
        size = jnp.float32(step_size)
        end = lax.fori_loop(0, steps, lambda _, phase: dynamics.leapfrog(phase, size, lanes, metric), begin)
        error = dynamics.kinetic_energy(end, lanes, metric) - end.log_density + begin.log_density
        return error, lanes.inner_product(end.momentum, end.momentum)

    everywhere = PartitionSpec()
    return jax.shard_map(run, mesh=mesh, in_specs=(everywhere,), out_specs=everywhere, check_vma=False)(
        target.place_arrays()
    )


@pytest.mark.slow
def test_the_error_in_energy_goes_with_the_square_of_the_step_size():
    coarse, fine = (np.abs(flown(n, 1.0 / n)[0].in_double()).mean() for n in (10, 20))
    assert 3 < coarse / fine < 5


@pytest.mark.slow
def test_the_speed_is_the_same_everywhere():
    np.testing.assert_allclose(flown(30, 0.2)[1], 1.0, rtol=1e-5)


def test_one_coordinate_has_no_direction():
    with pytest.raises(ValueError, match="at least 2 coordinates, and this model has 1"):
        phx.mcmc(lambda: phx.sample("x", dist.Normal(0.0, 1.0)), kernel=phx.mams(), **SIZES)


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="mams: step_size"):
        phx.mams(step_size=-1.0)


@pytest.mark.slow
def test_a_way_that_numbers_do_not_resolve_is_not_taken():
    # steps much too long: without the rule 5 lanes of 20,000 end where 8e-5 should be
    def model():
        phx.sample("x", dist.Normal(0.0, 1.0).expand([3]))

    begin = {"x": np.random.default_rng(0).normal(size=(20_000, 3)).astype(np.float32)}
    tuning: dict[str, Any] = {"step_size": np.float32(3.0), "trajectory_length": np.float32(35.0)}
    found, info = Drawer(model, phx.mams(), 20_000, 100).after(begin, **tuning)
    assert ((found["x"] ** 2).sum(1) < 42.0).all()
    assert info["diverging"].any()


def test_in_warm_up_a_trajectory_that_climbs_need_not_lead_back():
    # from ten standard deviations a trajectory of four climbs by about 30, and draws directions too close together
    def model():
        phx.sample("x", dist.Normal(0.0, 1.0).expand([2]))

    begin = {"x": np.full((200, 2), 7.0, np.float32)}
    tuning: dict[str, Any] = {"step_size": np.float32(0.05), "trajectory_length": np.float32(4.0)}
    drawer = Drawer(model, phx.mams(), 200, 1)
    for in_warm_up, moves in ((False, False), (True, True)):
        found, _ = drawer.after(begin, **tuning, in_warm_up=np.bool_(in_warm_up))
        assert ((found["x"] != begin["x"]).any(1) == moves).mean() > 0.9


@pytest.mark.slow
def test_chains_that_begin_far_away_arrive_at_a_regression():
    random = np.random.default_rng(0)
    x = random.normal(size=(1000, 1)).astype(np.float32)
    y = (x @ [3.0] + random.normal(size=1000)).astype(np.float32)

    def model(x, y):
        scale = phx.sample("scale", dist.Exponential(1.0))
        coefs = phx.sample("coefs", dist.Normal(0.0, 5.0).expand([1]).to_event(1))
        phx.sample("y", dist.Normal(x @ coefs, scale), obs=y)

    sizes = {"num_chains": 64, "num_warmup": 150, "num_samples": 50, "progress": False}
    posterior = phx.mcmc(model, {"x": x, "y": y}, kernel=phx.mams(), **sizes)
    error = 1 / np.sqrt((x**2).sum())
    exact = float(x[:, 0] @ y / (x**2).sum())
    assert abs(posterior.draws["coefs"].mean((1, 2)) - exact).max() < 3 * error
    assert 0.8 < posterior.stats["acceptance_rate"].mean() < 0.98
    assert posterior.stats["acceptance_rate"].mean(1).min() > 0.6


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mams", *(pytest.param(name, marks=pytest.mark.slow) for name in ("nuts", "chees", "hmc", "rwmh"))]
)
def test_energy_that_is_not_finite_is_a_rejected_divergence(name):
    def model():
        x = phx.sample("x", dist.Normal(0.0, jnp.array([1.0, 10.0])))
        kind = jnp.select([x[1] > 5.0, x[1] < -5.0], [jnp.inf, -jnp.inf], jnp.nan)
        phx.factor("hole", jnp.where(x[0] > 3.0, kind, 0.0))

    begin = np.stack([np.full(192, 2.9), np.repeat([10.0, -10.0, 0.0], 64)], 1).astype(np.float32)
    kernel = getattr(phx, name)(step_size=0.5)
    found, info = Drawer(model, kernel, 192, 1).after({"x": begin})
    assert (found["x"][:, 0] <= 3.0).all() and np.isfinite(found["x"]).all()
    assert info["diverging"].reshape(3, 64).any(1).all()
