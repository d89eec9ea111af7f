"""What steps are made of: random numbers drawn before them, densities along the path of a draw, quartiles of guides."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.flatten_util import ravel_pytree
from tests.unit.variational.models import DATA, regression

import phalanx as phx
from phalanx.variational import compiled, step
from phalanx.variational.drawing import change_between

SHORT = {"num_steps": 30, "until": False, "progress": False}


@pytest.mark.parametrize("particles", [1, 4])
@pytest.mark.parametrize(
    "bound, guide, rows", [("AHEAD", phx.guides.mean_field(), 16), ("SMALL", phx.guides.full_rank(), 8)]
)
def test_steps_that_draw_their_own_numbers_and_that_are_no_branches_are_the_same(
    monkeypatch, bound, guide, rows, particles
):
    options = {**SHORT, "num_particles": particles, "mesh": phx.make_mesh(devices=jax.devices()[:1])}
    data = {name: values[:rows] for name, values in DATA.items()}
    one = phx.fit(regression, guide, data, **options)
    compiled.COMPILED.clear()
    monkeypatch.setattr(step, bound, 0)
    other = phx.fit(regression, guide, data, **options)
    assert other.timing.compilations > 0
    np.testing.assert_allclose(one.losses.elbo, other.losses.elbo, rtol=1e-4)  # they are rounded differently


def test_the_density_along_the_path_is_that_of_the_draw():
    pair = phx.fit(regression, phx.guides.full_rank(), DATA, **SHORT).pair
    assert pair is not None
    tril = jnp.array([[0.5, 0.0, 0.0], [-1.0, 2.0, 0.0], [0.3, 0.7, 0.1]])
    params, key = {"loc": jnp.array([1.0, -2.0, 0.5]), "scale_tril": tril}, jax.random.key(3)

    def along(params):
        return pair.draw_along(params, pair.noise(key), {})

    def plain(params):
        draw = pair.draw(params, pair.noise(key), {})
        return draw, pair.log_guide(lax.stop_gradient(params), draw, {})

    np.testing.assert_array_equal(along(params)[0]["w"], plain(params)[0]["w"])
    np.testing.assert_allclose(along(params)[1], plain(params)[1], rtol=1e-5)
    found, expected = (ravel_pytree(jax.grad(lambda p, f=f: f(p)[1])(params))[0] for f in (along, plain))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_guides_are_as_far_apart_as_their_medians_or_their_widths():
    one = np.array([[-1.0, 9.0], [0.0, 10.0], [1.0, 11.0]], np.float32)
    assert change_between(one, one) == 0.0
    width = 2.0 / 1.3489795
    np.testing.assert_allclose(change_between(one, one + np.array([[0.3, 0.0]])), 0.3 / width, rtol=1e-4)
    wider = np.array([[-1.0, 8.5], [0.0, 10.0], [1.0, 11.5]], np.float32)
    np.testing.assert_allclose(change_between(one, wider), 0.5, rtol=1e-4)
    assert not change_between(one, one + np.inf) <= 1.0
