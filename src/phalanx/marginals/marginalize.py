"""`marginalize`: a program whose discrete latent variables are summed out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import update_wrapper
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer
from numpyro.distributions import MaskedDistribution

from phalanx.distributions.supports import PrecomputedDensity, SharedTerm
from phalanx.inputs.arguments import check_program
from phalanx.language.handlers import substitute, trace
from phalanx.language.messages import Forward, has_key
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Program, send, tracing
from phalanx.marginals.entries import dims_of
from phalanx.marginals.factors import Dim, Elimination, EliminationResult, Variables, draw, factors_of
from phalanx.marginals.loops import loops_with
from phalanx.marginals.survey import RESULT, SUPPORT, TERM, VALUE, Output, Survey
from phalanx.marginals.value_tables import ValueTable
from phalanx.mesh.specs import PyTree


def marginalize(model: Program, names: Sequence[str] | None = None) -> Marginal:
    r"""Return a model with its discrete latent variables summed out: $p(\theta, y) = \sum_z p(\theta, z, y)$.

    The result is a program of the other variables, for `phx.mcmc`, `phx.fit`, `phx.maximize`, `phx.log_joint` and all
    other functions of models, with exact gradients. `phx.recover(posterior)` draws the discrete variables afterwards,
    given each draw of the others. Under a seed, and so in predictive draws, the program runs as the model does.

    The model runs at all values of its discrete variables, vectorised, with each part of it only at the values of the
    variables that it depends on. Entries that do not depend on each other, such as one assignment for each row, are
    summed over separately. In chains, such as the states of a hidden Markov model, every second variable is summed over
    in one step, so that $T$ of them take $\log_2 T$ steps. The model loops in Python or by
    `numpyro.contrib.control_flow.scan`, or has them as one vector with a factor for each pair of neighbours.

    An observed variable that has its own discrete variables in each row keeps its name, and its density is that of the
    mixture, row by row. All other sums are terms under the name of their first discrete variable; observations in such
    a sum, as those of a hidden Markov model, have no density each, so `loo` and `log_likelihood` refuse them.

    Args:
        model: a program. Its control flow, the shapes of its variables and their supports must not depend on the
            discrete variables.
        names: the variables to sum out; None for all discrete latent ones.

    Returns:
        The program.

    Raises:
        TypeError: when `model` is not a function, or `names` not a sequence of names.
        ValueError: when the program runs, if the model has no discrete variable, or one of infinitely many values, or
            too many joint values would have to be summed over; the message names the variables and the number.

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions as dist, phalanx as phx
        >>> def model(y):
        ...     mean = phx.sample("mean", dist.Normal(0.0, 5.0).expand([2]))
        ...     group = phx.sample("group", dist.Categorical(jnp.array([0.3, 0.7])).expand(y.shape))
        ...     phx.sample("y", dist.Normal(mean[group], 1.0), obs=y)
        >>> values, y = {"mean": jnp.array([-1.0, 1.0])}, jnp.array([-1.2, 0.9])
        >>> round(phx.log_joint(phx.marginalize(model))(values, y).item(), 4)
        -8.2598

    Source: M. Betancourt (2013), cited in the Stan User's Guide, chapter "Latent discrete parameters"; F. Obermeyer et
    al. (2019), Tensor variable elimination for plated factor graphs.
    """
    check_program(model, "phx.marginalize: model")
    if isinstance(names, str) or (names is not None and not all(isinstance(name, str) for name in names)):
        raise TypeError(f"phx.marginalize: names must be a list of names, such as ['z']; got {names!r}.")
    return Marginal(model, None if names is None else tuple(names))


class Marginal:
    """A program whose discrete latent variables are summed out; see `marginalize`."""

    def __init__(self, model: Program, names: tuple[str, ...] | None):
        update_wrapper(self, model)
        self.model = model
        self.names = names

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Run the program: sample its other variables, and add the log of the sums to the density."""

        def run() -> PyTree:
            return self.model(*args, **kwargs)

        if has_key():
            return run()
        running = _Running(Survey.of(run, self.names))
        result = running.run(run)
        running.send_terms()
        return result

    def recover(self, values: Mapping[str, Any], key: Array, *args: PyTree, **kwargs: PyTree) -> dict[str, Array]:
        r"""Draw the discrete variables given the others: $z \sim p(z \mid \theta, y)$.

        Args:
            values: values of the other variables by name, as in a draw.
            key: a JAX key.
            *args: arguments of the model.
            **kwargs: keyword arguments of the model.

        Returns:
            The discrete variables by name, and the deterministic values that depend on them.
        """

        def run() -> PyTree:
            return self.model(*args, **kwargs)

        def give(variable: RandomVariable, _: Forward) -> RandomVariable:
            if not variable.is_given and variable.name not in values:
                raise ValueError(
                    f"recover: no value was given for variable {variable.name!r}; values were given for "
                    f"{', '.join(map(repr, values)) or 'none'}."
                )
            return (
                variable.complete() if variable.is_given else replace(variable, value=values[variable.name]).complete()
            )

        survey = Survey.of(run, self.names)
        running = _Running(survey)
        with tracing(give):
            running.run(run)

        def drawn(latents: dict[str, Any]) -> list[Array]:
            return draw(*running.sums(latents), key)

        numbers = staged(drawn)(running.latents)
        recovered = {s.name: jnp.asarray(s.values)[n] for s, n in zip(survey.sites, numbers, strict=True)}
        if computed := [name for kind, name in running.dependent if kind == VALUE]:
            with loops_with(lambda site: recovered[site.name]):
                variables = trace(substitute(self.model, {**running.latents, **recovered}))(*args, **kwargs)
            recovered |= {name: variables[name].value for name in computed}
        return recovered


