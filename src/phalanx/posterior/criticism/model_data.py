"""Data of a run as its model sees them: values of the observed variables, and arguments that are not observed.

The model runs at unconstrained zeros, since observed values do not depend on draws as a rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import Literal

from phalanx.density.given_entries import WHERE_MISSING
from phalanx.density.imputation import masks_of_missing
from phalanx.density.model_on_mesh import ModelOnMesh
from phalanx.density.target import Target
from phalanx.distributions.supports import SharedTerm
from phalanx.inputs.arguments import ADDED
from phalanx.jaxprs.dependence import NOWHERE, varying_axes
from phalanx.language.handlers import seed, substitute, trace
from phalanx.language.messages import is_term
from phalanx.language.random_variable import RandomVariable
from phalanx.marginals.marginalize import Marginal
from phalanx.mesh.compatibility.numpyro_internals import unvalidated
from phalanx.mesh.processes import to_host
from phalanx.posterior.criticism.log_likelihood import factors
from phalanx.programs.unconstrained import run_unconstrained

Shapes = Mapping[str, tuple[int, ...]]

SHIFTS = (0.0, 0.5)
"""Unconstrained values of all latent variables at which a value that depends on them differs."""


@dataclass(frozen=True)
class ModelData:
    """Data of a run.

    Attributes:
        target: the model with its data.
        observed, latent, computed: shapes of the observed, latent and deterministic variables.
        only_observed: names of the arguments that are the value of an observed variable.
    """

    target: Target
    observed: Shapes
    latent: Shapes
    computed: Shapes
    only_observed: frozenset[str]

    @classmethod
    def of(cls, target: Target) -> ModelData:
        """Return the data of a model, after tracing it once."""
        shapes: dict[str, Shapes] = {}

        def observed(arrays: Sequence[Array]) -> dict[str, Array]:
            variables = _variables_of(target, target.arguments.layout.join(arrays))
            shapes["latent"] = {name: v.shape for name, v in variables.items() if v.is_latent}
            shapes["computed"] = {name: v.shape for name, v in variables.items() if v.is_computed}
            return _observed_values(variables)

        axis_env = [(axis, 1) for axis in target.sizes]
        program, observations = jax.make_jaxpr(observed, axis_env=axis_env, return_shape=True)(
            target.arguments.whole_shapes()
        )
        names = dict(zip(program.jaxpr.invars, target.arguments.names, strict=True))
        given_names = frozenset(
            names[atom] for atom in program.jaxpr.outvars if not isinstance(atom, Literal) and atom in names
        )
        return cls(
            target, {name: leaf.shape for name, leaf in observations.items()}, **shapes, only_observed=given_names
        )

    def observations(self) -> dict[str, np.ndarray]:
        """Return the values of the observed variables, NaN for missing entries that are imputed."""

        def values(arrays: Sequence[Array]) -> dict[str, Array]:
            data = self.target.arguments.join(arrays)
            return self.target.alone(lambda: _observed_values(_variables_of(self.target, data)))

        observations = {name: to_host(value) for name, value in jax.jit(values)(self.target.place_arrays()).items()}
        missing = masks_of_missing(self.target.arguments)
        return {name: np.where(missing[name], np.nan, x) if name in missing else x for name, x in observations.items()}

    def constants(self, scalars: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the other arguments: arrays, and those of `scalars` that are numbers."""
        arguments = self.target.arguments
        missing = masks_of_missing(self.target.arguments)
        whole = {
            name: sharding.trim(to_host(array))
            for name, array, sharding in zip(arguments.names, arguments.arrays, arguments.shardings, strict=True)
            if name not in self.only_observed
            and name not in missing
            and not name.startswith((f"{WHERE_MISSING}[", ADDED))
        }
        numbers = {
            name: np.asarray(number) for name, number in scalars.items() if isinstance(number, bool | int | float)
        }
        return numbers | {name: constant.array for name, constant in arguments.constants.items()} | whole

    @property
    def constant_bytes(self) -> int:
        """Bytes of the arrays that are not observed."""
        arguments = self.target.arguments
        shapes = zip(arguments.names, arguments.whole_shapes(), strict=True)
        return sum(math.prod(a.shape) * a.dtype.itemsize for name, a in shapes if name not in self.only_observed)


def fingerprint_of(target: ModelOnMesh, shapes: Shapes) -> dict[str, np.ndarray]:
    """Return one number for each observation: its value, or a fixed projection of a vector's entries.

    Args:
        target: the model with its data.
        shapes: shapes of the log densities of the observed variables, by name.

    Returns:
        Arrays of these shapes in float64. An entry of a vector that is missing counts as zero. An observation whose
        value depends on latent variables has NaN, as one that is missing itself.
    """
    missing = masks_of_missing(target.arguments)

    def values(arrays: Sequence[Array]) -> list[dict[str, Array]]:
        data = target.arguments.join(arrays)
        return target.alone(lambda: [_observed_values(_variables_of(target, data, shift)) for shift in SHIFTS])

    first, second = jax.tree.map(to_host, jax.jit(values)(target.place_arrays()))
    by_name: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        if name not in first or math.prod(shape) == 0 or first[name].size % math.prod(shape):
            continue
        numbers = np.asarray(first[name], np.float32).astype(np.float64)
        other = np.asarray(second[name], np.float32).astype(np.float64)
        is_missing = missing.get(name, np.zeros(numbers.shape, bool))
        is_computed = ~np.isclose(numbers, other, rtol=1e-5, atol=0.0, equal_nan=True) & ~is_missing
        numbers, is_missing, is_computed = (
            part.reshape(*shape, -1) for part in (np.where(is_missing, 0.0, numbers), is_missing, is_computed)
        )
        weights = np.random.default_rng(0).uniform(0.5, 1.5, numbers.shape[-1]) if numbers.shape[-1] > 1 else np.ones(1)
        by_name[name] = np.where(is_computed.any(-1) | is_missing.all(-1), np.nan, numbers @ weights)
    return by_name


