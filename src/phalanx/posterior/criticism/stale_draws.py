"""Latent variables whose draws new data or an intervention make stale: predictive draws sample them anew.

A variable that `phx.do` sets, or that the run observed and that has no value now, gets another value than the run saw.
The draws of a latent variable whose distribution depends on it belong to the old value. The program is traced with a
mark on each such value, and the jaxpr shows which densities the mark reaches, directly or by other latent variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from numpyro.distributions import Distribution

from phalanx.jaxprs.dependence import NOWHERE, varying_axes
from phalanx.language.random_variable import RandomVariable
from phalanx.language.refusals import is_term
from phalanx.language.tracing import Forward
from phalanx.posterior.criticism.model_at_draws import ModelAtDraws
from phalanx.posterior.over_draws import key_of
from phalanx.programs.unconstrained import refuse_parameter

MARK = ""
"""Name of the mark among the names of latent variables."""


def stale_latents(
    model: ModelAtDraws, draws: Mapping[str, Any], observed: Sequence[str] | None = None
) -> frozenset[str]:
    """Return the names of the latent variables whose draws do not fit the program with its data.

    Args:
        model: the program with its data.
        draws: draws of the run, `(chain, draw, ...)` by latent variable.
        observed: names of the variables that the run observed; None if they are not known, as in files of earlier
            releases: any variable may then have been observed.
    """
    values = {name: jax.ShapeDtypeStruct(array.shape[2:], array.dtype) for name, array in draws.items()}
    known = model.observed if observed is None else frozenset(observed)
    traced = jax.make_jaxpr(_Marked(model, None if known is None else frozenset(known)), return_shape=True)
    program, densities = traced(values, jax.ShapeDtypeStruct((), bool), key_of(0, 0, 0), model.arguments.whole_shapes())
    labels = [*(frozenset({name}) for name in sorted(values)), frozenset({MARK})]
    inputs = [*labels, *[NOWHERE] * (len(program.jaxpr.invars) - len(labels))]
    reached = dict(zip(sorted(densities), varying_axes(program, inputs), strict=True))
    stale = {MARK}
    while more := {name for name, sources in reached.items() if sources - {name} & stale} - stale:
        stale |= more
    return frozenset(stale - {MARK})


def to_draw(variable: RandomVariable) -> RandomVariable:
    """Return the variable without its value: sampled with a key of this draw, in the shape of the value."""
    distribution = variable.distribution
    assert distribution is not None
    if variable.value is not None:
        shape = jnp.shape(variable.value)
        distribution = _repeated(distribution, shape[: len(shape) - len(distribution.event_shape)])
    return replace(variable, distribution=distribution, value=None, key=None)


def _repeated(distribution: Distribution, batch: tuple[int, ...]) -> Distribution:
    return distribution if batch == tuple(distribution.batch_shape) else distribution.expand(batch)


@dataclass(frozen=True)
class _Marked:
    """Log densities of a program's latent variables at one draw, as functions of their values and of a mark.

    Attributes:
        model: the program with its data.
        observed: names of the variables that the run observed; None if they are not known.
    """

    model: ModelAtDraws
    observed: frozenset[str] | None

    def __call__(
        self, values: Mapping[str, Array], mark: Array, key: Array, arrays: Sequence[Array]
    ) -> dict[str, Array]:
        """Return the log densities by latent variable."""

        def marked(value: Any) -> Array:
            return jnp.where(mark, value, value)

        def give(variable: RandomVariable, forward: Forward) -> RandomVariable:
            refuse_parameter(variable)
            if variable.set_to is not None and self._is_new(variable):
                variable = replace(variable, set_to=marked(variable.set_to))
            if variable.distribution is None or is_term(variable.distribution):
                return forward(variable)
            value = values.get(variable.name)
            if value is not None and value.shape == tuple(variable.distribution.shape()):
                return forward(replace(variable, value=value))
            if variable.value is not None and not variable.observed:
                return forward(variable)  # set by the program itself
            found = forward(to_draw(variable))
            is_new = variable.value is None and variable.name not in self.model.latents and self._is_known(variable)
            return replace(found, value=marked(found.value)) if is_new else found

        def densities(variables: Mapping[str, RandomVariable]) -> dict[str, Array]:
            return {name: variables[name].log_prob() for name in self.model.latents if name in variables}

        return self.model.run(arrays, give, densities, key)

    def _is_known(self, variable: RandomVariable) -> bool:
        return self.observed is None or variable.name in self.observed

    def _is_new(self, variable: RandomVariable) -> bool:
        """Return whether the run's program cannot have set the variable, too: the run inferred or observed it."""
        is_computed = variable.natural is not None and variable.natural.distribution is None
        return is_computed or variable.name in self.model.latents or self._is_known(variable)
