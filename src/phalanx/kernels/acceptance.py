"""The Metropolis rule, and when an integration counts as broken down."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from phalanx.kernels.kernel import Info, Point
from phalanx.kernels.lanes import choose
from phalanx.mesh.total import Total

DIVERGENCE_THRESHOLD = 1000.0
"""An energy error above this is a divergence, as in Stan."""


def broken_down(error: Array) -> Array:
    """An energy error, and infinity where it is not finite: an energy of minus infinity is no better place to be."""
    return jnp.where(jnp.isfinite(error), error, jnp.inf)


def metropolis(uniform: Array, log_ratio: Array) -> tuple[Array, Array]:
    r"""Accept with probability $\min(1, e^{r})$, given a uniform on [0, 1); what is not finite is never accepted.

    Returns:
        Whether to accept, and the probability of it.
    """
    probability = jnp.minimum(1.0, jnp.exp(-broken_down(-log_ratio)))
    # u < probability rather than log u < ratio: u may be zero, and a ratio of -inf must never pass
    return uniform < probability, probability


def decide(
    uniform: Array, at: Point, proposal: Point, energy: Total | Array, error: Array, num_steps: Any
) -> tuple[Point, Info]:
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
    accepted, rate = metropolis(uniform, -error)
    info = Info(rate, error > DIVERGENCE_THRESHOLD, jnp.asarray(num_steps), energy + jnp.where(accepted, error, 0.0))
    return choose(accepted, proposal, at), info
