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
        # The radius shrinks from 2 towards 0, where every constrained value is moderate.
        radius = INITIAL_RADIUS * (1 - attempt / ATTEMPTS)
        position = density.initial_position(random.fold_in(key, attempt), radius)
        position, misfits = density.at_values(position, given.values, given.wanted)
        fits = ~jnp.stack([jnp.any(misfit) for misfit in misfits.values()]).any()
        if not needs_gradient:
            total = density.total(position)
            return Start(position, total, {}), jnp.isfinite(total.value) & fits, misfits
        total, gradient = density.value_and_grad(position)
        finite = jnp.isfinite(total.value) & jnp.isfinite(density.space.dot(gradient, gradient) * 0)
        return Start(position, total, gradient), finite & fits, misfits

    def missed(carry: tuple[Array, Start, Array, Any]) -> Array:
        attempt, _, good, _ = carry
        return ~good & (attempt <= ATTEMPTS)

    def again(carry: tuple[Array, Start, Array, Any]) -> tuple[Array, Start, Array, Any]:
        return (carry[0] + 1, *look(carry[0]))

    # the first look is a turn of the loop, too: the model is compiled once
    zeros = {v.name: jnp.zeros(v.unconstrained_shape, v.dtype) for v in density.shares.latents}
    height = jnp.zeros((), jnp.result_type(*zeros.values()))
    total = Total(height, height)
    nothing = Start(zeros, total, dict(zeros) if needs_gradient else {})
    no = jnp.zeros((), bool)
    _, start, good, misfits = lax.while_loop(missed, again, (jnp.int32(0), nothing, no, dict.fromkeys(zeros, no)))
    return start, good, misfits
