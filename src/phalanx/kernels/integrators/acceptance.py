"""The Metropolis rule, and the threshold of a divergence."""

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
    """Return the energy error, and infinity where it is not finite: minus infinity must not count as a good end."""
    return jnp.where(jnp.isfinite(error), error, jnp.inf)


def metropolis(
    uniform: Float[Array, "lanes"], log_ratio: Float[Array, "lanes"]
) -> tuple[Bool[Array, "lanes"], Float[Array, "lanes"], Bool[Array, "lanes"]]:
    r"""Accept with probability $\min(1, e^{r})$, given a uniform on [0, 1); a ratio that is not finite is rejected.

    Returns:
        True to accept, the probability of it, and true if the ratio is not finite.
    """
    # Derive all results from one exp: XLA computes it once, but recomputes cheaper operations, such as a log density
    # without an exp, in each consumer.
    probability = jnp.exp(jnp.minimum(jnp.where(jnp.isfinite(log_ratio), log_ratio, jnp.nan), 0.0))
    broken = jnp.isnan(probability)
    # u < probability rather than log u < ratio: u may be zero, and a ratio of -inf must never pass
    return uniform < probability, jnp.where(broken, 0.0, probability), broken


def decide(
    uniform: Float[Array, "lanes"],
    at: Point,
    proposal: Point,
    energy: Total | Float[Array, "lanes"],
    error: Float[Array, "lanes"],
    num_steps: int | Int[Array, ""] | Int[Array, "lanes"],
) -> tuple[Point, Info]:
    r"""Move to a proposal with probability $\min(1, e^{-E})$, or stay.

    Args:
        uniform: on [0, 1), `(lanes,)`.
        at: the lanes' points.
        proposal: the points to which they may move.
        energy: before; the Hamiltonian, or minus the log density.
        error: E, the energy at the proposal less that before, plus any other term that makes the proposal less likely.
            If it is not finite, or above 1,000, it is a divergence.
        num_steps: evaluations of the log density, one for all lanes or `(lanes,)`.

    Returns:
        The lanes' next points, and statistics of the draw.

    Example:
        >>> import jax.numpy as jnp
        >>> from phalanx.kernels import Point, Vector, decide
        >>> at, there = (Point(Vector((jnp.full((1, 2), x),)), jnp.zeros(2), Vector(())) for x in (0.0, 1.0))
        >>> point, info = decide(jnp.full(2, 0.5), at, there, jnp.zeros(2), jnp.array([0.0, 3.0]), num_steps=1)
        >>> point.position.parts[0].tolist(), (info.acceptance_rate > 0.5).tolist()
        ([[1.0, 0.0]], [True, False])
    """
    error = broken_down(error)
    is_accepted, rate, _ = metropolis(uniform, -error)
    info = Info(rate, error > DIVERGENCE_THRESHOLD, jnp.asarray(num_steps), energy + jnp.where(is_accepted, error, 0.0))
    return choose(is_accepted, proposal, at), info
