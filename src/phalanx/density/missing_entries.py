"""Search for the missing entries of a program's observed variables, and refusal of those that cannot be imputed.

The program runs once on the data with NaN: an observed value that is NaN is missing, whichever argument it was computed
from. Whole numbers, flags and categories have no NaN; their variable must observe the argument as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import Distribution, Unit, constraints

from phalanx.distributions.supports import entries_of_support, entrywise, kind_of, support_of
from phalanx.errors.message_text import count
from phalanx.inputs.arguments import Arguments
from phalanx.inputs.needed_values import trace_with_values
from phalanx.jaxprs.dependence import NOWHERE, Axes, varying_axes
from phalanx.language.handlers import under
from phalanx.language.messages import Forward
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Program
from phalanx.mesh.processes import to_host
from phalanx.mesh.virtual_mesh import alone
from phalanx.programs.unconstrained import Evaluation, run_unconstrained

_DATA = "data: "
"""Prefix of arguments among sources of values; variables have none."""


def missing_name(name: str) -> str:
    """Return the name of the latent variable of an observed variable's missing entries."""
    return f"{name}_missing"


def support_of_entries(distribution: Distribution) -> Any:
    """Return the support of single entries; None if entries of an event have none of their own."""
    support = entries_of_support(support_of(distribution))
    if support is constraints.real_vector:
        return constraints.real
    return None if support is None or support.event_dim else support


@dataclass(frozen=True)
class Observed:
    """An observed variable.

    Attributes:
        kind: name of its distribution.
        is_discrete: True if its values are whole numbers.
        is_whole: True if an entry of an event cannot be missing alone.
        argument: name of the argument that it observes as it is; None if the value is computed.
    """

    kind: str
    is_discrete: bool
    is_whole: bool
    argument: str | None

    @classmethod
    def of(cls, distribution: Distribution, argument: str | None) -> Observed:
        """Build the state of a variable."""
        support = support_of_entries(distribution)
        whole = entries_of_support(support_of(distribution))
        is_discrete = whole is not None and whole.is_discrete
        is_whole = support is None or (is_discrete and bool(entrywise(distribution).event_shape))
        return cls(kind_of(distribution), is_discrete, is_whole, argument)


