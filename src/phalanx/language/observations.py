"""Observations with their log densities, those that a mask leaves out, and a check that they have no scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import Distribution, ExpandedDistribution, Independent, MaskedDistribution

from phalanx.distributions.blocked import Blocked
from phalanx.language.random_variable import RandomVariable
from phalanx.mesh.compatibility.numpyro_internals import mask_of


def term_of(variable: RandomVariable) -> Array:
    """Return the log density of each observation of a variable, without its scale."""
    return replace(variable, scale=1.0).log_prob()


def marked_term_of(variable: RandomVariable) -> Array:
    """Return the log density of each observation of a variable, and infinity for those that a mask leaves out."""
    term = term_of(variable)
    return jnp.where(counted(variable), term, jnp.inf) if is_masked(variable) else term


def is_masked(variable: RandomVariable) -> bool:
    """Return whether a mask of the distribution may leave observations out."""
    distribution: Any = variable.distribution
    while distribution is not None:
        if isinstance(distribution, MaskedDistribution):
            return True
        distribution = getattr(distribution, "whole" if isinstance(distribution, Blocked) else "base_dist", None)
    return False


def counted(variable: RandomVariable) -> Array:
    """Return a mask of the observations that no mask of the distribution leaves out."""
    assert variable.distribution is not None
    return jnp.broadcast_to(_unmasked(variable.distribution), jnp.shape(term_of(variable)))


def _unmasked(distribution: Distribution) -> Any:
    """Return a mask that broadcasts to the batch shape of a distribution."""
    if isinstance(distribution, Blocked):
        return _unmasked(distribution.whole)
    if isinstance(distribution, MaskedDistribution):
        return jnp.logical_and(mask_of(distribution), _unmasked(distribution.base_dist))
    if isinstance(distribution, ExpandedDistribution):
        return _unmasked(distribution.base_dist)
    if isinstance(distribution, Independent):
        inner = jnp.broadcast_to(_unmasked(distribution.base_dist), distribution.base_dist.batch_shape)
        num_dims = distribution.reinterpreted_batch_ndims
        return inner.any(tuple(range(inner.ndim - num_dims, inner.ndim)))  # one entry of a vector is enough
    return jnp.bool_(True)


def check_unscaled(variables: Mapping[str, RandomVariable], what: str) -> None:
    """Raise if an observed variable's log density is scaled; `what` begins the message."""
    if scaled_names := [name for name, variable in variables.items() if not _is_one(variable.scale)]:
        raise ValueError(
            f"{what}: {', '.join(map(repr, scaled_names))} has a scaled log density (phx.scale, or a scale of "
            f"NumPyro's), so dividing by the density of an observation does not leave it out. Run the model without "
            f"the scale; or compute with posterior.log_likelihood(), whose terms are not scaled."
        )


def _is_one(scale: ArrayLike) -> bool:
    return isinstance(scale, int | float) and scale == 1