class _Running:
    """A run of a program whose discrete variables are summed out."""

    def __init__(self, survey: Survey):
        self.survey = survey
        dependent = survey.dependent()
        self.result_depends = dependent[RESULT, ""]
        self.dependent: list[Output] = [
            output for output, leaves in dependent.items() if output[0] != RESULT and any(leaves)
        ]
        self.values: dict[str, Any] = {}
        # any values will do, because all results that depend on them are summed over
        self._any = {site.name: jnp.full(site.shape, site.values[0]) for site in survey.sites}
        self._held: dict[str, RandomVariable] = {}
        self._tables: dict[str, ValueTable] = {}
        self._variables = Variables((), {})
        for kind, name in self.dependent:
            if kind == SUPPORT:
                raise ValueError(
                    f"phx.marginalize: the support of variable {name!r} depends on a discrete variable, so that it has "
                    f"no unconstrained scale of its own. Give it the widest support, and the difference as a "
                    f"phx.factor of -inf outside."
                )

    def run(self, run: Callable[[], Any]) -> PyTree:
        """Run the program and sample its other variables; return those of its results that are not summed over."""
        with tracing(self._meet), loops_with(lambda site: self._any[site.name]):
            result = run()
        leaves = jax.tree.leaves(result)
        if not any(self.result_depends):
            return result
        independent_leaves = [None if d else leaf for leaf, d in zip(leaves, self.result_depends, strict=True)]
        return jax.tree.unflatten(jax.tree.structure(result), independent_leaves)

    def _meet(self, variable: RandomVariable, forward: Forward) -> RandomVariable:
        name = variable.name
        site = next((site for site in self.survey.sites if site.name == name), None)
        if site is not None:
            return replace(variable, value=self._any[name], suggested=False).complete()
        if (VALUE, name) in self.dependent:
            return variable.complete()
        if (TERM, name) not in self.dependent:
            answered = forward(variable)
        elif name in self.survey.observed:
            self._held[name] = variable.complete()
            return self._held[name]
        else:
            answered = self._without_density(variable, forward)
        self.values[name] = answered.value
        return answered

    def _without_density(self, variable: RandomVariable, forward: Forward) -> RandomVariable:
        """Sample a latent variable with its density masked out: the sums over discrete variables contain it."""
        assert variable.distribution is not None
        answered = forward(replace(variable, distribution=MaskedDistribution(variable.distribution, False)))
        if answered.distribution is None or answered.observed:
            raise ValueError(
                f"phx.marginalize: variable {variable.name!r} is given a value outside of it, and its density depends "
                f"on discrete variables that are summed out inside. Give the value first, as in "
                f"phx.marginalize(phx.condition(model, {{{variable.name!r}: value}}))."
            )
        return answered

    @property
    def latents(self) -> dict[str, Any]:
        """Values of the other latent variables and parameters."""
        return {name: self.values[name] for name in self.survey.placeholders[1]}

    def sums(self, latents: Mapping[str, Any]) -> tuple[EliminationResult, Variables]:
        """Return the sums over the discrete variables, and these variables."""
        terms = [output for output in self.dependent if output[0] == TERM]
        tables, indices = self.survey.tables(terms, latents)
        self._tables = {name: table for (_, name), table in tables.items()}
        families, self._variables = factors_of([*self._tables.values()], self.survey.sites, indices)
        return Elimination(families, self._variables).run(), self._variables

    def send_terms(self) -> None:
        """Sample the sums as terms of the log density."""
        places: list[tuple[int, tuple[Dim, ...]]] = []

        def summed(latents: dict[str, Any]) -> list[Array]:
            sums, _ = self.sums(latents)
            places[:] = [(number, plates) for number, plates, _ in sums.terms]
            return [term for _, _, term in sums.terms]

        log_density = staged(summed)(self.latents)
        variables = self._variables
        tables = self._tables
        for sites in tied(tables.values(), len(self.survey.sites)):
            terms: dict[tuple[Dim, ...], tuple[int, Array]] = {}
            for (number, plates), term in zip(places, log_density, strict=True):
                if (site := variables.site_of[number]) in sites:
                    first, before = terms.get(plates, (site, 0.0))
                    terms[plates] = min(site, first), before + term
            names = [name for name, table in tables.items() if table.axes[0].site in sites and name in self._held]
            if len(names) == 1 and len(terms) == 1 and self._carry(names[0], tables[names[0]], terms):
                continue
            for site, term in terms.values():
                shared_term = SharedTerm(term, tuple(names))
                value = jnp.zeros((*shared_term.batch_shape, 0))
                send(RandomVariable(self.survey.sites[site].name, shared_term, value, observed=True))

    def _carry(self, name: str, table: ValueTable, terms: Mapping[tuple[Dim, ...], tuple[int, Array]]) -> bool:
        """Sample an observed variable whose density is the sums, if there is one sum for each of its elements.

        Returns:
            Whether it was sampled. Otherwise the caller sends the sums as terms without a variable.
        """
        ((plates, (_, term)),) = terms.items()
        variable = self._held[name]
        assert variable.distribution is not None
        along = {
            d: self._variables.plates[axis.site].get(n)
            for axis in table.axes
            for n, component in enumerate(axis.where)
            for d in dims_of(component)
        }
        shape = tuple(variable.distribution.batch_shape)
        rows = [along.get(d) for d in range(len(shape))]
        within_event = range(len(shape), len(table.shape))
        if (
            any(d in along for d in within_event)
            or not rows
            or None in rows
            or sorted(rows, key=str) != sorted(plates, key=str)
        ):
            return False
        term = jnp.transpose(term, [plates.index(row) for row in rows])  # pyright: ignore[reportArgumentType]
        if shape != term.shape or variable.shape != shape + tuple(variable.distribution.event_shape):
            return False
        send(replace(variable, distribution=PrecomputedDensity(variable.distribution, term), scale=1.0, logit=None))
        return True


def staged(f: Callable[[dict[str, Any]], list[Array]]) -> Callable[[dict[str, Any]], list[Array]]:
    """Return `f`, compiled as a whole if it is not part of a larger trace: its many operations are slow one by one."""
    return f if isinstance(jnp.zeros(()), Tracer) else jax.jit(f)


def tied(tables: Iterable[ValueTable], count: int) -> list[set[int]]:
    """Return groups of the sites, `count` in all, that terms depend on together."""
    groups = [{site} for site in range(count)]
    for table in tables:
        together = {axis.site for axis in table.axes}
        dependent_groups = [group for group in groups if group & together]
        groups = [group for group in groups if not group & together] + [set().union(*dependent_groups)]
    return sorted(groups, key=min)
