"""The Metropolis rule, and when an integration counts as broken down."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, random

DIVERGENCE_THRESHOLD = 1000.0
"""An energy error above this is a divergence, as in Stan."""


def metropolis(key: Array, log_ratio: Array) -> tuple[Array, Array]:
    r"""Accept with probability $\min(1, e^{r})$; a NaN is never accepted. Returns (accepted, probability)."""
    log_ratio = jnp.where(jnp.isnan(log_ratio), -jnp.inf, log_ratio)
    probability = jnp.minimum(1.0, jnp.exp(log_ratio))
    # u < probability rather than log u < ratio: u may be zero, and a ratio of -inf must never pass
    return random.uniform(key, dtype=probability.dtype) < probability, probability
