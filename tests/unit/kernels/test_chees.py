"""ChEES-HMC: where its trajectories' lengths come from, and what it refuses."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

import phalanx as phx
from phalanx.adaptation.acceptance import LEAST_RATE, harmonic_mean, harmonic_mean_of_normal_errors
from phalanx.adaptation.trajectory import TrajectoryState
from phalanx.diagnostics import ess
from phalanx.kernels.chees import radical_inverse

SIZES = {"num_chains": 64, "num_warmup": 300, "num_samples": 100, "progress": False}


def gaussian():
    phx.sample("x", dist.Normal(0.0, jnp.array([1.0, 10.0, 0.1])))


def test_the_radical_inverse_reverses_the_bits():
    exact = [int(format(n, "032b")[::-1], 2) / 2**32 for n in range(1, 200)]
    np.testing.assert_allclose(radical_inverse(jnp.arange(1, 200)), exact, rtol=1e-6)


@pytest.fixture(scope="module")
def steps():
    """Leapfrogs of each draw, where the length is learned."""
    return phx.mcmc(gaussian, kernel=phx.chees(metric="diagonal", step_size=0.05), **SIZES).stats["num_steps"]


@pytest.mark.slow
def test_the_length_is_where_chees_is_largest(steps):
    # of a Gaussian scaled to one ChEES goes with the mean of sin(uT)^2 over u in (0, 1), largest at 2T = tan 2T
    assert pytest.approx(steps.mean() * 0.05, rel=0.15) == 0.5 * 2.25


@pytest.mark.slow
def test_all_chains_make_the_same_number_of_leapfrogs_and_draws_differ_in_theirs(steps):
    assert (steps == steps[:1]).all() and len(np.unique(steps[0])) > 1


@pytest.mark.slow
def test_a_given_length_is_kept_and_one_chain_is_enough_for_it():
    kernel = phx.chees(step_size=0.05, trajectory_length=1.0)
    posterior = phx.mcmc(gaussian, kernel=kernel, **{**SIZES, "num_chains": 1, "num_warmup": 20})
    assert posterior.stats["num_steps"].max() <= 20
    assert posterior.stats["num_steps"].mean() == pytest.approx(10.5, abs=1.0)


def test_one_chain_has_none_to_compare_with():
    with pytest.raises(ValueError, match="needs at least two"):
        phx.mcmc(gaussian, kernel=phx.chees(), **{**SIZES, "num_chains": 1})


@pytest.mark.parametrize(
    "options",
    [{"step_size": 0.0}, {"trajectory_length": -1.0}, {"max_steps": 0}, {"target_acceptance": 1.0}, {"metric": "x"}],
)
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match="chees"):
        phx.chees(**options)


def after(trajectory, changes, jumps, shortest=0.01):
    return trajectory.after(float(np.sum(changes)), float(np.sum(jumps)), 0.8 * len(changes), shortest)


def test_adam_climbs():
    trajectory, random = TrajectoryState.start(0.1), np.random.default_rng(0)
    for _ in range(200):
        slope = 2.0 - trajectory.length + random.normal(size=64)
        trajectory = after(trajectory, slope * 0.8, np.ones(64))
    assert trajectory.averaged == pytest.approx(2.0, rel=0.15)
    assert after(trajectory, [np.nan], [1.0]) == trajectory


def test_where_nothing_is_gained_a_length_does_not_wander_off():
    # noise that grows with the length and has no mean: Adam alone takes the length to 100 in one of a few runs
    random = np.random.default_rng(0)
    for _ in range(20):
        trajectory = TrajectoryState.start(10.0)
        for _ in range(300):
            trajectory = after(trajectory, *(trajectory.length * random.standard_t(2, size=(2, 64))))
        assert trajectory.averaged < 10.0


def banana():
    x = phx.sample("x", dist.Normal(0.0, 3**0.5))
    phx.sample("y", dist.Normal(x**2, 1.0))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [phx.chees(), phx.mams()], ids=["chees", "mams"])
def test_on_a_banana_trajectories_are_short_and_all_chains_move(kernel):
    run = phx.mcmc(banana, kernel=kernel, num_chains=64, num_warmup=400, num_samples=400, progress=False)
    assert run.stats["num_steps"].mean() < 45  # hundreds where lengths wander off
    assert run.stats["diverging"].mean() < 0.05  # a quarter where the mean acceptance hides the chains that are stuck
    # its arms are narrower than any one step size follows: the verdict must report it (NUTS misses them too)
    assert "divergences" in {finding.topic for finding in run.verdict().findings}


PEER_STEPS, PEER_PER_GRADIENT = 4.7, 0.0025
"""BlackJAX 1.7's `chees_adaptation` and `dynamic_hmc` on this banana, 64 chains, 400 iterations of warm-up: the
fewest leapfrogs of a draw, with the rate of Adam at .02, and the most effective samples of the worst of x, y and their
squares per gradient, with .1, which took 65 leapfrogs. With .02 they are 0.0017: its length has not grown yet, and does
to 19 leapfrogs in ten times the warm-up. Means over 16 seeds."""


@pytest.mark.slow
def test_a_banana_takes_a_few_times_the_peers_fewest_leapfrogs_and_is_known_many_times_better_for_them():
    sampler = phx.compile(banana, kernel=phx.chees(), num_chains=64)
    runs = [sampler.run(seed, num_warmup=400, num_samples=400, progress=False) for seed in range(4)]
    steps = np.mean([run.stats["num_steps"].mean() for run in runs])
    values = [value for run in runs for x in run.draws.values() for value in (x, x**2)]
    worst = min(float(ess(value)) for value in values) / 64 / 400
    assert steps < 4 * PEER_STEPS
    assert worst / steps > 3 * PEER_PER_GRADIENT
    # a chain stuck in an arm rejects all: where rounds in which one is weigh no more than others, 2% of all draws are
    assert np.mean([(run.stats["acceptance_rate"] < 0.01).mean() for run in runs]) < 0.01


def harmonic(rates, expected):
    """Return the harmonic mean of rates, whose inverses the devices add up."""
    return float(np.asarray(harmonic_mean(float(np.mean(1 / np.fmax(rates, LEAST_RATE))), expected)))


def test_the_harmonic_mean_sees_chains_that_are_stuck():
    for target in (0.6, 0.7, 0.9):
        k = -norm.ppf(target / 2)
        errors = np.random.default_rng(0).normal(2 * k**2, 2 * k, size=200_000)
        rates, expected = np.minimum(1.0, np.exp(-errors)), harmonic_mean_of_normal_errors(target)
        assert rates.mean() == pytest.approx(target, abs=0.01)  # 12 standard errors
        assert harmonic(rates, expected) == pytest.approx(expected, rel=0.02)
        assert expected == pytest.approx(1 / np.mean(1 / rates), rel=0.02)
    assert harmonic(np.array([1.0, 1.0, 1.0, 0.0]), 0.5) < 0.1
    assert harmonic(np.array([np.nan, 1.0]), 0.5) < 0.1


def test_rounds_in_which_a_chain_is_stuck_weigh_as_their_draws_do():
    # four chains of 64 in every fourth round: by each round's own harmonic mean the step size would be made larger
    free, stuck = np.full(64, 0.9), np.append(np.full(60, 0.9), np.zeros(4))
    rounds, target = [stuck, *3 * [free]], harmonic_mean_of_normal_errors(0.7)
    assert np.mean([harmonic(rates, target) for rates in rounds]) < target < harmonic(free, target)
