"""Data sets that differ in their numbers of rows: rows that only fill a data set up do not count.

Each data set gets as many rows as the longest one, by copies of its last row, and their terms are multiplied
by zero. That is right if the log density is a sum over rows, which is tested: the log density of filled data sets is
compared with that of their own rows alone.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from phalanx.errors.words import first_few
from phalanx.inputs.arguments import split_arguments
from phalanx.language.handlers import under
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Forward, Program
from phalanx.programs.unconstrained import Evaluation, run_unconstrained
from phalanx.run.each.data_sets import DataSets

if TYPE_CHECKING:
    from jaxtyping import Bool

REAL = "_phalanx_real_rows"
"""Argument with one for each row of a data set that counts, and zero for those that only fill it up."""

MOST_SIZES = 32
"""Numbers of rows at which the log density is compared, from the smallest to the largest."""

TOLERANCE = 1e-4
"""Difference of log densities, relative to the sum of the absolute values of their terms, that rounding explains."""


def with_real_rows(model: Program, most: int) -> Program:
    """Return the model with an argument `REAL`, and with observations of rows that only fill a data set up left out."""

    @wraps(model)
    def ragged(**data: Any) -> Any:
        real = data.pop(REAL)

        def left_out(variable: RandomVariable, forward: Forward) -> RandomVariable:
            if not variable.observed or variable.distribution is None:
                return forward(variable)
            batch, event = variable.distribution.batch_shape, len(variable.distribution.event_shape)
            value = jnp.shape(variable.value)
            shape = jnp.broadcast_shapes(batch, value[: len(value) - event])
            if shape[:1] != (most,):
                return forward(variable)
            return forward(replace(variable, scale=variable.scale * real.reshape(most, *[1] * (len(shape) - 1))))

        return under(model, left_out)(**data)

    any_argument = inspect.Parameter("data", inspect.Parameter.VAR_KEYWORD)
    vars(ragged)["__signature__"] = inspect.Signature([any_argument])
    return ragged


def check_ragged(model: Program, ragged: Program, sets: DataSets) -> frozenset[str]:
    """Compare log densities with and without rows that fill up; raise if they differ.

    Returns:
        Names of the deterministic values that have an element for each row.

    Raises:
        ValueError: when a latent variable has an element for each row, or the log density is not a sum over rows.
    """
    assert sets.rows is not None
    sizes, finite = np.unique(sets.rows), _finite(sets)
    # of the data sets with so many rows one without NaN, if there is one
    first = [int(np.argmax((sets.rows == size) * (1 + finite))) for size in sizes]
    chosen = np.unique(np.linspace(0, len(sizes) - 1, MOST_SIZES).round().astype(int))
    of_rows: set[str] = set()
    for number in (first[place] for place in chosen):
        filled = _as_arrays(ragged, sets.one(int(number), padded=True) | {REAL: real_rows(sets, int(number))})
        own = _as_arrays(model, sets.one(int(number), padded=False))
        position = _position(ragged, filled)
        whole, alone = run_unconstrained(ragged, position, filled), _alone(model, position, own)
        pairs = {name: (v.value, alone.variables[name].value) for name, v in whole.variables.items() if v.is_computed}
        of_rows |= {name for name, (a, b) in pairs.items() if jnp.shape(a) != jnp.shape(b)}
        size, found = _size(alone), {"the log density": (whole.log_density(), alone.log_density())}
        found |= {f"the deterministic value {name!r}": pair for name, pair in pairs.items() if name not in of_rows}
        for what, (a, b) in found.items() if np.isfinite(size) else ():
            scale = size if what == "the log density" else float(jnp.max(jnp.abs(b), initial=0.0))
            if float(jnp.max(jnp.abs(a - b), initial=0.0)) > TOLERANCE * (1 + scale):
                raise ValueError(
                    f"each: the data sets have from {sizes[0]} to {sizes[-1]} rows, and {what} is not a sum over rows: "
                    f"for data set {sets.words([number])} it changes if copies of its last row are added and their "
                    f"terms left out. Give each row a term of its own, and compute means over rows outside of the "
                    f"model; or leave rows out, so that all data sets have as many."
                )
    return frozenset(of_rows)


def real_rows(sets: DataSets, number: int | slice) -> np.ndarray:
    """Return the argument `REAL` of a data set, or of several."""
    assert sets.rows is not None
    most = next(sets.own[name].shape[1] for name in sets.of_rows)
    return (np.arange(most) < np.asarray(sets.rows)[number, ..., None]).astype(np.float32)


def _finite(sets: DataSets) -> Bool[np.ndarray, "sets"]:
    """Return True for data sets without NaN or infinity."""
    found = np.ones(sets.count, bool)
    for arrays in sets.own.values():
        if arrays.dtype.kind == "f":
            found &= np.isfinite(arrays).reshape(sets.count, -1).all(1)
    return found


def _as_arrays(program: Program, data: dict[str, Any]) -> dict[str, Any]:
    arguments = split_arguments(program, data)
    return arguments.layout.join(arguments.arrays)


def _position(program: Program, data: dict[str, Any]) -> dict[str, jax.Array]:
    zeros = run_unconstrained(program, None, data).position
    keys = random.split(random.key(0), len(zeros))
    return {
        name: random.uniform(key, zero.shape, zero.dtype, -1.0, 1.0)
        for key, (name, zero) in zip(keys, zeros.items(), strict=True)
    }


def _alone(model: Program, position: dict[str, jax.Array], data: dict[str, Any]) -> Evaluation:
    """Evaluate the model on a data set's own rows."""
    shapes = {name: value.shape for name, value in run_unconstrained(model, None, data).position.items()}
    if changing := [name for name, shape in shapes.items() if position[name].shape != shape]:
        raise ValueError(
            f"each: variable {first_few(list(map(repr, changing)))} has an element for each row, and the data sets "
            f"differ in their numbers of rows. Integrate it out, or run phx.mcmc on each data set; data sets of equal "
            f"size may have such variables."
        )
    return run_unconstrained(model, position, data)


def _size(run: Evaluation) -> float:
    return float(sum(jnp.sum(jnp.abs(term)) for term in run.terms().values()))
