r"""Bernoulli variables of logits, with the gradient that their log density has at zero.

NumPyro's is $-y l$ plus a clipped logit and $\log(1 + e^{-|l|})$, whose derivatives JAX takes to be $1$ and $0$ where
$l = 0$: there the gradient is off by a half, and with it that of every logistic regression at coefficients of nothing.
Of $m = l$ where the value is zero and $m = -l$ where it is one, $-\log(1 + e^m)$ needs neither a clip nor a case apart
for infinite logits.
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


def mended(distribution: Distribution) -> Distribution:
    """The same distribution, whose log density has the right gradient; also under `.to_event`, `.expand`, `.mask`."""
    if not Workaround.BERNOULLI_AT_ZERO.is_on:
        return distribution
    if type(distribution) is BernoulliLogits:
        return _Mended(distribution.logits, validate_args=getattr(distribution, "_validate_args", None))
    if isinstance(distribution, Independent | ExpandedDistribution | MaskedDistribution):
        base = mended(distribution.base_dist)
        if base is not distribution.base_dist:
            distribution = copy(distribution)
            distribution.base_dist = base
    return distribution


class _Mended(BernoulliLogits):
    @validate_sample
    def log_prob(self, value: ArrayLike) -> Array:
        """The log density; NaN of a value that is neither zero nor one."""
        value, logits = jnp.asarray(value), jnp.asarray(self.logits)
        other = jnp.where(value == 0, logits, jnp.where(value == 1, -logits, jnp.nan))
        # both parts are of one branch at zero too, m + log(1 + exp(-m)), so that all derivatives there are its own
        above = other >= 0
        return -(jnp.where(above, other, 0.0) + jnp.log1p(jnp.exp(-jnp.where(above, other, -other))))
