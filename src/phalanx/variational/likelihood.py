"""No guide: the parameters of a model without latent variables are learned by maximum likelihood."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jax import Array

from phalanx.programs.random_variable import RandomVariable
from phalanx.programs.tracing import Program
from phalanx.variational.aligned import ProgramPair
from phalanx.variational.learned import Params
from phalanx.variational.problem import Values


def no_guide() -> None:
    """A guide without variables: what is learned is the model's parameters alone."""


@dataclass(frozen=True)
class Likelihood(ProgramPair):
    """A model whose variables are all observed: the bound is its log likelihood, and needs no draws."""

    guide: Program = no_guide

    @property
    def name(self) -> str:
        """What is done, in the place of a guide's name."""
        return "maximum likelihood"

    def _check_aligned(self, mine: Mapping[str, RandomVariable], theirs: Mapping[str, RandomVariable]) -> None:
        model = getattr(self.problem.model, "__name__", "model")
        if latent := [name for name, v in theirs.items() if v.is_latent]:
            raise ValueError(
                f"guide=None learns by maximum likelihood, and {', '.join(map(repr, latent))} of the model {model} has "
                f"no value. Observe it, sum it out, or give a guide for it, such as phx.guides.mean_field()."
            )
        if not any(v.distribution is not None for v in theirs.values()):
            raise ValueError(
                f"guide=None learns by maximum likelihood, and the model {model} has no observed variable and no "
                f"phx.factor: there is no likelihood. Observe what the data say, phx.sample(..., obs=...)."
            )

    def _misfits(self, params: Params, key: Array, data: Values) -> dict[str, Array]:
        return {}


def check_has_guide(pair: Any) -> None:
    """Refuse to draw from a fit that has no guide."""
    if isinstance(pair, Likelihood):
        raise ValueError(
            "This fit is of maximum likelihood and has no guide to draw from: there are values, fit.params, and no "
            "posterior. Give the parameters priors (phx.sample, phx.random_network) and fit a guide, or run phx.mcmc."
        )
