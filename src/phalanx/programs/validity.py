"""Search for observed values outside of their supports and for invalid parameters, before a run begins.

A parameter may be invalid at some positions only, such as a scale that is itself unbounded; the sampler then avoids
them. A value that is the same at two positions depends on constants and data alone: it is invalid everywhere, although
its density may be finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.extend.core import ClosedJaxpr, Var
from jax.sharding import Mesh
from jax.typing import ArrayLike
from numpyro.distributions import Distribution, MaskedDistribution, Unit, constraints

from phalanx.distributions.constraint_text import kind_of
from phalanx.distributions.supports import is_outside, support_of
from phalanx.errors import words
from phalanx.inputs.arguments import Arguments
from phalanx.jaxprs.copies import copied_inputs
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

BOUNDED = (constraints.positive, constraints.nonnegative, constraints.unit_interval)
"""Constraints that a real number satisfies or not, whatever the other parameters are."""


class Doubt(NamedTuple):
    """Values that may be invalid: the values, a flag for each, and the allowed values and the distribution as text."""

    values: Array
    bad: Array
    allowed: str
    distribution: str


class Wrong(NamedTuple):
    """Invalid values: their number, the index of the first and its value, and the allowed values as text."""

    count: int
    index: tuple[int, ...]
    value: np.ndarray
    allowed: str
    distribution: str

    def said(self, name: str, parameter: str, hint: str) -> str:
        """Return the message about a variable's parameter, or its value; `hint` is about the data."""
        value, where = str(self.value if self.value.size > 1 else self.value.item()), list(self.index)
        if parameter:
            place = f" (the first of {self.count}, at {where})" if where else ""
            return (
                f"Variable {name!r}: its {parameter} is {value}{place}, but for a {self.distribution} it must be "
                f"{self.allowed}. Give a valid one, or transform it: a scale by jnp.exp, a probability by "
                f"jax.nn.sigmoid."
            )
        at = f" at {where}" if where else ""
        found = f"{words.count(self.count, 'observed value')} {'lies' if self.count == 1 else 'lie'}"
        remedy = "Check the data, or choose a distribution that can take these values."
        if np.isnan(self.value).any() and not hint:
            remedy = (
                f"No argument of the model holds NaN, so the model reads or computes the value itself. Make it an "
                f'argument, as in def model({name}), and pass the data: missing="impute" makes missing entries of '
                f"arguments latent."
            )
        return (
            f"Variable {name!r}: {found} outside the support of its distribution{hint}. {remedy} The first is "
            f"{value}{at}, and a value of a {self.distribution} must be {self.allowed}."
        )


def nan_hint(names: Sequence[str], arrays: Sequence[ArrayLike]) -> str:
    """Return a part of a message that names the arrays with NaN; empty if all are free of NaN."""
    found = [name for name, array in zip(names, arrays, strict=True) if bool(jnp.isnan(array).any())]
    return f"; the data hold NaN in {', '.join(found)}" if found else ""


def find_invalid(
    program: Program, arguments: Arguments, mesh: Mesh, arrays: Sequence[Array]
) -> dict[tuple[str, str], Wrong]:
    """Return the invalid values of a model on its whole data, by variable and parameter."""
    described: dict[tuple[str, str], Doubt] = {}

    def look(arrays: Sequence[Array]) -> Any:
        whole = [a[: s.rows] if s.axes else a for a, s in zip(arrays, arguments.shardings, strict=True)]
        data = arguments.layout.join(whole)
        run = run_unconstrained(program, None, data)
        keys = dict(zip(run.position, random.split(random.key(0), len(run.position)), strict=True))
        elsewhere = {name: random.normal(keys[name], v.shape, v.dtype) for name, v in run.position.items()}
        described.update(doubts(run, run_unconstrained(program, elsewhere, data)))
        return {key: _first(doubt) for key, doubt in described.items()}

    found = jax.jit(lambda arrays: alone(lambda: look(arrays), axes_but_chain(mesh)))(arrays)
    wrong = {}
    for key, (count, first, value) in found.items():
        if int(count):
            doubt = described[key]
            index = tuple(int(i) for i in np.unravel_index(int(first), doubt.bad.shape))
            wrong[key] = Wrong(int(count), index, np.asarray(value), doubt.allowed, doubt.distribution)
    return wrong


def improper_parameters(
    run: Callable[[Mapping[str, Array] | None], Evaluation], described: dict[tuple[str, str], Doubt]
) -> dict[tuple[str, str], Array]:
    """Return the number of positions at which a parameter is invalid, by variable and parameter.

    A scale that is itself a normal variable is such a parameter.

    Args:
        run: evaluates a program at unconstrained values.
        described: filled with the doubts, for messages. The function itself may be traced.
    """
    zero = run(None).position
    keys = random.split(random.key(0), max(len(zero), 1))
    positions = {
        name: random.normal(key, (TRIED, *value.shape), value.dtype)
        if jnp.issubdtype(value.dtype, jnp.floating)
        else jnp.broadcast_to(value, (TRIED, *value.shape))
        for key, (name, value) in zip(keys, zero.items(), strict=False)
    }

    def at(position: Mapping[str, Array]) -> dict[tuple[str, str], Array]:
        found = {key: doubt for key, doubt in doubts_of(run(position)).items() if key[1] != VALUE}
        described.update(found)
        return {key: jnp.any(doubt.bad) for key, doubt in found.items()}

    found = lax.map(at, positions) if zero else at({})
    return {key: jnp.sum(bad) for key, bad in found.items()}


