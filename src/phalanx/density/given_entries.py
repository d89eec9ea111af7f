"""Densities of the given entries of variables whose missing entries are imputed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import Distribution, Independent, constraints

from phalanx.distributions.supports import kind_of, support_of
from phalanx.language.random_variable import RandomVariable
from phalanx.mesh.specs import PyTree

WHERE_MISSING = "where_missing"
"""Argument of the program: for each variable the number of each missing entry, and -1 for given ones."""


def of_given_entries(variables: Mapping[str, RandomVariable], data: Mapping[str, Any]) -> dict[str, RandomVariable]:
    """Return the variables of an imputing program with densities of given entries alone.

    A mask leaves missing entries out. Only independent entries have a density without the others: that of another event
    in which entries may be missing raises an error that names the variable.
    """
    entries = dict(variables)
    for name, where in data.get(WHERE_MISSING, {}).items():
        if name in entries and (distribution := entries[name].distribution) is not None:
            entries[name] = replace(entries[name], distribution=_of_given(name, distribution, where < 0))
    return entries


def _of_given(name: str, distribution: Distribution, mask: Array) -> Distribution:
    if isinstance(distribution, Independent):
        inner = _of_given(name, distribution.base_dist, mask)
        return inner.to_event(distribution.reinterpreted_batch_ndims)
    return PartlyGiven(name, distribution) if distribution.event_shape else distribution.mask(mask)


class PartlyGiven(Distribution):
    """Distribution of events in which entries may be missing, without a density of the given ones."""

    arg_constraints: ClassVar[dict[str, Any]] = {}  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, name: str, distribution: Distribution):
        self.name = name
        self.kind = kind_of(distribution)
        self.support = support_of(distribution)
        super().__init__(distribution.batch_shape, distribution.event_shape, validate_args=False)

    support: Any = constraints.dependent

    def log_prob(self, value: ArrayLike, intermediates: PyTree = None) -> Array:
        """Raise: the density of the given entries would be an integral over the missing ones."""
        raise ValueError(
            f"Variable {self.name!r} has events of {self.kind} in which entries are missing, and the density of the "
            f"given ones by themselves is not known. Leave such rows out of the data, and run the model again."
        )
