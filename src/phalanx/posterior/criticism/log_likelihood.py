"""Log densities of the observations at every draw, each by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import Distribution, ExpandedDistribution, Independent, MaskedDistribution

from phalanx.density.target import Target
from phalanx.distributions.blocked import Blocked
from phalanx.inputs.known_data import KnownData
from phalanx.language.random_variable import RandomVariable
from phalanx.language.refusals import is_term
from phalanx.language.tracing import Forward, Program
from phalanx.mesh.compatibility.numpyro_internals import mask_of
from phalanx.posterior.criticism.model_at_draws import ModelAtDraws
from phalanx.posterior.over_draws import over_draws


def log_likelihood(
    model: Program | None,
    data: Mapping[str, Any] | None,
    *,
    target: Target | None,
    latents: Sequence[str],
    draws: Mapping[str, np.ndarray],
    sizes: tuple[int, int],
    known: KnownData,
) -> dict[str, np.ndarray]:
    """Evaluate the log densities of the observations at every draw; see `Posterior.log_likelihood`.

    Args:
        model: the program; None for that of `target`.
        data: its keyword arguments; None for those of `target`.
        target: the model and data of the run, if known.
        latents: names of the variables that the run inferred.
        draws: their draws, `(chain, draw, ...)` by name.
        sizes: chains, and draws of each.
        known: names in the run's data, and arguments that fill in.

    Returns:
        Arrays of shape `(chain, draw, ...)` by observed variable.
    """
    if not math.prod(sizes):
        raise ValueError(f"log_likelihood: there are no draws to evaluate: {sizes[0]} chains of {sizes[1]} draws.")
    program = ModelAtDraws.of("log_likelihood", model, data, target=target, known=known, inferred=latents, at=latents)
    values = {name: array for name, array in draws.items() if name in latents}
    terms = Terms(program)
    size = program.batch_size(program.shapes(terms, values))
    return over_draws(terms, values, sizes, seed=0, batch_size=size, given=program.place_arrays(), mesh=program.mesh)


@dataclass(frozen=True)
class Terms:
    """Log densities of a program's observations at one draw, by observed variable; not scaled by `phx.scale`."""

    model: ModelAtDraws

    def __call__(self, values: Mapping[str, Array], _: Array, arrays: Sequence[Array]) -> dict[str, Array]:
        """Return arrays of shape sample + batch, by observed variable."""

        def give(variable: RandomVariable, forward: Forward) -> RandomVariable:
            if variable.distribution is not None and variable.name in self.model.latents:
                return self.model.at(variable, values, forward)
            _check_has_value(variable)
            return forward(variable)

        def terms(variables: Mapping[str, RandomVariable]) -> dict[str, Array]:
            return {name: term_of(variable) for name, variable in observations(variables).items()}

        return self.model.run(arrays, give, terms)


def observations(variables: Mapping[str, RandomVariable]) -> dict[str, RandomVariable]:
    """Return the observed variables, each value of which has a density.

    Raises:
        ValueError: when the model observes no variable; the message names its factors.
    """
    observed = {n: v for n, v in variables.items() if v.observed and v.distribution is not None}
    found = {n: v for n, v in observed.items() if not is_term(_distribution(v))}
    if not found:
        factors = ", ".join(map(repr, observed))
        raise ValueError(
            f"log_likelihood: {factors} is a term of the log density (phx.factor), which does not say what was "
            f"observed, and the model observes no variable. Observe the values by their distribution, "
            f"phx.sample(name, distribution, obs=values); of one that NumPyro does not have, write a class with "
            f"log_prob."
            if factors
            else f"log_likelihood: the model observes no variable; its variables are "
            f"{', '.join(map(repr, variables)) or 'none'}. Pass the observed values as obs= of phx.sample."
        )
    return found


def term_of(variable: RandomVariable) -> Array:
    """Return the log density of each observation of a variable."""
    return replace(variable, scale=1.0).log_prob()


def counted(variable: RandomVariable) -> Array:
    """Return a mask of the observations that count: those that no mask of the distribution leaves out."""
    return jnp.broadcast_to(_unmasked(_distribution(variable)), jnp.shape(term_of(variable)))


def _distribution(variable: RandomVariable) -> Distribution:
    assert variable.distribution is not None
    return variable.distribution


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
        joined = distribution.reinterpreted_batch_ndims
        return inner.any(tuple(range(inner.ndim - joined, inner.ndim)))  # one entry of a vector is enough
    return jnp.bool_(True)


def _check_has_value(variable: RandomVariable) -> None:
    if variable.distribution is not None and variable.value is None:
        raise ValueError(
            f"log_likelihood: variable {variable.name!r} was not inferred in the run, and these data do not observe "
            f"it. Give its values, as the run had them."
        )