def likelihood_factors(target: ModelOnMesh, shapes: Shapes) -> tuple[str, ...]:
    """Return the names of terms that belong to the likelihood, although they are not observations.

    A sum over discrete variables that observations share is such a term. A factor is one unless it is proved to be part
    of the prior: it depends on no data with a row for each observation, and has the same value on one row less.

    Args:
        target: the model with its data.
        shapes: shapes of the log densities of the observed variables, by name.
    """
    arguments = target.arguments
    rows = {shape[0] for shape in shapes.values() if shape and shape[0] > 1}
    by_row = [bool(a.shape) and a.shape[0] in rows for a in arguments.whole_shapes()]

    def terms(data: Mapping[str, Any], shift: float) -> dict[str, RandomVariable]:
        terms_by_name = run_unconstrained(target.program, _position(target, data, shift), data).variables
        return {name: terms_by_name[name] for name in factors(terms_by_name)}

    def totals(data: Mapping[str, Any]) -> list[dict[str, Array]]:
        return [{name: jnp.sum(term.log_prob()) for name, term in terms(data, shift).items()} for shift in SHIFTS]

    names: dict[str, bool] = {}

    def whole(arrays: Sequence[Array]) -> list[dict[str, Array]]:
        data = arguments.layout.join(arrays)
        terms_by_name = terms(data, SHIFTS[0])
        names.update({name: isinstance(term.distribution, SharedTerm) for name, term in terms_by_name.items()})
        return totals(data) if terms_by_name else []

    program = jax.make_jaxpr(lambda arrays: target.alone(lambda: whole(arrays)))(arguments.whole_shapes())
    if not names:
        return ()
    if not any(by_row):
        return tuple(names)  # the program has its data by itself
    labels = [frozenset({"row"}) if of_rows else NOWHERE for of_rows in by_row]
    order = sorted(names)
    term_sources = varying_axes(program, labels)[: len(order)]
    depends = {name for name, sources in zip(order, term_sources, strict=True) if sources}

    def shorter(arrays: Sequence[Array]) -> list[dict[str, Array]]:
        whole = [s.trim(array) for array, s in zip(arrays, arguments.shardings, strict=True)]
        shorter_arrays = [array[:-1] if of_rows else array for array, of_rows in zip(whole, by_row, strict=True)]
        data = arguments.layout.replace_numbers({n: n - 1 for n in rows}).join(shorter_arrays)
        return target.alone(lambda: totals(data))

    def longer(arrays: Sequence[Array]) -> list[dict[str, Array]]:
        return target.alone(lambda: totals(arguments.join(arrays)))

    try:
        both = [jax.tree.map(to_host, jax.jit(run)(target.place_arrays())) for run in (longer, shorter)]
    except Exception:  # a program that needs all rows: it is not proved that a factor is part of the prior
        return tuple(names)
    same = {n for n in order if all(np.array_equal(a[n], b[n], equal_nan=True) for a, b in zip(*both, strict=True))}
    return tuple(name for name, is_shared in names.items() if is_shared or name in depends or name not in same)


def are_deleted(target: ModelOnMesh) -> bool:
    """Return whether arrays of the run's data were deleted, so that its model cannot run again."""
    return any(isinstance(array, Array) and array.is_deleted() for array in target.arguments.arrays)


def _position(target: ModelOnMesh, data: Mapping[str, Any], shift: float) -> Mapping[str, Array] | None:
    """Return unconstrained values of the latent variables: `shift` for all of them; None for zeros."""
    if not shift:
        return None
    zeros = run_unconstrained(target.program, None, data).position
    return {
        name: value + shift if jnp.issubdtype(value.dtype, jnp.floating) else value for name, value in zeros.items()
    }


def _variables_of(target: ModelOnMesh, data: Mapping[str, Any], shift: float = 0.0) -> Mapping[str, RandomVariable]:
    """Return the variables of a model, without its sums over discrete variables, in which it hides observed ones."""
    variables = run_unconstrained(target.program, _position(target, data, shift), data).variables
    if not isinstance(target.program, Marginal):
        return variables
    at = {name: variable.value for name, variable in variables.items() if variable.is_latent}
    with unvalidated():
        return trace(seed(substitute(target.program, at), 0))(**data)


def _observed_values(variables: Mapping[str, RandomVariable]) -> dict[str, Array]:
    return {
        name: v.value
        for name, v in variables.items()
        if v.observed and v.distribution is not None and not is_term(v.distribution)
    }
