"""Search for initial positions: given values, or random ones near zero, until log density and gradient are finite."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from phalanx.density.density import INITIAL_RADIUS, Density
from phalanx.kernels.protocol.kernel import Point
from phalanx.mesh.position import ByVariable, Vector, inner_products
from phalanx.mesh.total import Total

if TYPE_CHECKING:
    from jaxtyping import Bool, Int, Key

ATTEMPTS = 20
"""Further attempts with a smaller radius each, if the log density is not finite."""

FARTHER = 20
"""Further attempts with a larger radius each, if a log density was finite and its gradient was not: the gradient of
sqrt(exp(-x)) is not finite near zero once the exponential underflows."""

FARTHEST = 10.0
"""Radius of the last attempt."""

Misfits = dict[str, Array]
"""By variable, true if its given value has no unconstrained position."""

Attempt = tuple[Point, Array, Misfits]
"""A position, true if it can be used, and misfits."""


class Given(NamedTuple):
    """Initial values.

    Attributes:
        values: values of every latent variable on the scale of the model, `(chain, ...)`.
        wanted: by variable, true to use its value, false to draw one.
    """

    values: ByVariable
    wanted: ByVariable


def finite_start(density: Density, needs_gradient: bool, key: Key[Array, ""], given: Given) -> Attempt:
    """Return a position with finite log density and gradient, true if the search succeeded, and misfits by variable.

    Without `needs_gradient` only the log density must be finite, and the gradient is empty.
    """
    layout = density.shares.layout

    def attempt_at(attempt: Int[Array, ""]) -> Attempt:
        # The radius shrinks from 2 towards 0, where every constrained value is moderate, and then grows from 2.
        grown = INITIAL_RADIUS + (FARTHEST - INITIAL_RADIUS) * (attempt - ATTEMPTS) / FARTHER
        radius = jnp.where(attempt <= ATTEMPTS, INITIAL_RADIUS * (1 - attempt / ATTEMPTS), grown)
        position = density.initial_position(random.fold_in(key, attempt), radius)
        position, misfits = density.at_values(position, given.values, given.wanted)
        fits = ~jnp.stack([jnp.any(misfit) for misfit in misfits.values()]).any()
        if not needs_gradient:
            total = density.total(position)
            at = Point(layout.vector(position), total, Vector((), layout))
            return at, jnp.isfinite(total.value) & fits, misfits
        total, gradient = density.value_and_grad(position)
        at = Point(layout.vector(position), total, layout.vector(gradient))
        one_lane = jax.tree.map(lambda part: part[:, None], at.gradient)
        (square,) = inner_products(layout.groups, (one_lane, one_lane))
        return at, jnp.isfinite(total.value) & jnp.isfinite(square[0]) & fits, misfits

    def missed(carry: tuple[Array, Array, Attempt]) -> Bool[Array, ""]:
        attempt, steep, (_, good, _) = carry
        return ~good & (attempt <= ATTEMPTS + jnp.where(steep, FARTHER, 0))

    def again(carry: tuple[Array, Array, Attempt]) -> tuple[Array, Array, Attempt]:
        attempt, steep, _ = carry
        found = attempt_at(attempt)
        return attempt + 1, steep | jnp.isfinite(found[0].log_density.value), found

    # the first attempt is made in the loop, too, so that the model is compiled once
    zeros = layout.zeros()
    height = jnp.zeros((), jnp.result_type(*zeros.values()))
    total = Total(height, height)
    nothing = Point(layout.vector(zeros), total, layout.vector(zeros if needs_gradient else {}))
    no = jnp.zeros((), bool)
    begun = jnp.int32(0), no, (nothing, no, dict.fromkeys(zeros, no))
    return lax.while_loop(missed, again, begun)[2]
