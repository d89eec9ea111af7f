"""Where chains start: where they are told to, else at random near zero, ever closer until the log density is finite."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax, random

from phalanx.kernels.driver import Start
from phalanx.mesh.total import Total
from phalanx.programs.target import INITIAL_RADIUS, Density

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


def finite_start(density: Density, needs_gradient: bool, key: Array, given: Given) -> tuple[Start, Array, Any]:
    """A position with finite log density and gradient, whether one was found, and which given values fit none.

    Without `needs_gradient` only the log density is looked at, and the gradient is empty.
    """

    def look(attempt: Array) -> tuple[Start, Array, Any]:
        # The radius shrinks from 2 towards 0, where every constrained value is moderate, and then grows from 2.
        grown = INITIAL_RADIUS + (FARTHEST - INITIAL_RADIUS) * (attempt - ATTEMPTS) / FARTHER
        radius = jnp.where(attempt <= ATTEMPTS, INITIAL_RADIUS * (1 - attempt / ATTEMPTS), grown)
        position = density.initial_position(random.fold_in(key, attempt), radius)
        position, misfits = density.at_values(position, given.values, given.wanted)
        fits = ~jnp.stack([jnp.any(misfit) for misfit in misfits.values()]).any()
        if not needs_gradient:
            total = density.total(position)
            return Start(position, total, {}), jnp.isfinite(total.value) & fits, misfits
        total, gradient = density.value_and_grad(position)
        finite = jnp.isfinite(total.value) & jnp.isfinite(density.space.dot(gradient, gradient) * 0)
        return Start(position, total, gradient), finite & fits, misfits

    def missed(carry: tuple[Array, Array, tuple[Start, Array, Any]]) -> Array:
        attempt, steep, (_, good, _) = carry
        return ~good & (attempt <= ATTEMPTS + jnp.where(steep, FARTHER, 0))

    def again(
        carry: tuple[Array, Array, tuple[Start, Array, Any]],
    ) -> tuple[Array, Array, tuple[Start, Array, Any]]:
        attempt, steep, _ = carry
        found = look(attempt)
        return attempt + 1, steep | jnp.isfinite(found[0].log_density.value), found

    # the first look is a turn of the loop, too: the model is compiled once
    zeros = {v.name: jnp.zeros(v.unconstrained_shape, v.dtype) for v in density.shares.latents}
    height = jnp.zeros((), jnp.result_type(*zeros.values()))
    total = Total(height, height)
    nothing = Start(zeros, total, dict(zeros) if needs_gradient else {})
    no = jnp.zeros((), bool)
    begun = jnp.int32(0), no, (nothing, no, dict.fromkeys(zeros, no))
    return lax.while_loop(missed, again, begun)[2]
