"""Sums of the terms of a log density against sums in float64."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.distributions.row_sums import total_of
from phalanx.jaxprs.lanes_last import lanes_last

compiled = jax.jit(total_of)
SIZES = [1, 32, 33, 101, 1000, 1009, 4096, 4096 * 40 + 7, 1_000_003]


def terms(size: int, scale: float = 1.0) -> np.ndarray:
    return (-scale * np.random.default_rng(size).exponential(size=size)).astype(np.float32)


def error(values: np.ndarray) -> float:
    return float(compiled(jnp.asarray(values)).in_double()) - math.fsum(values.astype(np.float64))


@pytest.mark.parametrize("scale", [1e4, pytest.param(1.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("size", SIZES)
def test_the_sum_is_as_right_as_the_terms(size, scale):
    # what rounding every term makes of a sum, and as much again in each of a few additions
    rounding = 2.0**-24 * scale * math.sqrt(size)
    assert abs(error(terms(size, scale))) < 30 * rounding


def test_also_of_terms_in_order_and_of_equal_ones():
    for values in (np.sort(terms(300_000)), np.full(300_000, -0.7, np.float32), terms(300_000) + 0.9):
        assert abs(error(values)) < 0.005


def test_also_beside_a_few_that_are_far_larger():
    values = terms(100_000)
    values[::10_000] = -1e7
    assert abs(error(values)) < 5.0  # a few groups have such a one, whose last digit is 1


def test_the_sum_of_a_billion_rows_is_right_to_a_hundredth():
    """Errors of groups of rows are unrelated: with 500 times the rows they are sqrt(500) times as large."""
    found = [error(-np.random.default_rng(seed).exponential(size=200_000).astype(np.float32)) for seed in range(10)]
    assert np.sqrt(np.mean(np.square(found)) * 5000) < 0.01


@pytest.mark.parametrize("value", [-np.inf, np.inf, np.nan])
@pytest.mark.parametrize("size", [5, 1000, 300_000])
def test_sums_that_are_not_finite_stay_so(size, value):
    values = terms(size)
    values[size // 2] = value
    np.testing.assert_equal(float(compiled(jnp.asarray(values)).value), value)


@pytest.mark.parametrize("values", [np.zeros(1000, np.float32), np.full(1000, 1e-42, np.float32)], ids=["zero", "tiny"])
def test_nothing_adds_up_to_nothing(values):
    assert float(total_of(jnp.asarray(values)).value) == pytest.approx(0.0, abs=1e-38)


def test_half_precision_is_added_up_in_single():
    values = jnp.asarray(terms(10_000), jnp.bfloat16)
    assert total_of(values).dtype == jnp.float32
    assert abs(error(np.asarray(values))) < 1e-3


@pytest.mark.parametrize("size", [5, 1000, pytest.param(300_000, marks=pytest.mark.slow)])
def test_the_gradient_is_one_for_each_term(size):
    gradient = jax.grad(lambda x: total_of(x**2).value)(jnp.asarray(terms(size)))
    np.testing.assert_array_equal(gradient, 2 * terms(size))


def test_lanes_may_be_last():
    values = jnp.asarray(np.stack([terms(1009), terms(1009, 1e4)], -1))
    found = jax.jit(lanes_last(total_of))(values)
    for lane in range(2):
        exact = math.fsum(np.asarray(values[:, lane], np.float64))
        assert float(found.in_double()[lane]) == pytest.approx(exact, rel=1e-7)
