"""Where chains start: at random near zero, ever closer to it until the log density is finite."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax, random

from phalanx.mesh.space import Position
from phalanx.programs.target import INITIAL_RADIUS, Density

ATTEMPTS = 20
"""How often a chain whose initial log density is not finite is started anew, ever closer to zero."""


def finite_position(density: Density, needs_gradient: bool, key: Array) -> tuple[Position, Any, Array]:
    """A random position with finite log density and gradient, the gradient, and whether one was found.

    Without `needs_gradient` only the log density is looked at, and the gradient is empty.
    """

    def look(attempt: Array) -> tuple[Any, Any, Array]:
        # The radius shrinks from 2 towards 0, where every constrained value is moderate.
        radius = INITIAL_RADIUS * (1 - attempt / ATTEMPTS)
        position = density.initial_position(random.fold_in(key, attempt), radius)
        if not needs_gradient:
            return position, {}, jnp.isfinite(density.log_density(position))
        value, gradient = density.value_and_grad(position)
        return position, gradient, jnp.isfinite(value) & jnp.isfinite(density.space.dot(gradient, gradient) * 0)

    def missed(carry: tuple[Array, Any, Any, Array]) -> Array:
        attempt, *_, finite = carry
        return ~finite & (attempt <= ATTEMPTS)

    def again(carry: tuple[Array, Any, Any, Array]) -> tuple[Array, Any, Any, Array]:
        return (carry[0] + 1, *look(carry[0]))

    # the first look is a turn of the loop, too: the model is compiled once
    shapes = jnp.int32(0), *_nothing(density, needs_gradient), jnp.zeros((), bool)
    _, position, gradient, finite = lax.while_loop(missed, again, shapes)
    return position, gradient, finite


def _nothing(density: Density, needs_gradient: bool) -> tuple[Any, Any]:
    zeros = {v.name: jnp.zeros(v.unconstrained_shape, v.dtype) for v in density.shares.latents}
    return zeros, dict(zeros) if needs_gradient else {}
