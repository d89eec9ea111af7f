"""Data of a run as its model sees them: values of the observed variables, and arguments that are not observed.

The model runs at unconstrained zeros, since observed values do not depend on draws as a rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.extend.core import Literal

from phalanx.density.imputation import WHERE_MISSING, masks_of_missing
from phalanx.density.target import Target
from phalanx.inputs.arguments import ADDED
from phalanx.language.handlers import seed, substitute, trace
from phalanx.language.random_variable import RandomVariable
from phalanx.language.refusals import is_term
from phalanx.marginals.marginalize import Marginal
from phalanx.mesh.compatibility.numpyro_internals import unvalidated
from phalanx.mesh.devices import axes_but_chain
from phalanx.mesh.processes import to_host
from phalanx.mesh.virtual_mesh import alone
from phalanx.posterior.criticism.log_likelihood import factors
from phalanx.programs.unconstrained import run_unconstrained

Shapes = Mapping[str, tuple[int, ...]]


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
            variables = _variables_of_model(target, arrays)
            shapes["latent"] = {name: v.shape for name, v in variables.items() if v.is_latent}
            shapes["computed"] = {name: v.shape for name, v in variables.items() if v.is_computed}
            return _observed(variables)

        axis_env = [(axis, 1) for axis in axes_but_chain(target.mesh)]
        program, found = jax.make_jaxpr(observed, axis_env=axis_env, return_shape=True)(target.arguments.whole_shapes())
        names = dict(zip(program.jaxpr.invars, target.arguments.names, strict=True))
        given = frozenset(
            names[atom] for atom in program.jaxpr.outvars if not isinstance(atom, Literal) and atom in names
        )
        return cls(target, {name: leaf.shape for name, leaf in found.items()}, **shapes, only_observed=given)

    def observations(self) -> dict[str, np.ndarray]:
        """Return the values of the observed variables, NaN for missing entries that are imputed."""
        shardings = self.target.arguments.shardings

        def values(arrays: Sequence[Array]) -> dict[str, Array]:
            whole = [a[: s.rows] if s.axes else a for a, s in zip(arrays, shardings, strict=True)]
            return alone(lambda: _observed(_variables_of_model(self.target, whole)), axes_but_chain(self.target.mesh))

        found = {name: to_host(value) for name, value in jax.jit(values)(self.target.place_arrays()).items()}
        missing = masks_of_missing(self.target.arguments)
        return {name: np.where(missing[name], np.nan, x) if name in missing else x for name, x in found.items()}

    def constants(self, scalars: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the other arguments: arrays, and those of `scalars` that are numbers."""
        given, missing = self.target.arguments, masks_of_missing(self.target.arguments)
        whole = {
            name: to_host(array)[: sharding.rows] if sharding.axes else to_host(array)
            for name, array, sharding in zip(given.names, given.arrays, given.shardings, strict=True)
            if name not in self.only_observed
            and name not in missing
            and not name.startswith((f"{WHERE_MISSING}[", ADDED))
        }
        numbers = {
            name: np.asarray(number) for name, number in scalars.items() if isinstance(number, bool | int | float)
        }
        return numbers | {name: constant.array for name, constant in given.constants.items()} | whole

    @property
    def constant_bytes(self) -> int:
        """Bytes of the arrays that are not observed."""
        given = self.target.arguments
        known = zip(given.names, given.whole_shapes(), strict=True)
        return sum(math.prod(a.shape) * a.dtype.itemsize for name, a in known if name not in self.only_observed)


def factors_of(target: Target) -> tuple[str, ...]:
    """Return the names of a model's terms that are not observations."""
    found: list[tuple[str, ...]] = []

    def run(arrays: Sequence[Array]) -> None:
        found.append(factors(_variables(target, arrays)))

    axis_env = [(axis, 1) for axis in axes_but_chain(target.mesh)]
    jax.make_jaxpr(run, axis_env=axis_env)(target.arguments.whole_shapes())
    return found[-1]


def are_deleted(target: Target) -> bool:
    """Return whether arrays of the run's data were deleted, so that its model cannot run again."""
    return any(isinstance(array, Array) and array.is_deleted() for array in target.arguments.arrays)


def _variables(target: Target, arrays: Sequence[Array]) -> Mapping[str, RandomVariable]:
    return run_unconstrained(target.program, None, target.arguments.layout.join(arrays)).variables


def _variables_of_model(target: Target, arrays: Sequence[Array]) -> Mapping[str, RandomVariable]:
    """Return the variables of a model, without its sums over discrete variables, in which it hides observed ones."""
    found = _variables(target, arrays)
    if not isinstance(target.program, Marginal):
        return found
    at = {name: variable.value for name, variable in found.items() if variable.is_latent}
    with unvalidated():
        return trace(seed(substitute(target.program, at), 0))(**target.arguments.layout.join(arrays))


def _observed(variables: Mapping[str, RandomVariable]) -> dict[str, Array]:
    return {
        name: v.value for name, v in variables.items()
        if v.observed and v.distribution is not None and not is_term(v.distribution)
    }  # fmt: skip
