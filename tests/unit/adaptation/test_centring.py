"""Centring learned from draws: where data say much it is centred, where they say little it is not, in any unit."""

from __future__ import annotations

import numpy as np
import pytest

from phalanx.adaptation.centring import FEWEST_DRAWS, learn_centring


def draws(spread, count=4000, scale=1.0, location=0.0):
    """Draws of two elements: of the first data say nothing, of the second they fix the value up to `spread`."""
    rng = np.random.default_rng(0)
    mu, log_tau = location + scale * rng.normal(size=(count, 1)), np.log(scale) + rng.normal(size=(count, 1))
    free = np.exp(log_tau) * rng.normal(size=(count, 1))
    fixed = scale * (3 + spread * rng.normal(size=(count, 1))) + location - mu
    residual = np.concatenate([free, fixed], 1)
    return residual, np.broadcast_to(mu, residual.shape), np.broadcast_to(log_tau, residual.shape)


FIRST = np.stack([np.full(2, 0.5), np.zeros(2)]).astype(np.float32)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_groups_with_data_are_centred_and_those_without_are_not(scale):
    weight, unit = learn_centring(*draws(0.1, scale=scale), before=FIRST)
    assert weight[0] == 0 and weight[1] == 1
    np.testing.assert_allclose(unit, np.log(scale), atol=0.1)


def test_the_unit_of_a_variable_does_not_matter():
    """A location far from zero, and data that say something, call for weights in between."""
    found = [learn_centring(*draws(0.5, scale=s, location=5 * s), before=FIRST)[0] for s in (1e-3, 1.0, 1e3)]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[1], found[2])


def test_one_weight_for_all_elements_is_a_compromise():
    weight, unit = learn_centring(*draws(0.1), before=np.zeros(2, np.float32))
    assert np.ndim(weight) == np.ndim(unit) == 0 and 0 <= weight <= 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_draws_that_are_not_finite_are_left_out(bad):
    residual, location, log_scale = (np.array(x) for x in draws(0.1))
    expected = learn_centring(residual[1:], location[1:], log_scale[1:], FIRST)
    residual[0, 0] = bad
    np.testing.assert_array_equal(learn_centring(residual, location, log_scale, FIRST), expected)


def test_elements_are_evaluated_in_parts(monkeypatch):
    wide = [np.tile(x, 50) for x in draws(0.1, count=300)]
    first = np.stack([np.full(100, 0.5), np.zeros(100)]).astype(np.float32)
    whole = learn_centring(*wide, before=first), learn_centring(*wide, before=np.zeros(2, np.float32))
    monkeypatch.setattr("phalanx.adaptation.centring.NUMBERS", 2_000)
    parts = learn_centring(*wide, before=first), learn_centring(*wide, before=np.zeros(2, np.float32))
    np.testing.assert_array_equal(whole[0], parts[0])
    np.testing.assert_array_equal(whole[1], parts[1])
    assert whole[0].shape == (2, 100)


def test_too_few_draws_change_nothing():
    few = [x[: FEWEST_DRAWS - 1] for x in draws(0.1)]
    assert learn_centring(*few, before=FIRST) is FIRST


def test_scales_over_the_whole_range_of_float32_give_a_weight():
    residual, location, log_scale = (np.array(x) for x in draws(0.1))
    log_scale = np.linspace(-80, 80, log_scale.size).reshape(log_scale.shape)
    assert np.isfinite(learn_centring(residual, location, log_scale, FIRST)).all()