@dataclass
class MissingEntries:
    """Missing entries of the observed variables of a program on its data.

    Attributes:
        program, arguments: the program and its data; missing real numbers are NaN.
        masks: masks of the missing entries of arguments without NaN.
        axes: mesh axes that the program may name.
        seen: the observed variables.
        masks_of_missing: masks of the missing entries, by variable that has some.
    """

    program: Program
    arguments: Arguments
    masks: Mapping[str, np.ndarray]
    axes: tuple[str, ...]
    seen: dict[str, Observed] = field(default_factory=dict)
    masks_of_missing: dict[str, np.ndarray] = field(default_factory=dict)

    def look(self) -> dict[str, np.ndarray]:
        """Return masks of the missing entries, by variable, after checking that they can be imputed.

        Raises:
            ValueError: naming the variable or the argument.
        """
        self.arguments, _ = trace_with_values(
            self.arguments, lambda arguments: jax.eval_shape(partial(self._nans, arguments), arguments.whole_shapes())
        )
        observe = jax.jit(partial(self._nans, self.arguments))
        nans = observe(self.arguments.arrays)
        masks = {name: np.asarray(to_host(mask)) for name, mask in nans.items()}
        masks |= {n: self.masks[seen.argument or ""] for n, seen in self.seen.items() if seen.argument in self.masks}
        self.masks_of_missing = {name: mask for name, mask in masks.items() if mask.any()}
        for name, mask in self.masks_of_missing.items():
            self._check_variable(name, mask)
        self._check_observed()
        self._check_shared(observe)
        self._check_uses()
        return self.masks_of_missing

    @property
    def discrete(self) -> frozenset[str]:
        """Discrete variables with missing entries."""
        return frozenset(name for name in self.masks_of_missing if self.seen[name].is_discrete)

    def axes_of(self, mask: np.ndarray) -> tuple[str, ...]:
        """Return the mesh axes that the rows of an observed value are sharded over."""
        rows = mask.shape[0] if mask.ndim else 0
        return next((s.axes for s in self.arguments.shardings if s.axes and s.rows == rows), ())

    def _nans(self, arguments: Arguments, arrays: Sequence[Array]) -> dict[str, Array]:
        """Return which observed values are NaN, by variable of real numbers."""

        def run() -> dict[str, Array]:
            variables = self._run(arguments, arrays, {}).variables
            values = {name: jnp.asarray(variables[name].value) for name in self.seen}
            return {n: jnp.isnan(x) for n, x in values.items() if jnp.issubdtype(x.dtype, jnp.floating)}

        return alone(run, self.axes)

    def _run(self, arguments: Arguments, arrays: Sequence[Array], instead: Mapping[str, Array]) -> Evaluation:
        """Return an evaluation of the program, in which some variables observe values `instead` of theirs."""
        whole = [
            a[: s.rows] if s.axes and len(a) > s.rows else a for a, s in zip(arrays, arguments.shardings, strict=True)
        ]
        names = {id(array): name for array, name in zip(whole, arguments.names, strict=True)}

        def watch(variable: RandomVariable, forward: Forward) -> RandomVariable:
            if variable.parameter is not None and variable.value is None:
                return replace(variable, key=jax.random.key(0)).complete()
            distribution = variable.distribution
            if variable.observed and distribution is not None and not isinstance(distribution, Unit):
                self.seen[variable.name] = Observed.of(distribution, names.get(id(variable.value)))
                variable = replace(variable, value=instead.get(variable.name, variable.value))
            return forward(variable)

        data = arguments.layout.join(whole)
        return run_unconstrained(under(self.program, watch), None, data, any_latent=True)

    def _check_variable(self, name: str, mask: np.ndarray) -> None:
        variable = self.seen[name]
        missing = count(int(mask.sum()), "missing entry")
        if variable.is_whole:
            raise ValueError(
                f"Variable {name!r} has {missing}, and the entries of an event of {variable.kind} have no support of "
                f"their own, so that they cannot be imputed one by one. Leave out the rows in which some are missing."
            )

    def _check_observed(self) -> None:
        """Raise for arguments without NaN that have missing entries and that no variable observes."""
        observed_arguments = {self.seen[name].argument for name in self.masks_of_missing}
        for argument, mask in self.masks.items():
            if argument not in observed_arguments:
                missing = count(int(mask.sum()), "missing entry")
                raise ValueError(
                    f"data: {argument} has {missing}, and no variable observes it as it is. {way_out(argument)}"
                )

    def _check_shared(self, observe: Callable[[Sequence[Array]], Mapping[str, Array]]) -> None:
        """Raise if two variables observe the same missing entry, which would be two unknown values."""
        by_argument = dict[str, str]()
        for name in self.masks_of_missing:
            argument = self.seen[name].argument or ""
            if argument in self.masks and by_argument.setdefault(argument, name) != name:
                _refuse_shared(argument, by_argument[argument], name)
        names = [name for name in self.masks_of_missing if self.seen[name].argument not in self.masks]
        arrays = list(self.arguments.arrays)
        for number, array in enumerate(arrays if len(names) > 1 else ()):
            if jnp.issubdtype(array.dtype, jnp.floating) and (missing := np.isnan(to_host(array))).any():
                # the bits of an entry's number determine in which runs it is given
                numbers = np.where(missing, np.cumsum(missing.ravel()).reshape(missing.shape), 0)
                code = {name: np.zeros(self.masks_of_missing[name].shape, int) for name in names}
                for bit in range(int(numbers.max()).bit_length()):
                    changed_array = jnp.where((numbers >> bit) & 1 == 1, jnp.nan_to_num(array), array)
                    nans = observe([*arrays[:number], changed_array, *arrays[number + 1 :]])
                    for name, entries_of in code.items():
                        entries_of += (self.masks_of_missing[name] & ~np.asarray(to_host(nans[name]))) << bit
                owner = dict[int, str]()
                for name, entries_of in code.items():
                    for entry in np.unique(entries_of[entries_of > 0]).tolist():
                        if owner.setdefault(entry, name) != name:
                            _refuse_shared(self.arguments.names[number], owner[entry], name)

    def _check_uses(self) -> None:
        """Raise if the program uses values that stand for missing ones: of discrete variables, or without NaN."""
        stands = {
            name for name in self.masks_of_missing if name in self.discrete or self.seen[name].argument in self.masks
        }
        if not stands:
            return
        arguments = self.arguments

        def results(arrays: Sequence[Array], instead: Mapping[str, Array]) -> dict[tuple[str, str], Any]:
            evaluation = self._run(arguments, arrays, instead)
            others = {n: v.value for n, v in evaluation.variables.items() if not v.is_latent and n not in instead}
            return {**evaluation.terms(), **{(name, "value"): value for name, value in others.items()}}

        def traced(arrays: Any, instead: Any) -> Any:
            return alone(lambda: results(arrays, instead), self.axes)

        shapes = jax.eval_shape(lambda arrays: self._values(arrays, stands), arguments.whole_shapes())
        program, outputs = jax.make_jaxpr(traced, axis_env=[], return_shape=True)(arguments.whole_shapes(), shapes)
        of_arrays = [frozenset({_DATA + name}) if name in self.masks else NOWHERE for name in arguments.names]
        of_values = [frozenset({name}) if name in self.discrete else NOWHERE for name in sorted(stands)]
        uses: list[Axes] = varying_axes(program, [*of_arrays, *of_values])
        for (user, _), sources_of_output in zip(sorted(outputs), uses, strict=True):
            for source in sources_of_output - {user}:  # its own density depends on its value
                self._refuse_use(source, user)

    def _values(self, arrays: Sequence[Array], names: set[str]) -> dict[str, Array]:
        def run() -> dict[str, Array]:
            variables = self._run(self.arguments, arrays, {}).variables
            return {name: jnp.asarray(variables[name].value) for name in names}

        return alone(run, self.axes)

    def _refuse_use(self, source: str, user: str) -> None:
        if not source.startswith(_DATA):
            raise ValueError(
                f"Variable {source!r} is discrete ({self.seen[source].kind}) and has missing entries, and {user!r} "
                f"depends on its values. Only missing entries that nothing else depends on can be left out. Give the "
                f"rows without it as arguments of their own, in which the model samples it without obs=, as "
                f"{missing_name(source)!r}, and observes {user!r} under another name; phx.marginalize(model) sums over "
                f"its values, if they are finitely many. Or leave such rows out."
            )
        name = source.removeprefix(_DATA)
        raise ValueError(f"data: {name} has missing entries, and {user!r} uses it as a covariate. {way_out(name)}")


def _refuse_shared(argument: str, first: str, second: str) -> None:
    raise ValueError(
        f"data: {argument} has missing entries that the variables {first!r} and {second!r} both observe, and each "
        f"would impute a value of its own. Observe them once, {argument} = phx.sample({first!r}, distribution, "
        f"obs={argument}), and give the other density as phx.factor({second!r}, other.log_prob({argument}))."
    )


def way_out(argument: str) -> str:
    """Return advice on missing entries of a covariate."""
    return (
        f"Make it a variable of the model and use the value that it returns, as in {argument} = "
        f'phx.sample("{argument}", distribution, obs={argument}) with missing="impute"; or leave such rows out.'
    )
