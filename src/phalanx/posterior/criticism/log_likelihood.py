"""Log density of each observation at every draw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jax import Array
from numpyro.distributions import Distribution

from phalanx.distributions.supports import SharedTerm
from phalanx.errors.message_text import first_few
from phalanx.errors.names import hint
from phalanx.inputs.dataframe_input import UserData
from phalanx.language.messages import Forward, is_term
from phalanx.language.observations import term_of
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Program
from phalanx.posterior.criticism.model_at_draws import ModelAtDraws, RunDraws
from phalanx.posterior.criticism.reduced_results import ValuesAtDraws, evaluate
from phalanx.reducers.reducer import Reduce, Reducer


def log_likelihood(
    model: Program | None,
    data: UserData | None,
    run: RunDraws,
    keep: str | Sequence[str] | None = None,
    reducers: Mapping[str, Reducer | Reduce] | None = None,
) -> ValuesAtDraws:
    """Evaluate the log densities of the observations at every draw; see `Posterior.log_likelihood`."""
    chains, length = run.sizes
    if not chains * length:
        raise ValueError(f"log_likelihood: there are no draws to evaluate: {chains} chains of {length} draws.")
    program = ModelAtDraws.of("log_likelihood", model, data, run, run.latents)
    for name, reducer in (reducers or {}).items():
        if isinstance(reducer, Reducer) and reducer.of_observations:
            raise ValueError(
                f"log_likelihood: reducers[{name!r}] is {reducer}, which posterior.loo() computes batch by batch: call "
                f"posterior.loo(), and read its pointwise and pareto_k."
            )
    return evaluate(program, Terms(program), run.of_latents(), run.sizes, seed=0, keep=keep, reducers=reducers)


def log_prior(run: RunDraws) -> ValuesAtDraws:
    """Evaluate the log densities of the latent variables at every draw of a run, on their own scales."""
    program = ModelAtDraws.of("to_arviz", None, None, run, run.latents)
    return evaluate(program, PriorTerms(program), run.of_latents(), run.sizes, seed=0, keep=None, reducers=None)


@dataclass(frozen=True)
class Terms:
    """Log densities of a program's observations at one draw, by observed variable; not scaled by `phx.scale`.

    Attributes:
        model: the program with its data.
        of: function of an observed variable, whose results are returned.
        names: names of the observed variables; None for all.
        met: all variables of the program by name, from its last trace; their values must not be used.
    """

    model: ModelAtDraws
    of: Callable[[RandomVariable], Array] = term_of
    names: tuple[str, ...] | None = None
    met: dict[str, RandomVariable] = field(default_factory=dict, compare=False)

    def __call__(self, values: Mapping[str, Array], _: Array, arrays: Sequence[Array]) -> dict[str, Array]:
        """Return arrays of shape sample + batch, by observed variable."""

        def give(variable: RandomVariable, forward: Forward) -> RandomVariable:
            if variable.distribution is not None and variable.name in self.model.latents:
                return self.model.at(variable, values, forward)
            self._check_has_value(variable)
            return forward(variable)

        def terms(variables: Mapping[str, RandomVariable]) -> dict[str, Array]:
            self.met.update(variables)
            return self.results(variables)

        return self.model.run(arrays, give, terms)

    def results(self, variables: Mapping[str, RandomVariable]) -> dict[str, Array]:
        """Return the results of the observed variables that are asked for, by name."""
        outcomes = observations(variables, self.model.asked)
        return {name: self.of(outcomes[name]) for name in chosen_names(self.model.asked, self.names, outcomes)}

    def _check_has_value(self, variable: RandomVariable) -> None:
        if variable.distribution is not None and variable.value is None:
            raise ValueError(
                f"{self.model.asked}: variable {variable.name!r} was not inferred in the run, and these data do not "
                f"observe it. Give its values, as the run had them."
            )


@dataclass(frozen=True)
class PriorTerms(Terms):
    """Log densities of a program's latent variables at one draw, by name."""

    def results(self, variables: Mapping[str, RandomVariable]) -> dict[str, Array]:
        """Return arrays of shape sample + batch by latent variable, without the Jacobians of unconstrained values."""
        latents = {n: v for n, v in variables.items() if v.distribution is not None and n in self.model.latents}
        return {name: term_of(variable) for name, variable in latents.items()}


def chosen_names(caller: str, names: Sequence[str] | None, observed: Iterable[str]) -> list[str]:
    """Return the names of observed variables that are asked for, all if None; raise if one is unknown."""
    there = list(observed)
    if names is None:
        return there
    if not names:
        raise ValueError(f"{caller}: names=[] has no variable; the model observes {', '.join(map(repr, there))}.")
    if unknown := [name for name in names if name not in there]:
        raise ValueError(
            f"{caller}: names has {', '.join(map(repr, unknown))}, which the model does not observe; it observes "
            f"{', '.join(map(repr, there))}.{hint(unknown, there)}"
        )
    return [name for name in there if name in names]


def factors(variables: Mapping[str, RandomVariable]) -> tuple[str, ...]:
    """Return the names of the terms that are not observations."""
    observed_variables = {n: v for n, v in variables.items() if v.observed and v.distribution is not None}
    return tuple(name for name, variable in observed_variables.items() if is_term(_distribution(variable)))


def observations(variables: Mapping[str, RandomVariable], caller: str = "log_likelihood") -> dict[str, RandomVariable]:
    """Return the observed variables that have a distribution, without factors.

    Raises:
        ValueError: when the model observes no variable; the message names its factors.
    """
    observed_variables = {n: v for n, v in variables.items() if v.observed and v.distribution is not None}
    outcomes = {n: v for n, v in observed_variables.items() if not is_term(_distribution(v))}
    if not outcomes:
        terms = ", ".join(map(repr, observed_variables))
        sharing_names = [
            n for v in observed_variables.values() if isinstance(v.distribution, SharedTerm) for n in v.distribution.of
        ]
        if sharing_names:
            raise ValueError(
                f"{caller}: the entries of {first_few(list(map(repr, dict.fromkeys(sharing_names))))} share discrete "
                f"variables that phx.marginalize sums out ({terms}), such as the states of a hidden Markov model: "
                f"their joint density is one term, without a term for each. To criticise the model, draw the data anew "
                f"with posterior.predictive(), or predict held-out data."
            )
        raise ValueError(
            f"{caller}: {terms} is a term of the log density (phx.factor), which does not identify the "
            f"observations, and the model observes no variable. Observe the values by their distribution, "
            f"phx.sample(name, distribution, obs=values); of one that NumPyro does not have, write a class with "
            f"log_prob."
            if terms
            else f"{caller}: the model observes no variable; its variables are "
            f"{', '.join(map(repr, variables)) or 'none'}. Pass the observed values as obs= of phx.sample."
        )
    return outcomes


def _distribution(variable: RandomVariable) -> Distribution:
    assert variable.distribution is not None
    return variable.distribution
