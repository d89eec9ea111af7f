"""What steps are made of: random numbers drawn before them, densities along the path of a draw, quartiles of guides."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax
from jax.flatten_util import ravel_pytree
from tests.unit.variational.models import DATA, regression

import phalanx as phx
from phalanx.learning import compiled
from phalanx.variational.drawing import change_between
from phalanx.variational.methods import step

SHORT = {"num_steps": 30, "until": False, "progress": False}


@pytest.mark.slow
@pytest.mark.parametrize("particles", [1, 4])
@pytest.mark.parametrize(
    "bound, guide, rows",
    [("AHEAD", phx.guides.mean_field(), 16), pytest.param("SMALL", phx.guides.full_rank(), 8, marks=pytest.mark.slow)],
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


@pytest.mark.slow
def test_the_density_along_the_path_is_that_of_the_draw():
    pair = phx.fit(regression, phx.guides.full_rank(), DATA, **SHORT).pair
    assert pair is not None
    tril = jnp.array([[0.5, 0.0, 0.0], [-1.0, 2.0, 0.0], [0.3, 0.7, 0.1]])
    params, key = {"loc": jnp.array([1.0, -2.0, 0.5]), "scale_tril": tril}, jax.random.key(3)

    def along(params):
        return pair.draw_weighted(params, pair.noise(key), {}, is_constant=True)

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


PRECISION = np.array([[1.0, 0.8, 0.0], [0.8, 2.0, -1.0], [0.0, -1.0, 3.0]], np.float32)


def correlated() -> None:
    phx.sample("x", dist.MultivariateNormal(jnp.zeros(3), precision_matrix=jnp.asarray(PRECISION)))


def steps_of(count, objective=None, guide=None):
    pair = phx.fit(correlated, guide or phx.guides.mean_field(), num_steps=1, until=False, progress=False).pair
    assert pair is not None
    return step.Steps(pair, objective or phx.guides.elbo(), None, count)


@pytest.mark.slow
@pytest.mark.parametrize("count, expected", [(8, True), (4, True), (7, False), (2, False), (1, False)])
def test_particles_of_a_mean_field_come_in_pairs_of_opposite_noise(count, expected):
    steps = steps_of(count)
    noise = steps.noise(jax.random.key(0))["x"]
    assert steps.is_antithetic == expected and noise.shape == (count, 3)
    assert len({float(value) for value in jnp.abs(noise[:, 0])}) == (count // 2 if expected else count)
    if expected:
        np.testing.assert_array_equal(noise[0::2], -noise[1::2])


@pytest.mark.slow
def test_those_of_objectives_that_are_no_averages_and_of_other_guides_do_not():
    assert not steps_of(8, phx.guides.importance_weighted(4)).is_antithetic
    assert not steps_of(8, phx.guides.forward_kl()).is_antithetic
    assert not steps_of(8, phx.guides.objective(lambda log_p, log_q, draws: (log_q - log_p).mean())).is_antithetic
    assert not steps_of(8, guide=phx.guides.full_rank()).is_antithetic


@pytest.mark.slow
def test_pairs_leave_no_noise_in_the_means_gradients_of_a_normal_posterior_and_no_bias_in_those_of_widths():
    steps = steps_of(8)
    loc, scale = np.array([1.0, -0.5, 0.25], np.float32), np.array([0.5, 1.0, 2.0], np.float32)
    free = steps.pair.learned.free({"x.loc": jnp.asarray(loc), "x.scale": jnp.asarray(scale)})
    found, _ = jax.vmap(lambda key: steps.gradient(free, key, ()))(jax.random.split(jax.random.key(1), 4000))
    # by a change in widths of the guide, of locations and of logarithms of scales
    of_loc, of_scale = scale * (PRECISION @ loc), scale**2 * np.diagonal(PRECISION) - 1.0
    np.testing.assert_allclose(found["x.loc"], np.broadcast_to(of_loc, (4000, 3)), atol=1e-4)
    error = np.std(found["x.scale"], axis=0) / np.sqrt(4000)
    assert np.all(np.abs(np.mean(found["x.scale"], axis=0) - of_scale) < 5.0 * error)  # fails once in 500,000 seeds


def test_the_error_of_the_bound_is_that_of_pairs():
    fit = phx.fit(
        correlated, phx.guides.mean_field(init_scale=1.0), num_steps=2000, until=False, optimizer=1e-7, progress=False
    )
    # of 2,000 steps a standard deviation is known to some hundredths
    np.testing.assert_allclose(np.sqrt(np.mean(fit.losses.error**2)), np.std(fit.losses.elbo), rtol=0.15)
