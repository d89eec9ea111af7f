r"""Bernoulli variables of logits, whose log density has the exact gradient at zero.

NumPyro adds $-y l$, a clipped logit and $\log(1 + e^{-|l|})$. At $l = 0$ JAX takes the derivatives of the last two to
be $1$ and $0$: the gradient is off by a half there, and so is that of every logistic regression whose coefficients are
zero. The log density here is $-\log(1 + e^m)$, with $m = l$ if the value is zero and $m = -l$ if it is one, which needs
neither a clip nor a special case for infinite logits.
"""

from __future__ import annotations

from copy import copy

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import (
    BernoulliLogits,
    Distribution,
    ExpandedDistribution,
    Independent,
    MaskedDistribution,
)

from phalanx.mesh.compatibility.numpyro_internals import validate_sample
from phalanx.mesh.compatibility.workarounds import Workaround


def with_exact_gradient(distribution: Distribution) -> Distribution:
    """Return the same distribution with the exact gradient, also under `.to_event`, `.expand` and `.mask`."""
    if not Workaround.BERNOULLI_AT_ZERO.is_on:
        return distribution
    if type(distribution) is BernoulliLogits:
        return _ExactBernoulli(distribution.logits, validate_args=getattr(distribution, "_validate_args", None))
    if isinstance(distribution, Independent | ExpandedDistribution | MaskedDistribution):
        base = with_exact_gradient(distribution.base_dist)
        if base is not distribution.base_dist:
            distribution = copy(distribution)
            distribution.base_dist = base
    return distribution


class _ExactBernoulli(BernoulliLogits):
    @validate_sample
    def log_prob(self, value: ArrayLike) -> Array:
        """Return the log density; NaN for a value that is neither zero nor one."""
        value, logits = jnp.asarray(value), jnp.asarray(self.logits)
        m = jnp.where(value == 0, logits, jnp.where(value == 1, -logits, jnp.nan))
        # at zero both parts take the branch m + log(1 + exp(-m)), so that all derivatives are those of one expression
        above = m >= 0
        return -(jnp.where(above, m, 0.0) + jnp.log1p(jnp.exp(-jnp.where(above, m, -m))))
