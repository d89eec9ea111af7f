"""Observed variables that a prediction holds at their data, and the draws of their missing entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import (
    Distribution,
    ExpandedDistribution,
    Independent,
    LowRankMultivariateNormal,
    MaskedDistribution,
    MultivariateNormal,
)

from phalanx.density.finite_data import find_not_finite
from phalanx.density.imputation import masks_of_missing
from phalanx.density.missing_entries import missing_name
from phalanx.density.target import Target
from phalanx.distributions.supports import entrywise, kind_of
from phalanx.inputs.arguments import ADDED
from phalanx.language.messages import Forward
from phalanx.language.random_variable import RandomVariable
from phalanx.posterior.criticism.dependence import VariableDependence, to_draw
from phalanx.posterior.criticism.model_at_draws import ModelAtDraws
from phalanx.posterior.criticism.model_data import ModelData, are_deleted
from phalanx.posterior.over_draws import key_of
from phalanx.programs.unconstrained import refuse_parameter


@dataclass(frozen=True)
class HeldValues:
    """Observed variables that keep their data in a prediction.

    Attributes:
        missing: masks of their missing entries, by variable; None for a variable without any.
        stale: latent variables whose draws do not fit these values, or those of other variables.
    """

    missing: Mapping[str, np.ndarray | None]
    stale: frozenset[str]

    @classmethod
    def of(
        cls,
        model: ModelAtDraws,
        held_names: frozenset[str],
        dependence: VariableDependence,
        draws: Mapping[str, Any],
        target: Target | None,
        is_own: bool,
    ) -> HeldValues:
        """Read the values that a program holds on its data.

        Args:
            model: the program with its data.
            held_names: names of the observed variables that keep their data.
            dependence: of its variables.
            draws: draws of the run, `(chain, draw, ...)` by latent variable.
            target: the model and data of the run, if they are known and others.
            is_own: true for the model and the data of the run.

        Raises:
            ValueError: when missing entries of a held variable cannot be drawn given the others; the message names it.
        """
        changed_names = frozenset() if is_own else held_names
        may_be_stale = dependence.stale(held_names, changed_names) != dependence.stale(held_names)
        may_miss = bool(held_names) and bool(
            find_not_finite(model.arguments.arrays) or masks_of_missing(model.arguments)
        )
        if not may_be_stale and not may_miss:
            return cls(dict.fromkeys(held_names), dependence.stale(held_names))
        values = _values(model, held_names, draws)
        missing = _missing(model, held_names, values)
        for name, mask in missing.items():
            if mask is not None and (later := sorted(dependence.reached({name}) & held_names)):
                raise ValueError(
                    f"predictive: variable {name!r} has missing entries, and {later[0]!r}, which depends on it, is "
                    f"held at its data: a draw of these entries would ignore it. Leave {later[0]!r} out of the data, "
                    f"or name the variables to hold in given=; or give {name!r} a value in each row."
                )
        if may_be_stale and target is not None and not are_deleted(target):
            of_run = ModelData.of(target).observations()
            changed_names = frozenset(
                name
                for name in changed_names
                if name not in of_run or not np.array_equal(values[name], of_run[name], equal_nan=True)
            )
        return cls(missing, dependence.stale(held_names, changed_names))


def with_held_value(variable: RandomVariable, missing: np.ndarray | None, forward: Forward) -> RandomVariable:
    """Return an observed variable with its data, and draws in place of those that are missing."""
    if missing is None:
        return forward(variable)
    distribution = variable.distribution
    value = jnp.asarray(variable.value)
    assert distribution is not None
    name = f"{ADDED}{variable.name}"  # a draw of the whole variable
    draws = jnp.asarray(forward(replace(to_draw(variable), name=name, set_to=None)).value)
    if _covers_parts(distribution, missing):
        draws = _conditional(variable.name, distribution, draws, value, missing)
    whole = jnp.where(missing, draws.astype(jnp.result_type(draws, value)), value)
    return forward(replace(variable, value=whole.astype(draws.dtype)))


def _values(model: ModelAtDraws, names: frozenset[str], draws: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the values of observed variables in the data, at the first draw."""

    def give(variable: RandomVariable, forward: Forward) -> RandomVariable:
        refuse_parameter(variable)
        if variable.name in model.latents and variable.name in first:
            return forward(replace(variable, value=first[variable.name]))
        return forward(variable)

    def values(arrays: Sequence[Array]) -> dict[str, Array]:
        return model.run(
            arrays, give, lambda variables: {n: jnp.asarray(variables[n].value) for n in names}, key_of(0, 0, 0)
        )

    first = {name: jnp.asarray(np.asarray(value[:1, :1])[0, 0]) for name, value in draws.items()}
    data_values = jax.jit(values)(model.place_arrays())
    return {name: np.asarray(value) for name, value in data_values.items()}


def _missing(
    model: ModelAtDraws, held_names: frozenset[str], values: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray | None]:
    """Return a mask of the missing entries of each variable: NaN, or marked by a run that imputes."""
    marked = masks_of_missing(model.arguments)
    masks: dict[str, np.ndarray | None] = {}
    for name in sorted(held_names):
        value = values[name]
        mask = np.isnan(value) if value.dtype.kind == "f" else np.zeros(value.shape, bool)
        if name in marked and missing_name(name) not in model.latents:  # no draws of the run fill them
            mask = mask | marked[name]
        masks[name] = mask if mask.any() else None
    return masks


def _covers_parts(distribution: Distribution, missing: np.ndarray) -> bool:
    """Return whether an event of dependent entries misses some of its entries."""
    dims = len(entrywise(distribution).event_shape)
    if not dims:
        return False
    axes = tuple(range(missing.ndim - dims, missing.ndim))
    return bool((missing.any(axes) & ~missing.all(axes)).any())


def _conditional(name: str, distribution: Distribution, draws: Array, value: Array, missing: np.ndarray) -> Array:
    r"""Return draws of missing entries given the others, from draws of whole events of a normal distribution.

    $x_m = z_m + \Sigma_{mg} \Sigma_{gg}^{-1} (x_g - z_g)$ has the conditional distribution if $z$ has the joint one.
    """
    normal: Any = entrywise(distribution)
    while isinstance(normal, ExpandedDistribution | MaskedDistribution | Independent):
        normal = normal.base_dist
    if not isinstance(normal, MultivariateNormal | LowRankMultivariateNormal):
        raise ValueError(
            f"predictive: variable {name!r} is held at its data, and an event of its {kind_of(distribution)} misses "
            f"some of its entries. Missing entries are drawn given the others only if the entries of an event are "
            f"independent or have a MultivariateNormal. Give all entries of the event, or leave such rows out."
        )
    is_present = jnp.asarray(~missing, draws.dtype)
    covariance = jnp.broadcast_to(jnp.asarray(normal.covariance_matrix), (*draws.shape, draws.shape[-1]))
    both = covariance * is_present[..., :, None] * is_present[..., None, :]
    block = both + (1 - is_present)[..., None] * jnp.broadcast_to(jnp.eye(draws.shape[-1]), covariance.shape)
    apart = jnp.where(missing, 0.0, value - draws)
    return draws + jnp.einsum("...ij,...j->...i", covariance, jnp.linalg.solve(block, apart[..., None])[..., 0])
