"""Climbs in many coordinates, with products of the Hessian and vectors instead of the Hessian."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from phalanx.jaxprs.group_sums import with_group_sums
from phalanx.learning.ascent import CLIMBED, Climb, LogDensity, climb, curvature, hessian_at, widths

if TYPE_CHECKING:
    from jaxtyping import Float

POLISHED = 4
"""Newton steps after a climb."""

PRODUCTS = 64
"""Products with the Hessian that find its softest directions."""

SOFT = 1e-4
"""Least curvature that a Newton step is divided by, in units of the diagonal."""


class Summit(NamedTuple):
    """Top of a climb in many coordinates.

    Attributes:
        position: position of the highest density.
        predicted_gain: predicted gain of the last Newton step, in nats.
        curvatures: curvatures along some directions, the softest first, in units of the diagonal; infinite where the
            Hessian has fewer directions.
        directions: these directions, one standard deviation of the diagonal long.
    """

    position: Float[Array, "coordinate"]
    predicted_gain: Float[Array, ""]
    curvatures: Float[Array, "direction"]
    directions: Float[Array, "direction coordinate"]


def climb_many(log_density: LogDensity, position: Float[Array, "coordinate"], key: Array) -> Summit:
    """Climb as far as it goes, then by Newton steps in the span of products with the Hessian.

    Source:
        Lanczos (1950), An iteration method for the solution of the eigenvalue problem of linear differential and
        integral operators.
    """
    position = climb(log_density, Climb.begin(log_density, position), CLIMBED).position
    slope = with_group_sums(jax.grad(log_density))
    unit = widths(curvature(log_density, position, key))

    def polish(position: Array, _: None) -> tuple[Array, Array]:
        gradient = slope(position)
        curvatures, directions = _softest(log_density, position, unit, unit * gradient)
        along = directions @ gradient
        divisor = jnp.maximum(curvatures, SOFT)
        there = position + (along / divisor) @ directions
        better = log_density(there) >= log_density(position)
        return jnp.where(better, there, position), jnp.sum(along**2 / divisor)

    position, predicted_gain = lax.scan(polish, position, None, POLISHED)
    # unlike a gradient, a random vector has a component along every direction
    start = random.normal(key, position.shape, position.dtype)
    return Summit(position, predicted_gain[-1], *_softest(log_density, position, unit, start))


def _softest(
    log_density: LogDensity,
    position: Float[Array, "coordinate"],
    unit: Float[Array, "coordinate"],
    start: Float[Array, "coordinate"],
) -> tuple[Float[Array, "direction"], Float[Array, "direction coordinate"]]:
    """Return the curvatures of the negative Hessian in the span of its products with a vector, and their directions."""
    count = min(PRODUCTS, position.size)
    hessian = hessian_at(log_density, position)

    def times(vector: Array) -> Array:
        return -unit * hessian(unit * vector)

    def step(number: Array, carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        basis, inner, outer, vector = carry
        product = times(vector)
        is_new = jnp.any(vector != 0.0)
        basis = basis.at[number].set(vector)
        along = jnp.where(is_new, vector @ product, 2.0 * inner[0])  # pads the matrix if the span ends early
        for _ in range(2):  # rounding errors of a single pass would bring earlier directions back
            product = product - (basis @ product) @ basis
        length = jnp.linalg.norm(product)
        goes_on = is_new & (length > SOFT * jnp.abs(along))
        vector = jnp.where(goes_on, product / jnp.where(goes_on, length, 1.0), 0.0)
        return basis, inner.at[number].set(along), outer.at[number].set(jnp.where(goes_on, length, 0.0)), vector

    none = jnp.zeros(count, position.dtype)
    first = start / jnp.maximum(jnp.linalg.norm(start), 1e-30)
    first_state = jnp.zeros((count, position.size), position.dtype), none, none, first
    basis, inner, outer, _ = lax.fori_loop(0, count, step, first_state)
    values, vectors = jnp.linalg.eigh(jnp.diag(inner) + jnp.diag(outer[:-1], 1) + jnp.diag(outer[:-1], -1))
    directions = vectors.T @ basis
    return jnp.where(jnp.linalg.norm(directions, axis=1) > 0.5, values, jnp.inf), directions * unit[None]
