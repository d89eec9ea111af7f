"""Maximum likelihood: no guide, and a model of which all variables are observed."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.language.random_variable import RandomVariable
from phalanx.variational.guides.pair import Pair


def no_guide() -> None:
    """A guide without variables: what is learned is the model's parameters alone."""


def check_likelihood(model: str, variables: Mapping[str, RandomVariable]) -> None:
    """Refuse a model with latent variables, or without a likelihood."""
    if latent := [name for name, v in variables.items() if v.is_latent]:
        raise ValueError(
            f"guide=None learns by maximum likelihood, and {', '.join(map(repr, latent))} of the model {model} has "
            f"no value. Observe it, sum it out, or give a guide for it, such as phx.guides.mean_field()."
        )
    if not any(v.distribution is not None for v in variables.values()):
        raise ValueError(
            f"guide=None learns by maximum likelihood, and the model {model} has no observed variable and no "
            f"phx.factor: there is no likelihood. Observe what the data say, phx.sample(..., obs=...)."
        )


def bound_of(pair: Pair | None) -> str:
    """Return the name of the mean log weight, of a fit with a guide and of one without."""
    return "ELBO" if pair is None or pair.has_draws else "log likelihood"


def check_has_guide(pair: Pair | None) -> None:
    """Refuse to draw from a fit that has no guide."""
    if pair is not None and not pair.has_draws:
        raise ValueError(
            "This fit is of maximum likelihood and has no guide to draw from: there are values, fit.params, and no "
            "posterior. Give the parameters priors (phx.sample, phx.random_network) and fit a guide, or run phx.mcmc."
        )
