"""Weights, temperatures, resampling, and the error of the evidence, with particles that are exact draws."""

from __future__ import annotations

import math

import numpy as np
import pytest

from phalanx.mesh.total import BITS, Total
from phalanx.particles.pool import Pool, effective_number, first_temperature, resampled

SCALE = 0.1
"""Standard deviation of the likelihood of a normal whose prior has 1."""


def exact(random: np.random.Generator, power: float, count: int) -> np.ndarray:
    """Return exact draws for a power of the likelihood exp(-x**2 / 2 / SCALE**2)."""
    return random.normal(size=count) / math.sqrt(1 + power / SCALE**2)


def log_evidence(power: float) -> float:
    return -0.5 * math.log(1 + power / SCALE**2)


def run(random: np.random.Generator, keeps_all: bool, count: int = 400) -> tuple[Pool, list]:
    """Return the pool and the weighted particles of every temperature; a move is an independent draw."""
    pool = Pool(keeps_all).with_particles(
        first_temperature(count), -0.5 * (exact(random, 0.0, count) / SCALE) ** 2, np.arange(count)
    )
    found = []
    while pool.temperatures[-1].power < 1:
        found.append(pool.next(0.5))
        chosen = resampled(found[-1].weights, count, random.random())
        heights = -0.5 * (exact(random, found[-1].at.power, count) / SCALE) ** 2
        pool = pool.with_particles(found[-1].at, heights, np.concatenate(pool.ancestors)[chosen])
    return pool, found


def test_weights_of_one_temperature_are_powers_of_the_likelihood():
    heights = np.array([-1.0, -3.0, -2.0, -700.0])
    pool = Pool(False).with_particles(first_temperature(4), heights, np.arange(4))
    found = pool.at(0.5)
    np.testing.assert_allclose(found.weights, np.exp(0.5 * heights) / np.exp(0.5 * heights).sum(), rtol=1e-12)
    assert found.at.log_evidence == pytest.approx(math.log(np.exp(0.5 * heights).mean()))
    assert found.mean_log_likelihood == pytest.approx(found.weights @ heights)


def test_a_temperature_is_the_highest_with_enough_effective_particles_and_has_few_bits():
    _, found = run(np.random.default_rng(0), keeps_all=False)
    powers = [weighted.at.power for weighted in found]
    assert powers == sorted(powers) and powers[-1] == 1.0
    for weighted in found[:-1]:
        assert 200 <= weighted.ess < 203
        fraction, _ = math.frexp(weighted.at.power)
        assert (fraction * 2**BITS).is_integer()


def test_particles_that_contradict_the_data_have_no_weight():
    heights = np.where(np.arange(100) < 70, -np.inf, -1.0)
    pool = Pool(False).with_particles(first_temperature(100), heights, np.arange(100))
    found = pool.next(0.9)
    assert found.at.power == 1.0
    assert found.weights[:70].max() == 0 and found.at.log_evidence == pytest.approx(math.log(0.3) - 1)


@pytest.mark.parametrize("keeps_all", [False, True], ids=["last temperature", "all temperatures"])
def test_the_evidence_is_right_and_its_error_the_spread_over_runs(keeps_all):
    random = np.random.default_rng(1)
    ends = [run(random, keeps_all)[1][-1].at for _ in range(200)]
    values = np.array([end.log_evidence for end in ends])
    errors = np.array([math.sqrt(np.sum(end.influence**2)) for end in ends])
    # 200 runs: the standard deviation is known to 5%; bias of the order of the variance
    assert abs(values.mean() - log_evidence(1.0)) < 5 * values.std() / math.sqrt(200) + values.var()
    assert 0.8 < math.sqrt(np.mean(errors**2)) / values.std() < 1.25
    assert abs(ends[0].influence.sum()) < 1e-9


def test_keeping_all_particles_takes_fewer_temperatures():
    few = [len(run(np.random.default_rng(seed), keeps_all=True)[1]) for seed in range(5)]
    many = [len(run(np.random.default_rng(seed), keeps_all=False)[1]) for seed in range(5)]
    assert np.mean(few) < np.mean(many)


def test_resampling_takes_each_particle_as_often_as_its_weight_says():
    random = np.random.default_rng(2)
    weights = random.dirichlet(np.full(50, 0.3))
    counts = np.bincount(resampled(weights, 1000, random.random()), minlength=50)
    assert (np.abs(counts - 1000 * weights) < 1).all()


def test_effective_number_of_equal_shares():
    assert effective_number(np.array([0.25, 0.25, 0.0, 0.25, 0.25])) == pytest.approx(4)


def test_a_total_times_a_temperature_is_exact():
    random = np.random.default_rng(3)
    for value in (-1.234567e8, -3.3e9, 5.1e6):
        power = np.float32(random.integers(2 ** (BITS - 1), 2**BITS) / 2**BITS * 2.0**-5)
        total = Total.of(np.float32(value)) + np.float32(0.3)
        scaled = total.times(power)
        assert float(scaled.in_double()) == pytest.approx(float(power) * float(total.in_double()), abs=2e-3, rel=0)