class Unbounded(NamedTuple):
    """A distribution's parameter that is a value on the real line, and must be in a part of it.

    Attributes:
        name, parameter: the variable of the distribution, and its parameter.
        source: the name of the value.
        doubt: the allowed values and the distribution, as text.
    """

    name: str
    parameter: str
    source: str
    doubt: Doubt


def unbounded_parameters(
    program: ClosedJaxpr, sources: Mapping[Var, str], doubts: Mapping[tuple[str, str], Doubt]
) -> list[Unbounded]:
    """Return the parameters that are a value on the real line itself, up to a constant factor.

    Args:
        program: a trace whose last outputs are those of `doubts`, as `outputs_of` gives them.
        sources: names of its variables that take all real values.
        doubts: the doubts, by variable and parameter.
    """
    bounded = {text for constraint, text in ALLOWED if constraint in BOUNDED}
    values = copied_inputs(program, sources)[-2 * len(doubts) :: 2] if doubts else []
    return [
        Unbounded(*key, min(copied), doubt)
        for (key, doubt), copied in zip(doubts.items(), values, strict=True)
        if copied and key[1] != VALUE and (doubt.allowed in bounded or doubt.allowed.startswith("between"))
    ]


def say_improper(name: str, parameter: str, doubt: Doubt) -> str:
    """Return the message about a parameter that is invalid at some positions."""
    return (
        f"Variable {name!r}: its {parameter} must be {doubt.allowed} for a {doubt.distribution}, but at some values of "
        f"the latent variables that it is computed from it is not. Give these a prior with the right support, such as "
        f"HalfNormal or LogNormal for a scale and Beta for a probability, or a phx.param a constraint; or "
        f"transform it, a scale by jnp.exp, a probability by jax.nn.sigmoid"
    )


def _first(doubt: Doubt) -> tuple[Array, Array, Array]:
    first = jnp.argmax(doubt.bad.ravel())
    values = jnp.broadcast_to(doubt.values, (*doubt.bad.shape, *doubt.values.shape[doubt.bad.ndim :]))
    return jnp.sum(doubt.bad), first, values.reshape(doubt.bad.size, -1)[first]


def doubts(run: Evaluation, other: Evaluation) -> dict[tuple[str, str], Doubt]:
    """Return the doubts by variable and parameter, given evaluations at two positions; flags are set if both agree."""
    found, elsewhere = doubts_of(run), doubts_of(other)
    return {
        key: doubt._replace(bad=doubt.bad & _same(doubt, elsewhere[key]) & _same_support(run, other, key))
        for key, doubt in found.items()
    }


def doubts_of(run: Evaluation) -> dict[tuple[str, str], Doubt]:
    """Return the doubts at one position, including values that are invalid only there."""
    found: dict[tuple[str, str], Doubt] = {}
    for name, variable in run.variables.items():
        if variable.observed and (doubt := _of_value(variable)) is not None:
            found[name, VALUE] = doubt
        for parameter, doubt in _of_parameters(variable.distribution):
            found.setdefault((name, parameter), doubt)
    return found


def outputs_of(doubts: Mapping[tuple[str, str], Doubt]) -> list[Array]:
    """Return the arrays of doubts: for each its values and its flags."""
    return [array for doubt in doubts.values() for array in (doubt.values, doubt.bad)]


def _same(doubt: Doubt, other: Doubt) -> Array:
    """Return which values are the same at another position."""
    if doubt.values.shape != other.values.shape:
        return jnp.zeros(doubt.bad.shape, bool)
    # NaN is the same as NaN
    same = (doubt.values == other.values) | ((doubt.values != doubt.values) & (other.values != other.values))
    return jnp.all(same, axis=tuple(range(doubt.bad.ndim, same.ndim)))


def _same_support(run: Evaluation, other: Evaluation, key: tuple[str, str]) -> Array:
    """Return whether the support of an observed value is the same at another position; true of parameters."""
    name, parameter = key
    if parameter != VALUE:
        return jnp.bool_(True)
    bounds, elsewhere = (jax.tree.leaves(support_of(r.variables[name].distribution)) for r in (run, other))
    same = [jnp.all(jnp.equal(a, b)) for a, b in zip(bounds, elsewhere, strict=True)]
    return jnp.stack(same).all() if same else jnp.bool_(True)


def _of_value(variable: RandomVariable) -> Doubt | None:
    if variable.distribution is None or isinstance(variable.distribution, Unit):
        return None
    if (support := support_of(variable.distribution)) is None:
        return None
    bad = is_outside(variable.distribution, variable.value)
    return Doubt(jnp.asarray(variable.value), bad, in_words(support), kind_of(variable.distribution))


def _of_parameters(distribution: Any) -> Iterator[tuple[str, Doubt]]:
    if isinstance(distribution, MaskedDistribution | Unit) or not isinstance(distribution, Distribution):
        return  # masked values are not checked, and the term of a factor is not a parameter
    for parameter, constraint in type(distribution).arg_constraints.items():
        values = vars(distribution).get(parameter)
        if values is not None and _is_checked(constraint):
            values = jnp.asarray(values)
            yield (
                parameter,
                Doubt(values, _no_parameter(constraint, values), in_words(constraint), kind_of(distribution)),
            )
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
    for known, text in ALLOWED:
        if constraint is known:
            return text
    bounds = [getattr(constraint, bound, None) for bound in ("lower_bound", "upper_bound")]
    is_number = [isinstance(bound, int | float | np.ndarray) and np.ndim(bound) == 0 for bound in bounds]
    if all(is_number):
        return f"between {bounds[0]} and {bounds[1]}"
    if is_number[0] and isinstance(constraint, type(constraints.greater_than_eq(0))):
        return f"{bounds[0]} or more" if bounds[0] else "zero or more"
    return type(constraint).__name__.strip("_").replace("_", " ").lower()
