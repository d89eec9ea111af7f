"""The search for a step size, against an acceptance rate that is a known function of it."""

from __future__ import annotations

import math

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.adaptation.step_size import StepSize, StepSizeSearch, StepSizeState
from phalanx.adaptation.tuner import Stage, Sums

TARGET = 0.8
BEST = -math.log(TARGET)
"""Step size with the target rate, if steps of size e are accepted with probability exp(-e)."""


def ended(search: StepSizeSearch) -> StepSizeSearch:
    while not search.is_done:
        search = search.after(math.exp(-search.step_size), TARGET)
    return search


@pytest.mark.parametrize("begins", [1e-9, 1e-3, 0.11, 0.22, 0.4, 40.0])
def test_it_ends_at_a_step_size_that_is_accepted_where_one_twice_as_large_is_not(begins):
    found = ended(StepSizeSearch(begins)).step_size
    assert BEST / 2 <= found <= BEST


@pytest.mark.parametrize("found", [0.51 * BEST, 0.99 * BEST, 1.01 * BEST, 1.99 * BEST])
def test_step_size_of_trajectories_stays_if_a_leapfrog_gives_between_half_and_twice_of_it(found):
    assert ended(StepSizeSearch(found, is_known=True)).step_size == pytest.approx(found)


@pytest.mark.parametrize("found", [0.01 * BEST, 0.49 * BEST, 2.01 * BEST, 100 * BEST])
def test_step_size_that_is_farther_off_is_left(found):
    assert BEST / 2 <= ended(StepSizeSearch(found, is_known=True)).step_size <= BEST


def test_a_rate_that_is_no_number_calls_for_a_smaller_step():
    assert StepSizeSearch(1.0).after(math.nan, TARGET).step_size == 0.5


@pytest.mark.parametrize("scale", [1e-1, 1e5])
def test_a_random_walk_finds_the_order_of_its_step_size_in_a_short_warm_up(scale):
    def model():
        phx.sample("x", dist.Normal(0.0, scale).expand([5]))

    sizes = {"num_chains": 8, "num_warmup": 100, "num_samples": 200, "progress": False}
    mesh = phx.make_mesh(devices=jax.devices()[:1])
    posterior = phx.mcmc(model, kernel=phx.rwmh(), mesh=mesh, **sizes)
    assert 0.1 < posterior.stats["acceptance_rate"].mean() < 0.4


def tuned(window: int, stuck: int, frees_chains: bool = False, renews: bool = True) -> float:
    """Return the step size after rounds in which so many of 64 chains fail, and all others accept 0.95."""
    tuner, stage = StepSize(TARGET, "max_depth", frees_chains=frees_chains), Stage(window, 5, 5, renews)
    rates = np.where(np.arange(64) < stuck, 0.0, 0.95)
    sums = Sums(64, {"acceptance_rate": rates.sum()}, (1 / np.maximum(rates, 0.01)).sum())
    state = StepSizeState.start(StepSizeSearch.none(np.float64(1.0)))
    for _ in range(5):
        state = tuner.update(state, sums, None, stage)
    return float(state.averaging.step_size)


@pytest.mark.parametrize("stuck", [1, 10, 32])
def test_a_few_stuck_chains_make_the_step_size_shrink_in_early_windows(stuck):
    assert all(tuned(window, stuck, frees_chains=True) < 0.5 for window in (0, 1, 2))
    assert tuned(4, stuck, frees_chains=True) == tuned(3, stuck, frees_chains=True) == tuned(0, stuck)
    assert tuned(0, 0, frees_chains=True) > 1  # none is stuck: the rate is above the target


def test_without_a_metric_only_the_last_window_takes_the_mean_of_rates():
    assert tuned(3, 10, frees_chains=True, renews=False) == tuned(2, 10, frees_chains=True)
    assert tuned(4, 10, frees_chains=True, renews=False) == tuned(4, 10, frees_chains=True)


@pytest.mark.parametrize("target", [0.5, 0.8])
@pytest.mark.parametrize("coordinates", [1, 10, 100])
def test_trajectories_of_fixed_length_are_accepted_as_often_as_asked(coordinates, target):
    def model():
        phx.sample("x", dist.Normal(0.0, 1.0).expand([coordinates]))

    sizes = {"num_chains": 32, "num_warmup": 300, "num_samples": 200, "progress": False}
    mesh = phx.make_mesh(devices=jax.devices()[:1])
    posterior = phx.mcmc(model, kernel=phx.hmc(target_acceptance=target), mesh=mesh, **sizes)
    assert abs(posterior.stats["acceptance_rate"].mean() - target) < 0.03


def settled(stiff: float, rounds: int = 60) -> float:
    """Return the step size kept after a window in which one of 64 chains accepts exp(-stiff e), all others exp(-e)."""
    tuner, stage = StepSize(TARGET, "max_steps", frees_chains=True), Stage(0, 5, 5)
    state = StepSizeState.start(StepSizeSearch.none(np.float64(BEST)))
    for _ in range(rounds):
        rates = np.exp(-state.averaging.step_size * np.where(np.arange(64) < 1, stiff, 1.0))
        sums = Sums(64, {"acceptance_rate": rates.sum()}, (1 / np.maximum(rates, 0.01)).sum())
        state = tuner.update(state, sums, None, stage)
    return float(state.averaging.averaged)


@pytest.mark.parametrize("stiff", [1e4, math.inf])
def test_a_chain_that_no_step_size_frees_does_not_stop_the_others(stiff):
    assert 0.8 * BEST < settled(stiff) < 1.25 * BEST


@pytest.mark.parametrize("stiff", [4.0, 40.0])
def test_a_chain_that_smaller_steps_free_is_freed(stiff):
    assert math.exp(-stiff * settled(stiff)) > 0.02  # with the plain mean 1e-4 of the stiffer chain


@pytest.mark.slow
def test_chains_that_begin_far_away_arrive():
    """A regression in raw units, whose log densities begin at -1e6: with the plain mean eight of 64 chains stay."""
    random, rows = np.random.default_rng(0), 400
    iq, works = random.normal(100, 15, rows), np.arange(rows) % 2
    x = np.stack([np.ones(rows), iq, works, iq * works], 1).astype(np.float32)
    y = (x @ np.array([30, 0.5, 10, 0.1]) + 18 * random.normal(size=rows)).astype(np.float32)

    def model(x, y):
        w = phx.sample("w", dist.Normal(0.0, 100.0).expand([4]))
        phx.sample("y", dist.Normal(x @ w, phx.sample("sigma", dist.HalfCauchy(2.5))), obs=y)

    sizes = {"num_chains": 64, "num_warmup": 200, "num_samples": 50, "progress": False}
    posterior = phx.mcmc(model, {"x": x, "y": y}, **sizes)
    assert not posterior.stats["diverging"].any()
    assert posterior.stats["acceptance_rate"].mean(1).min() > 0.5
    assert np.max(posterior.summary()["r_hat"]) < 1.06
