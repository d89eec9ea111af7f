"""Checks of a model's prior: particles begin as draws from it, and its density must be that of the draws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import Distribution, ImproperUniform, MaskedDistribution

from phalanx.distributions.constraint_text import kind_of
from phalanx.programs.traced_program import TracedProgram

INSTEAD = "Or draw from the posterior with phx.mcmc, which needs no draws from the prior"
"""Way out where a prior cannot be drawn from."""


def check_prior(whole: TracedProgram) -> None:
    """Raise unless every latent variable has a proper prior, and something is observed.

    Raises:
        ValueError: naming the variable, and what to do.
    """
    for name, variable in whole.variables.items():
        if not variable.is_latent:
            continue
        kinds = list(_bases(variable.distribution))
        if any(isinstance(kind, ImproperUniform) for kind in kinds):
            raise ValueError(
                f"Variable {name!r} has the prior {kind_of(variable.distribution)}, which is not a distribution, and "
                f"particles begin as draws from the prior; the evidence would not be defined, either. Give it a proper "
                f"prior, such as a wide normal. {INSTEAD}."
            )
        if any(isinstance(kind, MaskedDistribution) for kind in kinds):
            raise ValueError(
                f"Variable {name!r} has a masked prior ({kind_of(variable.distribution)}), whose draws do not have its "
                f"density. Give it a prior without a mask; if phx.marginalize has made it part of a sum, let its prior "
                f"not depend on the discrete variables. {INSTEAD}."
            )
        if not _is_one(variable.scale):
            raise ValueError(
                f"Variable {name!r} is latent and has a scaled log density (phx.scale, or a scale of NumPyro's), so "
                f"that draws from the prior do not have its density. Scale the observed variables alone."
            )
    if not whole.observes:
        raise ValueError(
            "phx.smc: the model observes no data, so that the posterior is the prior, and the evidence one. Draw from "
            "it with phx.predictive(model)."
        )


def _bases(distribution: Any) -> Iterator[Distribution]:
    while distribution is not None:
        yield distribution
        distribution = getattr(distribution, "base_dist", None)


def _is_one(scale: ArrayLike) -> bool:
    return isinstance(scale, int | float | np.number) and scale == 1
