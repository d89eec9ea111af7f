"""Search for observed values outside of their supports and for invalid parameters, before a run begins.

A parameter may be invalid at some positions only, such as a scale that is itself unbounded; the sampler then avoids
them. A value that is the same at two positions depends on constants and data alone: it is invalid everywhere, although
its density may be finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.sharding import Mesh
from jax.typing import ArrayLike
from numpyro.distributions import Distribution, MaskedDistribution, Unit, constraints

from phalanx.distributions.supports import is_outside, kind_of, support_of
from phalanx.errors import message_text
from phalanx.inputs.arguments import Arguments
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Program
from phalanx.mesh.devices import axes_but_chain
from phalanx.mesh.virtual_mesh import alone
from phalanx.programs.unconstrained import Evaluation, run_unconstrained

TRIED = 16
"""Number of random positions at which parameters are evaluated."""

VALUE = ""
"""Key, instead of a parameter's name, for the observed value itself."""

INSIDE = ("base_dist", "component_distribution", "mixing_distribution")
"""Attributes in which distributions keep the distributions that they are built from."""

ALLOWED = (
    (constraints.positive, "positive"),
    (constraints.nonnegative, "zero or more"),
    (constraints.real, "finite"),
    (constraints.unit_interval, "between 0 and 1"),
    (constraints.nonnegative_integer, "a whole number from 0"),
    (constraints.positive_integer, "a whole number from 1"),
    (constraints.boolean, "0 or 1"),
)
"""Texts of constraints."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ValueCheck:
    """Values that may be invalid: the values, a flag for each, and the allowed values and the distribution as text."""

    values: Any
    bad: Array
    allowed: str = field(metadata={"static": True})
    distribution: str = field(metadata={"static": True})

    def any(self) -> ValueCheck:
        """Return the check with one flag for all values, and without the values."""
        return replace(self, values=(), bad=jnp.any(self.bad))


ValueChecks = dict[tuple[str, str], ValueCheck]
"""ValueChecks by variable and parameter."""


class InvalidValues(NamedTuple):
    """Invalid values: their number, the index of the first and its value, and the allowed values as text."""

    count: int
    index: tuple[int, ...]
    value: np.ndarray
    allowed: str
    distribution: str

    @classmethod
    def of(cls, check: ValueCheck, first: tuple[Array, Array, Array]) -> InvalidValues:
        """Return the invalid values of a check, given the result of `first_of`."""
        count, place, value = first
        index = tuple(int(i) for i in np.unravel_index(int(place), check.bad.shape))
        return cls(int(count), index, np.asarray(value), check.allowed, check.distribution)

    def said(self, name: str, parameter: str, hint: str) -> str:
        """Return the message about a variable's parameter, or its value; `hint` is about the data."""
        value = str(self.value if self.value.size > 1 else self.value.item())
        where = list(self.index)
        if parameter:
            place = f" (the first of {self.count}, at {where})" if where else ""
            return (
                f"Variable {name!r}: its {parameter} is {value}{place}, but for a {self.distribution} it must be "
                f"{self.allowed}. Give a valid one, or transform it: a scale by jnp.exp, a probability by "
                f"jax.nn.sigmoid."
            )
        at = f" at {where}" if where else ""
        subject = f"{message_text.count(self.count, 'observed value')} {'lies' if self.count == 1 else 'lie'}"
        remedy = "Check the data, or choose a distribution that can take these values."
        if np.isnan(self.value).any() and not hint:
            remedy = (
                f"No argument of the model holds NaN, so the model reads or computes the value itself. Make it an "
                f'argument, as in def model({name}), and pass the data: missing="impute" makes missing entries of '
                f"arguments latent."
            )
        return (
            f"Variable {name!r}: {subject} outside the support of its distribution{hint}. {remedy} The first is "
            f"{value}{at}, and a value of a {self.distribution} must be {self.allowed}."
        )


def nan_hint(names: Sequence[str], arrays: Sequence[ArrayLike]) -> str:
    """Return a part of a message that names the arrays with NaN; empty if all are free of NaN."""
    with_nan = [name for name, array in zip(names, arrays, strict=True) if bool(jnp.isnan(array).any())]
    return f"; the data hold NaN in {', '.join(with_nan)}" if with_nan else ""


def find_invalid(
    program: Program, arguments: Arguments, mesh: Mesh, arrays: Sequence[Array]
) -> dict[tuple[str, str], InvalidValues]:
    """Return the invalid values of a model on its whole data, by variable and parameter."""

    def look(arrays: Sequence[Array]) -> Any:
        data = arguments.join(arrays)
        run = run_unconstrained(program, None, data)
        keys = dict(zip(run.position, random.split(random.key(0), len(run.position)), strict=True))
        elsewhere = {name: random.normal(keys[name], v.shape, v.dtype) for name, v in run.position.items()}
        checks = value_checks_of_both(run, run_unconstrained(program, elsewhere, data))
        return {key: (replace(check, values=()), first_of(check)) for key, check in checks.items()}

    checks = jax.jit(lambda arrays: alone(lambda: look(arrays), axes_but_chain(mesh)))(arrays)
    return {key: InvalidValues.of(check, first) for key, (check, first) in checks.items() if int(first[0])}


