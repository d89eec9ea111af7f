"""Guides as transforms of noise: log determinants are those of autodiff, and densities those of what is drawn."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.slow import with_slow
from tests.unit.variational.models import StartAt

import phalanx as phx
from phalanx.learning.ascent import StartingPoint
from phalanx.programs.sites import Latent
from phalanx.variational.guides import structured
from phalanx.variational.guides.coordinates import size_of, vector_of
from phalanx.variational.guides.gaussian import standard_log_prob
from phalanx.variational.guides.structured import Structured

LATENTS = [
    Latent(name, shape, jnp.float32, shape=shape, support="real")
    for name, shape in {"b": (), "c": (2, 2), "a": (3,)}.items()
]
SIZE = size_of(LATENTS)
FAMILIES = {
    "mean_field": phx.guides.mean_field(),
    "full_rank": phx.guides.full_rank(),
    "low_rank": phx.guides.low_rank(rank=2),
    "structured": Structured(),
    "flow": phx.guides.flow(hidden=(5,)),
    "inverse autoregressive": phx.guides.flow(transform="inverse_autoregressive", hidden=(9, 4)),
}


@pytest.fixture(autouse=True)
def parents(monkeypatch):
    monkeypatch.setattr(structured, "parents_of", lambda whole: {"b": (), "c": ("b",), "a": ("b", "c")})


def learned(family, seed=0):
    """Parameters that are not those it begins with."""
    rng = np.random.default_rng(seed)
    place = StartingPoint(
        jnp.asarray(rng.normal(size=SIZE), jnp.float32), jnp.asarray(np.exp(rng.normal(size=SIZE)), jnp.float32)
    )
    start = StartAt(place, LATENTS)
    params = family.begin(start).values
    assert params.keys() == family.parameters(start.problem).keys()
    if "weights" in params:  # few: layers upon layers would take draws to where float32 has no digits
        params["weights"] = jax.tree.map(lambda w: w + 0.1 * rng.normal(size=w.shape).astype("f4"), params["weights"])
    change = jax.tree.map(lambda x: 0.5 * rng.normal(size=x.shape).astype(np.float32), params)
    if "weights" in change:
        change["weights"] = jax.tree.map(lambda w: 0.1 * w, change["weights"])
    if "scale_tril" in change:  # a change of it is a point of the real line that a triangle comes from
        change["scale_tril"] = change["scale_tril"][np.tril_indices(SIZE)]
    moved = family.moved(params, change, LATENTS)
    assert jax.tree.map(jnp.shape, moved) == jax.tree.map(jnp.shape, params)
    return moved


SLOW = {"flow", "inverse autoregressive"}


@pytest.mark.parametrize("name", with_slow([*FAMILIES], {"full_rank", "low_rank", *SLOW}))
def test_a_guide_is_a_transform_of_noise(name):
    family = FAMILIES[name]
    params = learned(family)
    noise = jnp.asarray(np.random.default_rng(1).normal(size=SIZE), jnp.float32)

    @jax.jit
    def found_of(noise):
        push = family.transport(params, LATENTS)
        pushed = push(noise)
        jacobian = jax.jacfwd(lambda z: vector_of(push(z).position, LATENTS))(noise)
        return pushed.log_det, jacobian, family.log_prob(params, pushed.position, LATENTS)

    log_det, jacobian, log_prob = found_of(noise)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(np.asarray(jacobian, float))[1], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(log_prob, standard_log_prob(noise) - log_det, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", with_slow([*FAMILIES], SLOW))
def test_nothing_moves_where_nothing_changes(name):
    family = FAMILIES[name]
    params = learned(family)
    still = jax.tree.map(jnp.zeros_like, params)
    if "scale_tril" in still:
        still["scale_tril"] = jnp.zeros(SIZE * (SIZE + 1) // 2)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), family.moved(params, still, LATENTS), params)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_draws_have_the_density(name):
    """Under draws from q, the mean of r / q is one for any density r: within 4 standard errors, 6e-5 each."""
    family = FAMILIES[name]
    params = learned(family)
    centre = family.draw(params, family.noise(jax.random.key(3), LATENTS), LATENTS)

    @jax.vmap
    def ratio(key):
        # r: the guide's own density, moved by a little
        draw = family.draw(params, family.noise(key, LATENTS), LATENTS)
        off = jax.tree.map(lambda x, c: x - 0.05 * jnp.tanh(c), draw, centre)
        return jnp.exp(family.log_prob(params, off, LATENTS) - family.log_prob(params, draw, LATENTS))

    ratios = np.asarray(jax.jit(ratio)(jax.random.split(jax.random.key(0), 4000)), float)
    assert abs(ratios.mean() - 1.0) < 4 * ratios.std() / np.sqrt(len(ratios)) + 1e-4
