"""Normals by inversion are as exact as their type can hold, out to the last of them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtri

from phalanx.mesh.random_numbers import standard_normals_from, uniforms_from

SPACING = 2.0**-23
"""Of uniforms in float32."""


def words(numbers):
    """Random words of which uniforms are these multiples of their spacing."""
    first = jnp.asarray(numbers, jnp.uint32) << 9
    return first, jnp.zeros_like(first)


@pytest.mark.parametrize("part", ["middle", "left tail", "right tail"])
def test_normals_in_float32_are_those_of_their_uniforms(part):
    least = {"middle": 0, "left tail": 0, "right tail": 2**23 - 2**18}[part]
    numbers = np.arange(least, 2**23, 37) if part == "middle" else np.arange(least, least + 2**18)
    uniforms = np.asarray(uniforms_from(words(numbers), jnp.float32))
    np.testing.assert_array_equal(uniforms, numbers * SPACING)
    normals = np.asarray(standard_normals_from(words(numbers), jnp.float32), np.float64)
    # what is inverted lies on (-1, 1) in float32: of a draw in the tail its own rounding is the only error to speak of
    low = np.nextafter(np.float32(-1), np.float32(0))
    symmetric = np.maximum(low, uniforms * (np.float32(1) - low) + low).astype(np.float64)
    exact = np.where(symmetric < 0, ndtri((1 + symmetric) / 2), -ndtri((1 - symmetric) / 2))
    assert (np.abs(normals - exact) <= 5e-7 * np.abs(exact)).all()  # JAX's own: 6e-6


def test_the_first_and_the_last_uniform_give_finite_normals():
    normals = np.asarray(standard_normals_from(words([0, 2**23 - 1]), jnp.float32))
    np.testing.assert_allclose(normals, [-5.42, 5.22], atol=0.01)
