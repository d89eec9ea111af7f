"""Distributions and supports of independent entries without the event that joins them, so that rows are separate."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from numpyro.distributions import (
    Distribution,
    ExpandedDistribution,
    Independent,
    MaskedDistribution,
    TransformedDistribution,
    constraints,
)

from phalanx.mesh.compatibility.numpyro_internals import mask_of


def entries(distribution: Distribution) -> Distribution:
    """Return the density entry by entry: undo `.to_event`, also under `.expand`, `.mask` and elementwise transforms."""
    if isinstance(distribution, Independent):
        return entries(distribution.base_dist)
    base = getattr(distribution, "base_dist", None)
    inner = entries(base) if isinstance(base, Distribution) else None
    if inner is None or inner is base:
        return distribution
    joined = len(distribution.event_shape) - len(inner.event_shape)
    if isinstance(distribution, ExpandedDistribution):
        return inner.expand((*distribution.batch_shape, *distribution.event_shape[:joined]))
    if isinstance(distribution, MaskedDistribution):
        mask = mask_of(distribution)
        return MaskedDistribution(inner, mask if isinstance(mask, bool) else _widened(mask, joined, inner.batch_shape))
    if isinstance(distribution, TransformedDistribution):
        single = all(t.domain.event_dim == 0 == t.codomain.event_dim for t in distribution.transforms)
        return TransformedDistribution(inner, distribution.transforms) if single else distribution
    return distribution


def entries_of_support(support: Any) -> Any:
    """Return the support of single entries."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support


def _widened(mask: Array, dims: int, shape: tuple[int, ...]) -> Array:
    return jnp.broadcast_to(mask.reshape(*mask.shape, *(1,) * dims), shape)
