"""Log densities in two floats."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.mesh.total import GRID, Total


@pytest.mark.parametrize("size", [0.0, 3.0, 1e5, 1e7, 1e9])
def test_differences_of_large_totals_are_those_of_their_rests(size):
    random = np.random.default_rng(0)
    rests = random.normal(0, 300.0, size=(2, 1000)).astype(np.float32)
    here, there = (Total.of(jnp.full(1000, -size)) + rest for rest in rests)
    exact = rests[1].astype(np.float64) - rests[0]
    np.testing.assert_allclose(there - here, exact, atol=2e-4)
    np.testing.assert_allclose((-here) - (-there), exact, atol=2e-4)
    np.testing.assert_allclose(there.in_double() - here.in_double(), exact, atol=2e-4)


def test_a_settled_total_is_the_same_with_a_small_rest():
    total = Total.of(jnp.float32(-1e6)) + jnp.float32(12_345.678)
    found = total.settled()
    assert found.in_double() == total.in_double()
    assert abs(found.fine) <= GRID / 2 and found.coarse % GRID == 0


@pytest.mark.parametrize("devices", [1, 2, 3, 6, 7, 8, 12, 64])
def test_equal_shares_add_up(devices):
    total = Total.of(jnp.float32(-987_654_321.0)) + jnp.float32(1.375)
    share = total.over(devices)
    assert share.coarse % GRID == 0
    assert devices * share.in_double() == pytest.approx(float(total.in_double()), abs=2e-3)


def test_energies_are_totals_and_a_number_is_added_from_either_side():
    kinetic, total = jnp.float32(2.5), Total.of(jnp.float32(-1e9))
    before, after = kinetic - total, np.float32(3.0) - total
    assert isinstance(before, Total) and isinstance(after, Total)
    assert after - before == 0.5 and (before + 1.0) - before == 1.0 and (before - 1.0) - before == -1.0


@pytest.mark.parametrize("value", [-np.inf, np.inf, np.nan])
def test_totals_that_are_not_finite_stay_so(value):
    total = Total.of(jnp.float32(value))
    for found in (total.value, total.settled().value, total.over(3).value, (total + Total.of(jnp.float32(1.0))).value):
        np.testing.assert_equal(float(found), value)
    assert not np.isfinite(total - Total.of(jnp.float32(1e7)))


def test_the_derivative_is_that_of_the_sum():
    def f(x):
        return (Total.of(5000.0 * x).settled() + Total.of(x**2).over(2)).value

    assert jax.grad(f)(3.0) == 5003.0
