"""The search for a step size, against an acceptance rate that is a known function of it."""

from __future__ import annotations

import math

import jax
import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.adaptation.step_size import StepSizeSearch

TARGET = 0.8
BEST = -math.log(TARGET)
"""Step size with the target rate, if steps of size e are accepted with probability exp(-e)."""


def ended(search: StepSizeSearch) -> StepSizeSearch:
    while not search.found:
        search = search.after(math.exp(-search.step_size), TARGET)
    return search


@pytest.mark.parametrize("begins", [1e-9, 1e-3, 0.11, 0.22, 0.4, 40.0])
def test_it_ends_at_a_step_size_that_is_accepted_where_one_twice_as_large_is_not(begins):
    found = ended(StepSizeSearch(begins)).step_size
    assert BEST / 2 <= found <= BEST


@pytest.mark.parametrize("found", [0.51 * BEST, 0.99 * BEST, 1.01 * BEST, 1.99 * BEST])
def test_what_trajectories_have_found_stays_where_a_leapfrog_says_no_more_than_twice_or_half_of_it(found):
    assert ended(StepSizeSearch(found, is_known=True)).step_size == pytest.approx(found)


@pytest.mark.parametrize("found", [0.01 * BEST, 0.49 * BEST, 2.01 * BEST, 100 * BEST])
def test_what_is_farther_off_is_left(found):
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
