"""Observed values that a distribution cannot take, and parameters that it cannot have: looked for before a run begins.

A parameter may be wrong only somewhere, as a scale that is itself unbounded; the sampler then stays away. What is the
same at two positions follows from constants and data alone: it is wrong everywhere, and its density may still look like
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.sharding import Mesh
from numpyro.distributions import (
    Distribution,
    ExpandedDistribution,
    Independent,
    MaskedDistribution,
    Unit,
    constraints,
)  # fmt: skip

from phalanx.distributions.constraint_text import kind_of
from phalanx.errors import words
from phalanx.inputs.arguments import Arguments
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Program
from phalanx.mesh.compatibility.numpyro_internals import mask_of
from phalanx.mesh.devices import axes_but_chain
from phalanx.mesh.virtual_mesh import alone
from phalanx.programs.unconstrained import Evaluation, run_unconstrained

TRIED = 16
"""Random positions at which parameters are evaluated."""

VALUE = ""
"""In the place of a parameter's name: the observed value itself."""

INSIDE = ("base_dist", "component_distribution", "mixing_distribution")
"""Where distributions keep those that they are made of."""

ALLOWED = (
    (constraints.positive, "positive"),
    (constraints.nonnegative, "zero or more"),
    (constraints.real, "finite"),
    (constraints.unit_interval, "between 0 and 1"),
    (constraints.nonnegative_integer, "a whole number from 0"),
    (constraints.positive_integer, "a whole number from 1"),
    (constraints.boolean, "0 or 1"),
)
"""Constraints in words."""


class Doubt(NamedTuple):
    """Values, which of them cannot be, and what can."""

    values: Array
    bad: Array
    allowed: str
    distribution: str


class Wrong(NamedTuple):
    """Values that cannot be: how many, where the first is, and what it is."""

    count: int
    index: tuple[int, ...]
    value: np.ndarray
    allowed: str
    distribution: str

    def said(self, name: str, parameter: str, hint: str) -> str:
        """It in words, of a variable and one of its parameters or its value; `hint` is about the data."""
        value, where = str(self.value if self.value.size > 1 else self.value.item()), list(self.index)
        if parameter:
            place = f" (the first of {self.count}, at {where})" if where else ""
            return (
                f"Variable {name!r}: its {parameter} is {value}{place}, and that of a {self.distribution} must be "
                f"{self.allowed}. Give one that is, or make it so: a scale by jnp.exp, a probability by jax.nn.sigmoid."
            )
        at = f" at {where}" if where else ""
        found = f"{words.count(self.count, 'observed value')} {'lies' if self.count == 1 else 'lie'}"
        return (
            f"Variable {name!r}: {found} outside the support of its distribution{hint}. "
            f"Check the data, or choose a distribution that can take these values. The first is {value}{at}, and a "
            f"value of a {self.distribution} must be {self.allowed}."
        )


def nan_hint(names: Sequence[str], arrays: Sequence[Any]) -> str:
    """That data hold NaN, where they do."""
    found = [name for name, array in zip(names, arrays, strict=True) if bool(jnp.isnan(array).any())]
    return f"; the data hold NaN in {', '.join(found)}" if found else ""


