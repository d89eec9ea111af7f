"""Variables that `axis=` shards over a mesh axis without data: the program defines all rows, a device has its own.

On each device a tracer replaces such a variable by the rows of that device: the distribution of these rows, and these
rows of a given value. Sums over the axis are left to the program.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike
from numpyro.distributions import (
    Distribution,
    ExpandedDistribution,
    Independent,
    MaskedDistribution,
    TransformedDistribution,
)

from phalanx.language.handlers import under
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Forward, Program
from phalanx.mesh.compatibility.numpyro_internals import mask_of
from phalanx.mesh.specs import PyTree


class RowsOfOneEvent(ValueError):
    """A variable is declared to be sharded over devices, but its distribution does not have independent rows."""


class _Joint(Exception):
    """The reason why rows of a distribution cannot be separated."""


def giving_own_rows(program: Program, rows: Mapping[str, int]) -> Program:
    """Return `program` with only this device's rows of the variables in `rows`, which maps names to all rows."""

    def give(variable: RandomVariable, forward: Forward) -> RandomVariable:
        devices = lax.axis_size(variable.axes) if variable.name in rows else 1
        return forward(variable if devices == 1 else _of_device(variable, rows[variable.name], devices))

    return under(program, give) if rows else program


def _of_device(variable: RandomVariable, rows: int, devices: int) -> RandomVariable:
    name, distribution, axes = variable.name, variable.distribution, variable.axes
    if distribution is None or _rows(distribution) != rows:  # written for one device, or wrong, which raises later
        return variable
    own = rows // devices
    first = lax.axis_index(axes) * own
    try:
        part = rows_of(distribution, first, own)
    except _Joint as error:
        where = axes[0] if len(axes) == 1 else axes
        raise RowsOfOneEvent(
            f"Variable {name!r}: axis={where!r} cannot shard its {rows} rows over {devices} devices: {error}. Leave "
            f"out axis=, or give it independent rows, as in dist.Normal(0.0, 1.0).expand([{rows}])."
        ) from None
    value = variable.value
    if value is not None:
        value = lax.dynamic_slice_in_dim(jnp.asarray(value), first, own)
    return replace(variable, distribution=part, value=value)


def _rows(distribution: Distribution) -> int:
    shape = (*distribution.batch_shape, *distribution.event_shape)
    return shape[0] if shape else 0


def rows_of(distribution: Distribution, first: Array | int, count: int) -> Distribution:
    """Return the distribution of `count` rows, from number `first` on, of a value whose rows are independent."""
    if isinstance(distribution, Independent):
        return rows_of(distribution.base_dist, first, count).to_event(distribution.reinterpreted_batch_ndims)
    if not distribution.batch_shape:
        raise _Joint(f"they are one event of {type(distribution).__name__}")
    shape = (count, *distribution.batch_shape[1:])
    if isinstance(distribution, ExpandedDistribution):
        base = distribution.base_dist
        return (base if _has_one_row(base, len(shape)) else rows_of(base, first, count)).expand(shape)
    if isinstance(distribution, MaskedDistribution):
        mask = mask_of(distribution)
        own: Any = mask
        if not isinstance(mask, bool):
            own = _slice(jnp.broadcast_to(mask, distribution.batch_shape), first, count)
        return rows_of(distribution.base_dist, first, count).mask(own)
    if type(distribution) is TransformedDistribution:
        if any(jnp.ndim(leaf) for leaf in jax.tree.leaves(distribution.transforms)):
            raise _Joint("its transforms have arrays for parameters")
        return TransformedDistribution(rows_of(distribution.base_dist, first, count), distribution.transforms)
    return _made_anew(distribution, first, count)


def _has_one_row(base: Distribution, rank: int) -> bool:
    """Return whether all rows of an expanded distribution are the same row of `base`."""
    return len(base.batch_shape) < rank or base.batch_shape[0] == 1


def _made_anew(distribution: Distribution, first: Array | int, count: int) -> Distribution:
    """Return a distribution of the same kind, from the rows of its parameters."""
    kind, rank = type(distribution), len(distribution.batch_shape)
    given = distribution.get_args()
    if unknown := _unnamed(distribution, given):
        raise _Joint(f"{kind.__name__} does not expose its {', '.join(unknown)}")

    def own(name: str, value: PyTree) -> PyTree:
        joined = kind.arg_constraints[name].event_dim
        whole = jnp.ndim(value) - joined == rank and jnp.shape(value)[0] == distribution.batch_shape[0]
        return _slice(value, first, count) if whole else value

    try:
        found = kind(**{name: own(name, value) for name, value in given.items()})
    except (TypeError, ValueError) as error:
        raise _Joint(f"{kind.__name__} cannot be made from its parameters again ({error})") from None
    wanted = (count, *distribution.batch_shape[1:])
    return found if found.batch_shape == wanted else found.expand(wanted)


def _unnamed(distribution: Distribution, given: Mapping[str, Any]) -> Sequence[str]:
    """Return the names of constructor arguments that are not parameters and not the defaults."""
    wanted = inspect.signature(type(distribution)).parameters.values()
    others = [p for p in wanted if p.name not in (*given, "validate_args")]
    return [
        p.name for p in others if vars(distribution).get(p.name, p.default) is not p.default or p.default is p.empty
    ]


def _slice(value: ArrayLike, first: Array | int, count: int) -> Array:
    return lax.dynamic_slice_in_dim(jnp.asarray(value), first, count)
