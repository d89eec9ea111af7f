"""The Metropolis rule, and when an integration counts as broken down."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

DIVERGENCE_THRESHOLD = 1000.0
"""An energy error above this is a divergence, as in Stan."""


def metropolis(uniform: Array, log_ratio: Array) -> tuple[Array, Array]:
    r"""Accept with probability $\min(1, e^{r})$, given a uniform on [0, 1); a NaN is never accepted.

    Returns:
        Whether to accept, and the probability of it.
    """
    log_ratio = jnp.where(jnp.isnan(log_ratio), -jnp.inf, log_ratio)
    probability = jnp.minimum(1.0, jnp.exp(log_ratio))
    # u < probability rather than log u < ratio: u may be zero, and a ratio of -inf must never pass
    return uniform < probability, probability