def look_closely(
    program: Program, arguments: Arguments, mesh: Mesh, arrays: Sequence[Array]
) -> dict[tuple[str, str], Wrong]:
    """Find what is wrong with a model on its whole data, by variable and parameter."""
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
    """Count the positions at which a distribution cannot have its parameter, by variable and parameter.

    A scale that is itself a normal variable is such a parameter. `run` evaluates a program at unconstrained values;
    `described` takes what there is to be said. Traced.
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


def say_improper(name: str, parameter: str, doubt: Doubt) -> str:
    """Say of a parameter that its distribution cannot have it everywhere, and what to do."""
    return (
        f"Variable {name!r}: its {parameter} must be {doubt.allowed} for a {doubt.distribution}, and the latent "
        f"variables that it is computed from take it out of there. Give these a prior that keeps to it, such as "
        f"HalfNormal or LogNormal for a scale and Beta for a probability, or a phx.param a constraint; or "
        f"transform it, a scale by jnp.exp, a probability by jax.nn.sigmoid"
    )


def _first(doubt: Doubt) -> tuple[Array, Array, Array]:
    first = jnp.argmax(doubt.bad.ravel())
    values = jnp.broadcast_to(doubt.values, (*doubt.bad.shape, *doubt.values.shape[doubt.bad.ndim :]))
    return jnp.sum(doubt.bad), first, values.reshape(doubt.bad.size, -1)[first]


def doubts(run: Evaluation, other: Evaluation) -> dict[tuple[str, str], Doubt]:
    """What may be wrong, by variable and parameter, given the runs of a program at two positions."""
    found, elsewhere = doubts_of(run), doubts_of(other)
    return {
        key: doubt if key[1] == VALUE else doubt._replace(bad=doubt.bad & _same(doubt, elsewhere[key]))
        for key, doubt in found.items()
    }


def doubts_of(run: Evaluation) -> dict[tuple[str, str], Doubt]:
    """The same of one run: also of what is wrong there alone."""
    found: dict[tuple[str, str], Doubt] = {}
    for name, variable in run.variables.items():
        if variable.observed and (doubt := _of_value(variable)) is not None:
            found[name, VALUE] = doubt
        for parameter, doubt in _of_parameters(variable.distribution):
            found.setdefault((name, parameter), doubt)
    return found


def outputs_of(doubts: Mapping[tuple[str, str], Doubt]) -> list[Array]:
    """The arrays of doubts, as a program gives them: of each its values, and which are wrong."""
    return [array for doubt in doubts.values() for array in (doubt.values, doubt.bad)]


def _same(doubt: Doubt, other: Doubt) -> Array:
    """Which values are the same elsewhere."""
    if doubt.values.shape != other.values.shape:
        return jnp.zeros(doubt.bad.shape, bool)
    same = doubt.values == other.values
    return jnp.all(same, axis=tuple(range(doubt.bad.ndim, same.ndim)))


def _of_value(variable: RandomVariable) -> Doubt | None:
    support = getattr(variable.distribution, "support", None)
    if support is None or isinstance(variable.distribution, Unit):
        return None
    bad = _outside(variable.distribution, variable.value)
    return Doubt(jnp.asarray(variable.value), bad, in_words(support), kind_of(variable.distribution))


def _outside(distribution: Any, value: Any) -> Array:
    """Which values a distribution cannot take; what is masked may be anything."""
    if isinstance(distribution, MaskedDistribution):
        return _outside(distribution.base_dist, value) & jnp.asarray(mask_of(distribution))
    if isinstance(distribution, ExpandedDistribution):
        return _outside(distribution.base_dist, value)
    if isinstance(distribution, Independent):
        bad = _outside(distribution.base_dist, value)
        return jnp.any(bad, axis=tuple(range(max(bad.ndim - distribution.reinterpreted_batch_ndims, 0), bad.ndim)))
    return jnp.logical_not(distribution.support(value))


def _of_parameters(distribution: Any) -> Iterator[tuple[str, Doubt]]:
    if isinstance(distribution, MaskedDistribution | Unit) or not isinstance(distribution, Distribution):
        return  # what is masked may be anything, and a factor is a term and no parameter
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


def _no_parameter(constraint: Any, values: Array) -> Array:
    """Which values a parameter cannot have; one that is infinite may mean that there is no bound, or no such choice."""
    if constraint is constraints.real:
        return jnp.isnan(values)
    if constraint is constraints.real_vector:
        return jnp.any(jnp.isnan(values), axis=-1)
    return jnp.logical_not(constraint(values))


def _is_checked(constraint: Any) -> bool:
    """Matrices and simplices are left out: rounding decides there."""
    if constraints.is_dependent(constraint) or constraint is constraints.simplex:
        return False
    return constraint.event_dim <= 1


def in_words(constraint: Any) -> str:
    """What a constraint allows."""
    for known, text in ALLOWED:
        if constraint is known:
            return text
    bounds = [getattr(constraint, bound, None) for bound in ("lower_bound", "upper_bound")]
    if all(isinstance(bound, int | float | np.ndarray) and np.ndim(bound) == 0 for bound in bounds):
        return f"between {bounds[0]} and {bounds[1]}"
    return type(constraint).__name__.strip("_").replace("_", " ").lower()
