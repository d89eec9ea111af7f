"""Where chains start: where they are told to, else at random near zero, ever closer until the log density is finite."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from phalanx.density.target import INITIAL_RADIUS, Density
from phalanx.kernels.protocol.kernel import Point
from phalanx.mesh.position import Vector, inner_products
from phalanx.mesh.total import Total

ATTEMPTS = 20
"""How often a chain whose initial log density is not finite is started anew, ever closer to zero."""

FARTHER = 20
"""How often more, ever farther from zero, where a log density was finite and its gradient was not: sqrt(exp(-x)) has
none once it has underflowed."""

FARTHEST = 10.0
"""The last radius."""


class Given(NamedTuple):
    """Initial values.

    Attributes:
        values: of every latent variable, on the scale of the model, `(chain, ...)`.
        wanted: by variable, whether it is to have its value; else it is drawn.
    """

    values: Any
    wanted: Any


def finite_start(density: Density, needs_gradient: bool, key: Array, given: Given) -> tuple[Point, Array, Any]:
    """A position with finite log density and gradient, whether one was found, and which given values fit none.

    Without `needs_gradient` only the log density is looked at, and the gradient is empty.
    """
    layout = density.shares.layout

    def look(attempt: Array) -> tuple[Point, Array, Any]:
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

    def missed(carry: tuple[Array, Array, tuple[Point, Array, Any]]) -> Array:
        attempt, steep, (_, good, _) = carry
        return ~good & (attempt <= ATTEMPTS + jnp.where(steep, FARTHER, 0))

    def again(
        carry: tuple[Array, Array, tuple[Point, Array, Any]],
    ) -> tuple[Array, Array, tuple[Point, Array, Any]]:
        attempt, steep, _ = carry
        found = look(attempt)
        return attempt + 1, steep | jnp.isfinite(found[0].log_density.value), found

    # the first look is a turn of the loop, too: the model is compiled once
    zeros = layout.zeros()
    height = jnp.zeros((), jnp.result_type(*zeros.values()))
    total = Total(height, height)
    nothing = Point(layout.vector(zeros), total, layout.vector(zeros if needs_gradient else {}))
    no = jnp.zeros((), bool)
    begun = jnp.int32(0), no, (nothing, no, dict.fromkeys(zeros, no))
    return lax.while_loop(missed, again, begun)[2]
