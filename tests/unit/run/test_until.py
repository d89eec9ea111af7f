"""Stopping conditions of a run."""

from __future__ import annotations

import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.diagnostics import ess, rhat


def model():
    phx.sample("x", dist.Normal(0.0, 1.0).expand([3]))


def run(**changes):
    return phx.mcmc(model, num_warmup=100, progress=False, **{"num_samples": 50_000, **changes})


def test_it_stops_when_effective_samples_and_r_hat_are_reached():
    posterior = run(until=phx.until(ess=700, r_hat=1.02))
    draws = posterior.draws["x"]
    assert (ess(draws) >= 700).all() and (ess(draws, "tail") >= 700).all() and (rhat(draws) < 1.02).all()
    assert posterior.num_draws < 3000 and not posterior.record.interrupted


def test_the_same_seed_stops_at_the_same_draw():
    assert run(until=phx.until(ess=300)).num_draws == run(until=phx.until(ess=300)).num_draws


def test_num_samples_is_the_most():
    assert run(num_samples=60, until=phx.until(ess=10**6)).num_draws == 60


def test_it_stops_in_time():
    posterior = run(num_samples=2_000_000, keep=[], until=phx.until(seconds=0.2))
    assert 0 < posterior.num_draws < 2_000_000


@pytest.mark.parametrize("value", [0.5, -1, "many", True])
def test_conditions_out_of_range_are_refused(value):
    with pytest.raises(ValueError, match="until: r_hat must be a number above 1"):
        phx.until(r_hat=value)


def test_no_condition_is_refused():
    with pytest.raises(ValueError, match="give at least one of r_hat=, ess= and seconds="):
        phx.until()
    with pytest.raises(TypeError, match=r"until: expected a condition such as phx.until"):
        run(until=400)