def improper_parameters(run: Callable[[Mapping[str, Array] | None], Evaluation]) -> ValueChecks:
    """Return the parameters of distributions, with a flag for each position at which one is invalid.

    A scale that is itself a normal variable is such a parameter.

    Args:
        run: evaluates a program at unconstrained values.
    """
    zero = run(None).position
    keys = random.split(random.key(0), max(len(zero), 1))
    positions = {
        name: random.normal(key, (TRIED, *value.shape), value.dtype)
        if jnp.issubdtype(value.dtype, jnp.floating)
        else jnp.broadcast_to(value, (TRIED, *value.shape))
        for key, (name, value) in zip(keys, zero.items(), strict=False)
    }

    def at(position: Mapping[str, Array]) -> ValueChecks:
        return {key: check.any() for key, check in value_checks_of(run(position)).items() if key[1] != VALUE}

    return lax.map(at, positions) if zero else at({})


def first_of(check: ValueCheck) -> tuple[Array, Array, Array]:
    """Return the number of invalid values, and the place of the first, counted over all, with its value."""
    first = jnp.argmax(check.bad.ravel())
    values = jnp.broadcast_to(check.values, (*check.bad.shape, *check.values.shape[check.bad.ndim :]))
    return jnp.sum(check.bad), first, values.reshape(check.bad.size, -1)[first]


def value_checks_of_both(run: Evaluation, other: Evaluation) -> ValueChecks:
    """Return the checks by variable and parameter, given evaluations at two positions; flags are set if both agree."""
    checks = value_checks_of(run)
    elsewhere = value_checks_of(other)
    return {
        key: replace(check, bad=check.bad & _same(check, elsewhere[key]) & _same_support(run, other, key))
        for key, check in checks.items()
    }


def value_checks_of(run: Evaluation) -> ValueChecks:
    """Return the checks at one position, including values that are invalid only there."""
    checks: ValueChecks = {}
    for name, variable in run.variables.items():
        if variable.observed and (check := _of_value(variable)) is not None:
            checks[name, VALUE] = check
        for parameter, check in _of_parameters(variable.distribution):
            checks.setdefault((name, parameter), check)
    return checks


def _same(check: ValueCheck, other: ValueCheck) -> Array:
    """Return which values are the same at another position."""
    if check.values.shape != other.values.shape:
        return jnp.zeros(check.bad.shape, bool)
    # NaN is the same as NaN
    same = (check.values == other.values) | ((check.values != check.values) & (other.values != other.values))
    return jnp.all(same, axis=tuple(range(check.bad.ndim, same.ndim)))


def _same_support(run: Evaluation, other: Evaluation, key: tuple[str, str]) -> Array:
    """Return whether the support of an observed value is the same at another position; true of parameters."""
    name, parameter = key
    if parameter != VALUE:
        return jnp.bool_(True)
    bounds, elsewhere = (jax.tree.leaves(support_of(r.variables[name].distribution)) for r in (run, other))
    same = [jnp.all(jnp.equal(a, b)) for a, b in zip(bounds, elsewhere, strict=True)]
    return jnp.stack(same).all() if same else jnp.bool_(True)


def _of_value(variable: RandomVariable) -> ValueCheck | None:
    if variable.distribution is None or isinstance(variable.distribution, Unit):
        return None
    if (support := support_of(variable.distribution)) is None:
        return None
    bad = is_outside(variable.distribution, variable.value)
    return ValueCheck(jnp.asarray(variable.value), bad, in_words(support), kind_of(variable.distribution))


def _of_parameters(distribution: Any) -> Iterator[tuple[str, ValueCheck]]:
    if isinstance(distribution, MaskedDistribution | Unit) or not isinstance(distribution, Distribution):
        return  # masked values are not checked, and the term of a factor is not a parameter
    for parameter, constraint in type(distribution).arg_constraints.items():
        values = vars(distribution).get(parameter)
        if values is not None and _is_checked(constraint):
            values = jnp.asarray(values)
            bad = _no_parameter(constraint, values)
            yield parameter, ValueCheck(values, bad, in_words(constraint), kind_of(distribution))
    for inside in INSIDE:
        yield from _of_parameters(vars(distribution).get(inside))


def _no_parameter(constraint: constraints.Constraint, values: Array) -> Array:
    """Return which values of a parameter are invalid; infinite ones are valid, as absent bounds or excluded classes."""
    if constraint is constraints.real:
        return jnp.isnan(values)
    if constraint is constraints.real_vector:
        return jnp.any(jnp.isnan(values), axis=-1)
    return jnp.logical_not(constraint(values))


def _is_checked(constraint: Any) -> bool:
    """Return whether a constraint is checked; those of matrices and simplices are not, because of rounding."""
    if constraints.is_dependent(constraint) or constraint is constraints.simplex:
        return False
    return constraint.event_dim <= 1


def in_words(constraint: Any) -> str:
    """Return the values that a constraint allows, as text."""
    for known_constraint, text in ALLOWED:
        if constraint is known_constraint:
            return text
    bounds = [getattr(constraint, bound, None) for bound in ("lower_bound", "upper_bound")]
    is_number = [isinstance(bound, int | float | np.ndarray) and np.ndim(bound) == 0 for bound in bounds]
    if all(is_number):
        return f"between {bounds[0]} and {bounds[1]}"
    if is_number[0] and isinstance(constraint, type(constraints.greater_than_eq(0))):
        return f"{bounds[0]} or more" if bounds[0] else "zero or more"
    return type(constraint).__name__.strip("_").replace("_", " ").lower()
