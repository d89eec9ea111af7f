"""Improper uniform distributions, which several of the models have as priors."""

from __future__ import annotations

import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.distributions.constraints import Constraint


def flat(support: Constraint = constraints.real, shape: tuple[int, ...] = ()) -> dist.ImproperUniform:
    """The improper uniform distribution on a support."""
    return dist.ImproperUniform(support, (), shape)
