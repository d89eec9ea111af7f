"""Metrics from draws and gradients, on Gaussians whose covariance is known."""

from __future__ import annotations

import numpy as np
import pytest

import phalanx as phx
from phalanx.adaptation.fisher import CONDITION, correlations, scales, uncorrelated
from phalanx.adaptation.metric import Metric
from phalanx.adaptation.tuner import Stage, Sums, VectorMoments


def gaussian(size, count, condition, seed=0):
    """Draws and gradients of a Gaussian with log-spaced eigenvalues, and its covariance."""
    random = np.random.default_rng(seed)
    basis = np.linalg.qr(random.normal(size=(size, size)))[0]
    covariance = (basis * np.geomspace(1, condition, size)) @ basis.T
    x = random.multivariate_normal(np.zeros(size), covariance, count)
    return x, -x @ np.linalg.inv(covariance), covariance


def matrix(found, variance):
    """The metric as a matrix."""
    size, scale = len(variance), np.sqrt(variance)
    along = found.directions.T
    inner = found.outside * np.eye(size) + found.directions @ ((found.variances - found.outside)[:, None] * along)
    return scale[:, None] * inner * scale


def variance_of(x, g):
    return scales(x.var(0, ddof=1), g.var(0, ddof=1), np.ones(x.shape[1]))


@pytest.mark.parametrize("condition", [1.0, 1e3, 1e6])
def test_a_gaussian_is_found_exactly_from_few_draws(condition):
    x, g, covariance = gaussian(6, 30, condition)
    variance = variance_of(x, g)
    found = correlations(x, g, variance, rank=6, always=False)
    relative = np.linalg.solve(covariance, matrix(found, variance))
    np.testing.assert_allclose(np.linalg.eigvals(relative).real, 1.0, rtol=0.02)
    assert found.correlated == (condition > 1)


def test_few_directions_of_many_coordinates():
    random = np.random.default_rng(1)
    size, direction = 600, np.zeros(600)
    direction[:3] = 1 / np.sqrt(3)
    x = random.normal(size=(400, size)) + 9 * random.normal(size=(400, 1)) * direction
    g = -(x - (1 - 1 / 82) * np.outer(x @ direction, direction))
    found = correlations(x, g, np.ones(size), rank=32, always=False)
    assert found.correlated and found.outside == 1.0
    assert abs(direction @ matrix(found, np.ones(size)) @ direction / 82 - 1) < 0.3


@pytest.mark.parametrize("size, condition", [(2, 1e2), (20, 1e3), (50, 1e3), (100, 1e4)])
def test_correlations_of_a_gaussian_pay_in_the_draws_held_out(size, condition):
    x, g, _ = gaussian(size, 400, condition, seed=size)
    variance = variance_of(x, g)
    assert correlations(x, g, variance, rank=size, always=False).correlated


def test_correlations_that_only_some_draws_have_do_not_pay():
    """Each chain has correlations of its own, as in a funnel, whose directions depend on the place."""
    parts = [gaussian(20, 100, 1e3, seed)[:2] for seed in range(4)]
    x, g = (np.concatenate(rows) for rows in zip(*parts, strict=True))
    variance = variance_of(x, g)
    assert not correlations(x, g, variance, rank=20, always=False).correlated
    assert correlations(x, g, variance, rank=20, always=True).correlated


def test_weak_correlations_of_many_coordinates_are_not_worth_a_matrix_product():
    x, g, _ = gaussian(100, 800, 20.0)
    assert not correlations(x, g, np.ones(100), rank=100, always=False).correlated
    x, g, _ = gaussian(4, 800, 20.0)
    assert correlations(x, g, np.ones(4), rank=4, always=False).correlated


@pytest.mark.parametrize("count, size", [(2, 5), (3, 40), (30, 5), (200, 100)])
def test_a_metric_is_never_indefinite_nor_worse_conditioned_than_the_limit(count, size):
    random = np.random.default_rng(2)
    x = random.standard_t(1, size=(count, size)) * np.geomspace(1e-4, 1e4, size)
    g = random.standard_t(1, size=(count, size))
    found = correlations(x, g, np.ones(size), rank=min(size, 32), always=True)
    values = np.linalg.eigvalsh(matrix(found, np.ones(size)))
    assert values.min() > 0 and values.max() / values.min() <= 1.01 * CONDITION


@pytest.mark.parametrize("count, size", [(40, 30), (20, 30), (300, 30)])
def test_draws_of_a_chain_that_never_moved_have_no_correlations(count, size):
    same = np.tile(np.random.default_rng(4).normal(size=size), (count, 1))
    found = correlations(same, np.zeros_like(same), np.ones(size), rank=size, always=False)
    assert not found.correlated and np.isfinite(found.directions).all() and np.isfinite(found.variances).all()


def test_draws_that_repeat_give_the_directions_of_those_that_differ():
    random, size, direction = np.random.default_rng(5), 300, np.eye(300)[7]
    x = np.repeat(random.normal(size=(9, size)) + 30 * random.normal(size=(9, 1)) * direction, 12, axis=0)
    g = -(x - (1 - 1 / 901) * np.outer(x @ direction, direction))
    found = correlations(x, g, np.ones(size), rank=64, always=True)
    assert np.isfinite(found.directions).all() and found.correlated
    assert found.variances.max() > 10 and abs(found.directions[7, found.variances.argmax()]) > 0.7


def test_scales_without_information_stay():
    before = np.array([3.0, 4.0, 5.0])
    np.testing.assert_array_equal(scales(np.array([0.0, np.nan, 4.0]), np.array([1.0, 1.0, 1.0]), before), [3, 4, 2])
    assert not uncorrelated(4, 4).correlated


def test_a_coordinate_that_rounding_has_held_has_the_scale_of_a_few_floats():
    tuner, stage = Metric("diagonal"), Stage(0, 5, 5, renews=True)
    held = VectorMoments(40, np.array([2e11, 0.0]), np.zeros(2))
    sums = Sums(40, {}, 40.0, (held,), (VectorMoments(40, np.zeros(2), np.ones(2)),))
    state = tuner.init(phx.nuts().tuning, sums, stage)
    np.testing.assert_allclose(state.variance[0], [(4 * 2.0**-23 * 2e11) ** 2, 1.0])


def test_moments_of_batches_are_those_of_all():
    rows = 1e4 + np.random.default_rng(3).normal(size=(100, 3))
    merged = VectorMoments.nothing(3)
    for part in (rows[:0], rows[:1], rows[1:37], rows[37:]):
        squares = np.square(part - part.mean(0)).sum(0) if len(part) else np.zeros(3)
        merged = merged.merge(VectorMoments(len(part), part.sum(0) / max(len(part), 1), squares))
    np.testing.assert_allclose(merged.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(merged.variance, rows.var(0, ddof=1), rtol=1e-9)
