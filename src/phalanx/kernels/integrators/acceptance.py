"""The Metropolis rule, and when an integration counts as broken down."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import Array

from phalanx.kernels.protocol.kernel import Info, Point
from phalanx.mesh.position import choose
from phalanx.mesh.total import Total

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

DIVERGENCE_THRESHOLD = 1000.0
"""An energy error above this is a divergence, as in Stan."""


def broken_down(error: Float[Array, "lanes"]) -> Float[Array, "lanes"]:
    """An energy error, and infinity where it is not finite: an energy of minus infinity is no better place to be."""
    return jnp.where(jnp.isfinite(error), error, jnp.inf)


def metropolis(
    uniform: Float[Array, "lanes"], log_ratio: Float[Array, "lanes"]
) -> tuple[Bool[Array, "lanes"], Float[Array, "lanes"], Bool[Array, "lanes"]]:
    r"""Accept with probability $\min(1, e^{r})$, given a uniform on [0, 1); what is not finite is never accepted.

    Returns:
        Whether to accept, the probability of it, and whether the ratio is not finite.
    """
    # Of what comes out of an exponential all else is told: a compiler of loops evaluates that once, and whatever is
    # cheaper, such as a log density without one, again for everything it is asked for.
    found = jnp.exp(jnp.minimum(jnp.where(jnp.isfinite(log_ratio), log_ratio, jnp.nan), 0.0))
    broken = jnp.isnan(found)
    # u < probability rather than log u < ratio: u may be zero, and a ratio of -inf must never pass
    return uniform < found, jnp.where(broken, 0.0, found), broken


def decide(
    uniform: Float[Array, "lanes"], at: Point, proposal: Point, energy: Total | Float[Array, "lanes"],
    error: Float[Array, "lanes"], num_steps: int | Int[Array, ""] | Int[Array, "lanes"],
) -> tuple[Point, Info]:  # fmt: skip
    r"""Go to a proposal with probability $\min(1, e^{-E})$, or stay.

    Args:
        uniform: on [0, 1), `(lanes,)`.
        at: where the lanes are.
        proposal: where they may go.
        energy: before; the Hamiltonian, or minus the log density.
        error: E, by how much it is larger at the proposal, and what else makes the proposal less likely. Not finite, or
            above 1,000, it is a divergence.
        num_steps: evaluations of the log density, one for all lanes or `(lanes,)`.

    Returns:
        Where the lanes go on, and what they did.
    """
    error = broken_down(error)
    accepted, rate, _ = metropolis(uniform, -error)
    info = Info(rate, error > DIVERGENCE_THRESHOLD, jnp.asarray(num_steps), energy + jnp.where(accepted, error, 0.0))
    return choose(accepted, proposal, at), info
