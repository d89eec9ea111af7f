"""Trajectories without a Metropolis decision: their length, and the step size that all lanes tune."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

import phalanx as phx
from phalanx.inputs.arguments import split_arguments
from phalanx.kernels.integrators.unadjusted import LOG_OF_SQUARE, MOST_BROKEN, Unadjusted, unadjusted_trajectory
from phalanx.kernels.mams import Microcanonical
from phalanx.kernels.metric.low_rank import LaneMetric
from phalanx.kernels.protocol.kernel import Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.random_numbers import Keys

LANES, DIMENSIONS = 64, 3


def model():
    phx.sample("x", dist.Normal(0.0, jnp.array([1.0, 2.0, 0.5])))


TARGET = phx.Target.of(model, split_arguments(model, {}), phx.make_mesh(devices=jax.devices()[:1]))


@jax.jit
def _both(places: Any, length: Any, most: Any, step_size: Any) -> Any:
    """Trajectories that tune their step size, those that keep it, and one leapfrog from the same start."""

    def run(arrays: Any, places: Any, length: Any, most: Any, step_size: Any) -> Any:
        target = LaneTarget(TARGET.on_device(arrays, LANES), LANES)
        target.cache_coordinate_numbers()
        metric, dynamics, key = LaneMetric.of(None, target), Microcanonical(), Keys.of_chains(0, jnp.arange(LANES))
        position = jax.tree.map(lambda part: places.reshape(part.shape), target.normal(key.of_draw(0)))
        at = Point(position, *target.value_and_grad(position))
        begin = dynamics.begin(at, target.normal(key.of_draw(1)), target, metric)
        tuned, kept = (
            unadjusted_trajectory(dynamics, begin, length, most, step_size, tunes, target, metric)
            for tunes in (True, False)
        )
        next_point = dynamics.leapfrog(begin, step_size, target, metric)
        error = dynamics.kinetic_energy(next_point, target, metric) - (next_point.log_density - begin.log_density)
        return tuned, kept, next_point, error

    everywhere = PartitionSpec()
    on_mesh = jax.shard_map(run, mesh=TARGET.mesh, in_specs=(everywhere,) * 5, out_specs=everywhere, check_vma=False)
    return on_mesh(TARGET.place_arrays(), places, length, most, step_size)


def both(places: np.ndarray, length: float, most: int, step_size: float) -> tuple[Unadjusted, Unadjusted, Any, Any]:
    return jax.tree.map(
        np.asarray, _both(places.astype(np.float32), np.float32(length), np.int32(most), np.float32(step_size))
    )


def places_of(seed: int, scale: float) -> np.ndarray:
    return scale * np.random.default_rng(seed).normal(size=(DIMENSIONS, LANES))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.floats(0.1, 30.0), st.floats(0.01, 0.5))
def test_the_step_size_follows_the_energy_errors_of_all_lanes(seed: int, scale: float, step_size: float) -> None:
    tuned, kept, end, error = both(places_of(seed, scale), np.inf, 1, step_size)
    variance = np.exp(np.log(np.clip(error**2 / DIMENSIONS, 1e-20, 1e10)).mean() - LOG_OF_SQUARE)
    x, gradient = end.position.parts[0], end.gradient.parts[0]
    balance = ((x - x.mean(-1, keepdims=True)) * gradient).mean(-1)
    aim = 0.1 * min(np.mean((1 + balance) ** 2), 464.0) ** 0.375
    expected = np.clip((aim / variance) ** (1 / 6), 0.3, 3.0)
    if (np.abs(error) >= 100).mean() > MOST_BROKEN:
        expected = 0.5
    if not (np.abs(error) >= 100).any():
        np.testing.assert_array_equal(tuned.phase.position.parts[0], x)
        np.testing.assert_allclose(tuned.step_size / np.float32(step_size), expected, rtol=0.02)
    assert kept.step_size == np.float32(step_size) and tuned.steps == kept.steps == 1


@pytest.mark.parametrize(("length", "most", "steps"), [(1.0, 32, 4), (1.0, 2, 2), (0.3, 32, 1), (0.0, 32, 0)])
def test_a_trajectory_ends_at_its_length_or_after_the_most_leapfrogs(length: float, most: int, steps: int) -> None:
    kept = both(places_of(0, 1.0), length, most, 0.3)[1]
    assert kept.steps == steps
    np.testing.assert_allclose(kept.length, steps * 0.3, rtol=1e-6)


def test_lanes_that_break_down_stay_and_do_not_stop_the_others() -> None:
    places = places_of(0, 1.0)
    places[:, 0] = 1e30  # the log density overflows there
    tuned = both(places, np.inf, 5, 0.3)[0]
    moved = (tuned.phase.position.parts[0] != places.astype(np.float32)).any(0)
    np.testing.assert_array_equal(tuned.broken, np.arange(LANES) == 0)
    np.testing.assert_array_equal(moved, np.arange(LANES) != 0)
    assert tuned.step_size > 0.1
    places[:, : LANES // 2] = 1e30
    np.testing.assert_allclose(both(places, np.inf, 2, 0.3)[0].step_size, 0.3 / 4, rtol=1e-6)
