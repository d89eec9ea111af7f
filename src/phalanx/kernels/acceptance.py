"""The Metropolis rule, and when an integration counts as broken down."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

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
