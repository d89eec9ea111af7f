"""Dependence among a program's variables: which observed ones predictions hold, and which draws are stale.

A prediction at new data holds an observed variable on which others depend, such as a covariate that the model imputes.
A variable that `phx.do` sets, that is held at other values, or that the run observed and that has no value now, gets
another value than the run saw. The draws of a latent variable whose distribution depends on it belong to the old value:
predictive draws sample it anew. The program is traced with a mark on the value of each variable, and the jaxpr shows
which distributions each mark reaches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from phalanx.jaxprs.dependence import NOWHERE, varying_axes
from phalanx.language.messages import Forward, is_term
from phalanx.language.random_variable import RandomVariable
from phalanx.posterior.criticism.model_at_draws import ModelAtDraws
from phalanx.posterior.over_draws import key_of
from phalanx.programs.unconstrained import refuse_parameter

Names = frozenset[str]


@dataclass(frozen=True)
class VariableDependence:
    """Dependence of the variables of a program on the values of others.

    Attributes:
        sources: by random variable, the names of the variables on whose values its distribution depends.
        given: observed variables that have a value and that no intervention sets.
        new: variables whose values are others than those of the run: set by `phx.do`, or observed in the run and
            without a value now.
        inferred: latent variables that take the values of draws.
    """

    sources: Mapping[str, Names]
    given: Names
    new: Names
    inferred: Names

    @classmethod
    def of(
        cls, model: ModelAtDraws, draws: Mapping[str, Any], observed: Sequence[str] | None = None
    ) -> VariableDependence:
        """Trace the program, and return the dependence of its variables.

        Args:
            model: the program with its data.
            draws: draws of the run, `(chain, draw, ...)` by latent variable.
            observed: names of the variables that the run observed; None if they are not known, as in files of earlier
                releases: any variable may then have been observed.
        """
        outcomes = model.observed if observed is None else frozenset(observed)
        marked = _Marked(model, None if outcomes is None else frozenset(outcomes))
        values = {name: jax.ShapeDtypeStruct(array.shape[2:], array.dtype) for name, array in draws.items()}
        rest = key_of(0, 0, 0), model.arguments.whole_shapes()
        jax.eval_shape(marked, values, {}, *rest)  # notes the names of the variables
        latent_names = frozenset(model.latents)
        given_names = frozenset(marked.given)
        new = frozenset(marked.new)
        new_names = [name for name in marked.named if name not in latent_names]
        if not new and not (given_names and len(new_names) > 1):
            return cls({}, given_names, new, latent_names)
        marks = dict.fromkeys(marked.named, jax.ShapeDtypeStruct((), bool))
        program, results = jax.make_jaxpr(marked, return_shape=True)(values, marks, *rest)
        labels = [*(frozenset({name}) for name in sorted(values)), *(frozenset({name}) for name in sorted(marks))]
        inputs = [*labels, *[NOWHERE] * (len(program.jaxpr.invars) - len(labels))]
        sources = zip(sorted(results), varying_axes(program, inputs), strict=True)
        return cls({name: frozenset(of) - {name} for name, of in sources}, given_names, new, latent_names)

    def held(self) -> Names:
        """Return the given variables on which another variable that is drawn depends, directly or through latents."""
        new_names = {name for name in self.sources if name not in self.inferred}
        return frozenset(name for name in self.given if self.reached({name}) & new_names - {name})

    def stale(self, held_names: Names, changed_names: Names = frozenset()) -> Names:
        """Return the latent variables whose draws do not fit the values of the others.

        Args:
            held_names: observed variables that keep their values.
            changed_names: those of them whose values are not the run's.
        """
        return self.reached(self.new | changed_names, but=held_names) & self.inferred

    def reached(self, sources: set[str] | Names, but: Names = frozenset()) -> Names:
        """Return the variables that depend on `sources`, directly or through others; dependence ends at those `but`."""
        dependents = set(sources)
        while more := {name for name, of in self.sources.items() if of & dependents and name not in but} - dependents:
            dependents |= more
        return frozenset(dependents - set(sources))


def to_draw(variable: RandomVariable) -> RandomVariable:
    """Return the variable without its value: sampled with a key of this draw, in the shape of the value."""
    distribution = variable.distribution
    assert distribution is not None
    if variable.value is not None:
        shape = jnp.shape(variable.value)
        batch = shape[: len(shape) - len(distribution.event_shape)]
        distribution = distribution if batch == tuple(distribution.batch_shape) else distribution.expand(batch)
    return replace(variable, distribution=distribution, value=None, key=None)


@dataclass(frozen=True)
class _Marked:
    """Random variables of a program at one draw, as functions of their values and of marks on these.

    Attributes:
        model: the program with its data.
        observed: names of the variables that the run observed; None if they are not known.
        named: names of the variables that the last trace met, in order.
        given, new: of them those with data, and those with other values than the run's.
    """

    model: ModelAtDraws
    observed: Names | None
    named: dict[str, None] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    new: set[str] = field(default_factory=set)

    def __call__(
        self, values: Mapping[str, Array], marks: Mapping[str, Array], key: Array, arrays: Sequence[Array]
    ) -> dict[str, Array]:
        """Return the log density of each inferred variable, and a draw of each other one: some have no density."""

        def marked(name: str, value: Any) -> Array:
            self.named[name] = None
            return jnp.where(marks[name], value, value) if name in marks else jnp.asarray(value)

        def give(variable: RandomVariable, forward: Forward) -> RandomVariable:
            refuse_parameter(variable)
            name = variable.name
            if variable.set_to is not None and self._is_new(variable):
                self.new.add(name)
                variable = replace(variable, set_to=marked(name, variable.set_to))
            if variable.distribution is None or is_term(variable.distribution):
                return forward(variable)
            value = values.get(name)
            if value is not None and value.shape == tuple(variable.distribution.shape()):
                return forward(replace(variable, value=value))
            if variable.value is not None and not variable.observed:
                return forward(variable)  # set by the program itself
            answered = forward(to_draw(variable))
            if variable.value is None:
                if name not in self.model.latents and self._is_known(variable):
                    self.new.add(name)
                return replace(answered, value=marked(name, answered.value))
            if variable.set_to is None:
                self.given.add(name)
            is_like_it = jnp.shape(variable.value) == jnp.shape(answered.value)
            return replace(answered, value=marked(name, variable.value if is_like_it else answered.value))

        def results(variables: Mapping[str, RandomVariable]) -> dict[str, Array]:
            return {
                name: variable.log_prob() if name in self.model.latents else jnp.asarray(variable.value)
                for name, variable in variables.items()
                if variable.distribution is not None and not is_term(variable.distribution)
            }

        return self.model.run(arrays, give, results, key)

    def _is_known(self, variable: RandomVariable) -> bool:
        return self.observed is None or variable.name in self.observed

    def _is_new(self, variable: RandomVariable) -> bool:
        """Return whether the run's program cannot have set the variable, too: the run inferred or observed it."""
        is_computed = variable.natural is not None and variable.natural.distribution is None
        return is_computed or variable.name in self.model.latents or self._is_known(variable)
