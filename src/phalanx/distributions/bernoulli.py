r"""Bernoulli variables of logits, whose log density has the exact gradient at zero.

NumPyro adds $-y l$, a clipped logit and $\log(1 + e^{-|l|})$. At $l = 0$ JAX takes the derivatives of the last two to
be $1$ and $0$: the gradient is off by a half there, and so is that of every logistic regression whose coefficients are
zero. The log density here is $-\log(1 + e^m)$, with $m = l$ if the value is zero and $m = -l$ if it is one, which needs
neither a clip nor a special case for infinite logits.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike


def log_prob_of_bernoulli(self: Any, value: ArrayLike) -> Array:
    """Return the log density; NaN for a value that is neither zero nor one."""
    value, logits = jnp.asarray(value), jnp.asarray(self.logits)
    m = jnp.where(value == 0, logits, jnp.where(value == 1, -logits, jnp.nan))
    # at zero both parts take the branch m + log(1 + exp(-m)), so that all derivatives are those of one expression
    above = m >= 0
    return -(jnp.where(above, m, 0.0) + jnp.log1p(jnp.exp(-jnp.where(above, m, -m))))
