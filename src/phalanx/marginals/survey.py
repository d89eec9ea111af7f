"""Trace of a program with its discrete variables as unknowns: the terms, and the dependence of each on them.

The program runs once, abstractly. Its discrete variables and its other latent variables get placeholders, which are
variables of the trace, so that `Tabulation` can give them all values, or values of the running inference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import ClosedJaxpr, Var
from jax.typing import DTypeLike
from numpyro.distributions import Distribution

from phalanx.distributions.supports import kind_of
from phalanx.errors.names import hint
from phalanx.jaxprs.dependence import NOWHERE, Axes, Dependence
from phalanx.jaxprs.walking import pruned
from phalanx.language.messages import Forward
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import tracing
from phalanx.marginals.entries import Site, values_of
from phalanx.marginals.loops import loops_with
from phalanx.marginals.value_tables import Tabulation, ValueTable, enumerated
from phalanx.mesh.compatibility.numpyro_internals import unvalidated

TERM = "term"
"""Kind of the outputs of a trace that are log densities, by variable."""

VALUE = "value"
"""Kind of the outputs that are deterministic values, by name."""

SUPPORT = "support"
"""Kind of the outputs that are bounds of the supports of latent variables, by variable."""

RESULT = "result"
"""Kind of the outputs that the program returns; their name is empty."""

Output = tuple[str, str]
"""An output of the trace: its kind, and the name of the variable."""


@dataclass(frozen=True)
class Survey:
    """A program traced with placeholders.

    Attributes:
        trace: the jaxpr of the program, without arguments.
        sites: the discrete variables that are summed out.
        observed: names of the variables with data.
        placeholders: variables of the jaxpr by name: of the discrete variables; of the other latent variables and
            parameters, leaf by leaf.
        outputs: numbers of the outputs of the trace, by kind and name.
    """

    trace: ClosedJaxpr
    sites: tuple[Site, ...]
    observed: frozenset[str]
    placeholders: tuple[dict[str, Any], dict[str, list[Any]]]
    outputs: dict[Output, list[int]]

    @classmethod
    def of(cls, run: Callable[[], Any], names: Collection[str] | None) -> Survey:
        """Return the survey of a program, `run`; `names` are the variables to sum out, None for all discrete ones."""
        record = _Seen(names)

        def traced() -> Any:
            with unvalidated(), tracing(record.meet), loops_with(record.in_loop):
                result = run()
            record.check()
            leaves = {VALUE: record.values, TERM: record.terms(), SUPPORT: record.supports()}
            returned = [leaf if isinstance(leaf, Array) else 0 for leaf in jax.tree.leaves(result)]
            return list(record.discrete.values()), record.latents, leaves, returned

        trace, shapes = jax.make_jaxpr(traced, return_shape=True)()
        output_numbers = jax.tree.unflatten(jax.tree.structure(shapes), range(len(trace.jaxpr.outvars)))
        discrete, latents, leaves, result = output_numbers
        atoms = trace.jaxpr.outvars
        placeholders = (
            {name: atoms[n] for name, n in zip(record.discrete, discrete, strict=True)},
            {name: [atoms[n] for n in jax.tree.leaves(ns)] for name, ns in latents.items()},
        )
        outputs = {
            (kind, name): jax.tree.leaves(ns)
            for kind, leaves_by_name in leaves.items()
            for name, ns in leaves_by_name.items()
        }
        outputs[RESULT, ""] = jax.tree.leaves(result)
        return cls(trace, tuple(record.sites), frozenset(record.observed), placeholders, outputs)

    def dependent(self) -> dict[Output, list[bool]]:
        """Return for each output, leaf by leaf, whether it depends on a discrete variable."""
        interpreter = _Reached(self.placeholders[0].values())
        marks = interpreter.run(self.trace, ())
        return {output: [marks[n] != NOWHERE for n in ns] for output, ns in self.outputs.items()}

    def tables(
        self, outputs: Sequence[Output], values: Mapping[str, Any]
    ) -> tuple[dict[Output, ValueTable], list[Any]]:
        """Return terms at all values of the discrete variables, given values of the others; and arrays of indices."""
        discrete, latents = self.placeholders
        value_tables = {discrete[site.name]: enumerated(number, site) for number, site in enumerate(self.sites)}
        for name, atoms in latents.items():
            value_tables |= dict(zip(atoms, map(ValueTable, jax.tree.leaves(values[name])), strict=True))
        numbers = [self.outputs[output][0] for output in outputs]
        tabulation = Tabulation(self.sites, value_tables)
        tables = tabulation.run(pruned(self.trace, numbers), ())
        return dict(zip(outputs, tables, strict=True)), tabulation.indices


class _Seen:
    """The variables that a program has sampled in a survey."""

    def __init__(self, names: Collection[str] | None):
        self._names = names
        self.variables: dict[str, RandomVariable] = {}
        self.discrete: dict[str, Array] = {}
        self.latents: dict[str, Any] = {}
        self.values: dict[str, Any] = {}
        self.sites: list[Site] = []
        self.observed: set[str] = set()

    def meet(self, variable: RandomVariable, _: Forward) -> RandomVariable:
        """Give a variable its value, or a placeholder."""
        name = variable.name
        if name in self.variables:
            raise ValueError(f"Two variables are named {name!r}. Inference distinguishes variables by their names.")
        answer = self._given(variable)
        self.variables[name] = answer
        if answer.is_computed:
            self.values[name] = answer.value
        elif answer.observed:
            self.observed.add(name)
        return answer

    def _given(self, variable: RandomVariable) -> RandomVariable:
        name = variable.name
        distribution = variable.distribution
        if variable.parameter is not None and variable.value is None:
            start = replace(variable, key=jax.random.key(0)).complete().value
            self.latents[name] = jax.tree.map(lax.optimization_barrier, start)
            return replace(variable, value=self.latents[name])
        if distribution is None or variable.is_given or variable.parameter is not None:
            return replace(variable, observed=True).complete() if distribution is not None else variable.complete()
        if name in self.discrete or self._is_chosen(name, distribution):
            if name not in self.discrete:
                self._add(Site(name, values_of(name, distribution), distribution.shape()))
            return replace(variable, value=self.discrete[name], suggested=False).complete()
        support = distribution.support
        whole = support is not None and support.is_discrete
        self.latents[name] = _placeholder(distribution.shape(), jnp.result_type(int if whole else float))
        return replace(variable, value=self.latents[name], suggested=False).complete()

    def in_loop(self, site: Site) -> Array | None:
        """Return a placeholder for a discrete variable of a loop, all steps; None if it is not to be summed out."""
        if self._names is not None and site.name not in self._names:
            return None
        return self._add(site)

    def _add(self, site: Site) -> Array:
        self.sites.append(site)
        self.discrete[site.name] = _placeholder(site.shape, site.values.dtype)
        return self.discrete[site.name]

    def _is_chosen(self, name: str, distribution: Distribution) -> bool:
        support = distribution.support
        whole = support is not None and support.is_discrete
        if self._names is not None and name in self._names and not whole:
            raise ValueError(
                f"phx.marginalize: variable {name!r} is continuous ({kind_of(distribution)}), and only discrete "
                f"variables are summed out. Leave it out of names=."
            )
        return whole and (self._names is None or name in self._names)

    def check(self) -> None:
        """Raise unless the program has the discrete variables that are to be summed out."""
        names = ", ".join(map(repr, self.variables)) or "none at all"
        if self._names is not None and (unknown := [name for name in self._names if name not in self.discrete]):
            raise ValueError(
                f"phx.marginalize: the program has no latent variable {', '.join(map(repr, unknown))} to sum out; its "
                f"variables are {names}.{hint(unknown, self.variables)}"
            )
        if not self.discrete:
            raise ValueError(
                f"phx.marginalize: the program has no discrete latent variable to sum out; its variables are {names}. "
                f"Use it as it is."
            )

    def terms(self) -> dict[str, Array]:
        """Return the log densities of each variable, one for each independent entry."""
        terms = {name: v.row_log_prob() for name, v in self.variables.items() if v.distribution is not None}
        # a density may be constant, as a uniform one is, but its sum over the values still has a term for each of them
        of_values = {name: jnp.where(value == value, terms[name], -jnp.inf) for name, value in self.discrete.items()}
        return terms | of_values

    def supports(self) -> dict[str, list[Array]]:
        """Return the arrays in the supports of the latent variables."""
        supports = {name: self.variables[name].distribution for name in self.latents}
        return {
            name: [leaf for leaf in jax.tree.leaves(d.support) if isinstance(leaf, Array)]
            for name, d in supports.items()
            if d is not None
        }


def _placeholder(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    # a barrier, so that JAX keeps the zeros as a variable of the jaxpr, which `Tabulation` replaces
    return lax.optimization_barrier(jnp.zeros(shape, dtype))


class _Reached(Dependence):
    """Analysis of the variables of a trace that depend on sources."""

    def __init__(self, sources: Collection[Any]):
        self._sources = frozenset(sources)

    def named(self, variable: Var, value: Axes) -> Axes:
        """Mark a source."""
        return frozenset({"discrete"}) if variable in self._sources else value
