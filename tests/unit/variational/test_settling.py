"""When a fit ends: windows that are alike, each with each; what is on its way is not noise."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.variational.methods.optimizer import optimizer_of
from phalanx.variational.methods.settling import Settling
from phalanx.variational.methods.step import all_finite

FLAT = np.zeros(100)


def looked_at(*changes):
    """What has been decided after windows that have changed by so much, and so much over two of them."""
    settling = Settling.at_first_window(20_000)
    for change, across in ((np.inf, np.inf), *changes):
        settling = settling.look(settling.window.end, FLAT, change, across)
    return settling


def test_three_windows_that_are_alike_end_a_fit():
    assert not looked_at((0.5, np.inf)).settled
    assert looked_at((0.5, np.inf), (0.6, 0.7)).settled


def test_moving_parameters_differ_between_two_windows():
    drifting = looked_at((0.8, np.inf), (0.8, 1.6))
    assert not drifting.settled and drifting.rate == 0.25
    assert drifting.look(drifting.window.end, FLAT, 0.1, 0.9).settled


def test_noise_lowers_the_rate_and_what_is_on_its_way_does_not():
    assert looked_at((3.0, np.inf), (3.0, 3.0)).rate == 0.5
    on_its_way = looked_at((3.0, np.inf), (3.0, 6.0), (4.0, 7.0))
    assert on_its_way.rate == 1.0
    assert on_its_way.look(on_its_way.window.end, FLAT, 3.0, 3.5).rate == 0.5


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_is_found_among_many(bad):
    tree = {"a": jnp.full(1000, 1e30), "b": (jnp.ones((3, 4)), jnp.float32(2.0))}
    assert bool(all_finite(tree)) and bool(jax.jit(all_finite)(tree))
    for shape, place in (((1000,), 700), ((40, 25), (31, 24)), ((8, 25, 5), (7, 0, 4))):
        one = {**tree, "a": tree["a"].reshape(shape).at[place].set(bad)}
        assert not bool(all_finite(one)) and not bool(jax.jit(all_finite)(one))


def test_one_long_gradient_does_not_freeze_a_family():
    """Its square is forgotten by a thousandth in a step."""

    def way(longest):
        _, transform = optimizer_of(None, longest, None)
        state, total = transform.init(jnp.zeros(2)), 0.0
        for gradient in [1e5] + [1.0] * 200:
            change, state = transform.update(jnp.full(2, gradient), state)
            total += float(change[0])
        return total

    assert way(10.0) > 10.0 * way(None)
