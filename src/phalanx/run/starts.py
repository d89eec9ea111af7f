"""Where chains start: at random near zero, ever closer to it until the log density is finite."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from phalanx.kernels.kernel import Start
from phalanx.programs.target import INITIAL_RADIUS, Density

ATTEMPTS = 20
"""How often a chain whose initial log density is not finite is started anew, ever closer to zero."""


def finite_start(density: Density, needs_gradient: bool, key: Array) -> tuple[Start, Array]:
    """A random position with finite log density and gradient, and whether one was found.

    Without `needs_gradient` only the log density is looked at, and the gradient is empty.
    """

    def look(attempt: Array) -> tuple[Start, Array]:
        # The radius shrinks from 2 towards 0, where every constrained value is moderate.
        radius = INITIAL_RADIUS * (1 - attempt / ATTEMPTS)
        position = density.initial_position(random.fold_in(key, attempt), radius)
        if not needs_gradient:
            value = density.log_density(position)
            return Start(position, value, {}), jnp.isfinite(value)
        value, gradient = density.value_and_grad(position)
        finite = jnp.isfinite(value) & jnp.isfinite(density.space.dot(gradient, gradient) * 0)
        return Start(position, value, gradient), finite

    def missed(carry: tuple[Array, Start, Array]) -> Array:
        attempt, _, finite = carry
        return ~finite & (attempt <= ATTEMPTS)

    def again(carry: tuple[Array, Start, Array]) -> tuple[Array, Start, Array]:
        return (carry[0] + 1, *look(carry[0]))

    # the first look is a turn of the loop, too: the model is compiled once
    zeros = {v.name: jnp.zeros(v.unconstrained_shape, v.dtype) for v in density.shares.latents}
    value = jnp.zeros((), jax.eval_shape(density.log_density, zeros).dtype)
    nothing = Start(zeros, value, dict(zeros) if needs_gradient else {})
    _, start, finite = lax.while_loop(missed, again, (jnp.int32(0), nothing, jnp.zeros((), bool)))
    return start, finite
