"""Climbing in many coordinates: the Hessian is known by its products with vectors, and never made."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from phalanx.jaxprs.group_sums import with_group_sums
from phalanx.learning.ascent import CLIMBED, Climb, LogDensity, climb, curvature, widths

POLISHED = 4
"""Steps of Newton's after a climb."""

PRODUCTS = 64
"""Products with a Hessian of many coordinates that its softest directions are found with."""

SOFT = 1e-4
"""The least curvature that a step of Newton's is divided by, in the units of the diagonal."""


class Summit(NamedTuple):
    """The end of a climb in many coordinates, whose Hessian is known by products alone.

    Attributes:
        position: where the density is highest.
        promised: nats that the last step of Newton's has promised.
        curvatures: along some directions, the softest first, in the units of the diagonal.
        directions: `(direction, coordinate)`, one standard deviation of the diagonal long; where there are fewer, the
            others have an infinite curvature.
    """

    position: Array
    promised: Array
    curvatures: Array
    directions: Array


def climb_many(log_density: LogDensity, position: Array, key: Array) -> Summit:
    """Climb as far as it goes, then by steps of Newton's in the span of products with the Hessian; no Hessian is made.

    Source:
        Lanczos (1950), An iteration method for the solution of the eigenvalue problem of linear differential and
        integral operators.
    """
    position = climb(log_density, Climb.begin(log_density, position), CLIMBED).position
    slope = with_group_sums(jax.grad(log_density))
    unit = widths(curvature(log_density, position, key))

    def polish(position: Array, _: Any) -> tuple[Array, Array]:
        gradient = slope(position)
        curvatures, directions = _softest(log_density, position, unit, unit * gradient)
        along, divisor = directions @ gradient, jnp.maximum(curvatures, SOFT)
        there = position + (along / divisor) @ directions
        better = log_density(there) >= log_density(position)
        return jnp.where(better, there, position), jnp.sum(along**2 / divisor)

    position, promised = lax.scan(polish, position, None, POLISHED)
    start = random.normal(key, position.shape, position.dtype)  # it has a part of every direction, a gradient may not
    return Summit(position, promised[-1], *_softest(log_density, position, unit, start))


def _softest(log_density: LogDensity, position: Array, unit: Array, start: Array) -> tuple[Array, Array]:
    """Curvatures of the negative Hessian in the span of its products with a vector, ascending, and their directions."""
    count, slope = min(PRODUCTS, position.size), with_group_sums(jax.grad(log_density))

    def times(vector: Array) -> Array:
        return -unit * jax.jvp(slope, (position,), (unit * vector,))[1]

    def step(number: Array, carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        basis, inner, outer, vector = carry
        product, is_new = times(vector), jnp.any(vector != 0.0)
        basis = basis.at[number].set(vector)
        own = jnp.where(is_new, vector @ product, 2.0 * inner[0])  # the span may end early, and is then filled up
        for _ in range(2):  # once leaves rounding errors, which bring known directions back
            product = product - (basis @ product) @ basis
        length = jnp.linalg.norm(product)
        goes_on = is_new & (length > SOFT * jnp.abs(own))
        vector = jnp.where(goes_on, product / jnp.where(goes_on, length, 1.0), 0.0)
        return basis, inner.at[number].set(own), outer.at[number].set(jnp.where(goes_on, length, 0.0)), vector

    none, first = jnp.zeros(count, position.dtype), start / jnp.maximum(jnp.linalg.norm(start), 1e-30)
    begun = jnp.zeros((count, position.size), position.dtype), none, none, first
    basis, inner, outer, _ = lax.fori_loop(0, count, step, begun)
    values, vectors = jnp.linalg.eigh(jnp.diag(inner) + jnp.diag(outer[:-1], 1) + jnp.diag(outer[:-1], -1))
    directions = vectors.T @ basis
    return jnp.where(jnp.linalg.norm(directions, axis=1) > 0.5, values, jnp.inf), directions * unit[None]
