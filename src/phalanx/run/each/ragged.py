"""Data sets that differ in their numbers of rows: rows that only fill a data set up do not count.

Each data set gets as many rows as the longest one, by copies of its last row, and their terms are multiplied by zero.
That is right if each row has terms of its own. Two tests show whether it is so, term by term:

- no term or deterministic value changes if other rows take the place of the copies, in any data set;
- of a data set of each size, terms and values are those of its own rows alone, without copies.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random

from phalanx.errors.message_text import first_few
from phalanx.inputs.arguments import ADDED, split_arguments
from phalanx.language.handlers import under
from phalanx.language.messages import Forward
from phalanx.language.random_variable import RandomVariable
from phalanx.language.tracing import Program
from phalanx.mesh.specs import PyTree
from phalanx.programs.unconstrained import Evaluation, run_unconstrained
from phalanx.run.each.data_sets import DataSets

if TYPE_CHECKING:
    from jaxtyping import Bool

REAL = f"{ADDED}real_rows"
"""Argument that is 1 for a real row of a data set, and 0 for padding."""

POSITIONS = 4
"""Random positions at which terms are compared."""

MOST_SIZES = 32
"""Most numbers of rows, from the smallest to the largest, at which padded data are compared with the rows alone."""

SAME = 1e-5
"""Tolerance, absolute and relative, for results of one program on equal shapes."""

NEAR = 1e-3
"""The same for results on other shapes."""


def with_real_rows(model: Program, most: int) -> Program:
    """Return the model with an argument `REAL`, and with observations of rows that only fill a data set up left out."""

    @wraps(model)
    def ragged(**data: Any) -> PyTree:
        real = data.pop(REAL)

        def left_out(variable: RandomVariable, forward: Forward) -> RandomVariable:
            if not variable.observed or variable.distribution is None:
                return forward(variable)
            batch = variable.distribution.batch_shape
            event = len(variable.distribution.event_shape)
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
    """Test that rows which fill data sets up do not count.

    Returns:
        Names of the deterministic values that have an element for each row.

    Raises:
        ValueError: when a latent variable has an element for each row, or rows do not have terms of their own.
    """
    assert sets.rows is not None
    sizes = np.unique(sets.rows)
    finite = _finite(sets)
    # of the data sets with so many rows one without NaN, if there is one
    first = [int(np.argmax((sets.rows == size) * (1 + finite))) for size in sizes]
    places = np.unique(np.linspace(0, len(sizes) - 1, MOST_SIZES).round().astype(int))
    of_rows: set[str] = set()
    for number in (first[place] for place in places):
        padded_data = _as_arrays(ragged, sets.one(number, with_padding=True) | {REAL: real_rows(sets, number)})
        without_padding = _as_arrays(model, sets.one(number, with_padding=False))
        for position in _positions(ragged, padded_data)[:2]:
            whole = run_unconstrained(ragged, position, padded_data)
            alone = _alone(model, position, without_padding)
            computed = {name: v.value for name, v in alone.variables.items() if v.is_computed}
            of_rows |= {name for name, x in computed.items() if jnp.shape(x) != jnp.shape(whole.variables[name].value)}
            changed_names = _names_of_changed(
                _terms_by_name(whole), _terms_by_name(alone), NEAR, int(sets.rows[number])
            )
            if changed_names := [name for name in changed_names if name not in of_rows]:
                raise ValueError(_refusal(sets, changed_names[0], number))
    changed_names = _change_by_padding(ragged, sets, of_rows)
    if changed_names is not None:
        raise ValueError(_refusal(sets, *changed_names))
    return frozenset(of_rows)


def real_rows(sets: DataSets, number: int | slice) -> np.ndarray:
    """Return the argument `REAL` of a data set, or of several."""
    assert sets.rows is not None
    return (np.arange(sets.most) < np.asarray(sets.rows)[number, ..., None]).astype(np.float32)


def _change_by_padding(ragged: Program, sets: DataSets, of_rows: set[str]) -> tuple[str, int] | None:
    """Return a term or value that changes with the rows that fill up, and the number of a data set; None if none do."""
    assert sets.rows is not None
    real = real_rows(sets, slice(None))
    longest = int(np.argmax(sets.rows))
    arrays = {name: sets.per_set[name] for name in sets.of_rows}
    others = {
        name: np.where(real.reshape(*real.shape, *[1] * (x.ndim - 2)) > 0, x, x[longest]) for name, x in arrays.items()
    }
    data = _as_arrays(ragged, sets.one(0, with_padding=True) | {REAL: real[0]})
    shared_data = {name: value for name, value in data.items() if name not in {*arrays, REAL}}
    positions = jax.tree.map(lambda *leaves: jnp.stack(leaves), *_positions(ragged, data))

    def looked(lane_data: Mapping[str, Array], real: Array) -> dict[str, Array]:
        def at(position: Mapping[str, Array]) -> dict[str, Array]:
            return _terms_by_name(run_unconstrained(ragged, position, {**shared_data, **lane_data, REAL: real}))

        return jax.vmap(at, axis_size=POSITIONS)(positions)  # a model may have no latent variable

    evaluate: Callable[..., Any] = jax.jit(jax.vmap(looked))
    lane_data_pairs = ({name: x.astype(data[name].dtype) for name, x in of.items()} for of in (arrays, others))
    first, again = (evaluate(lane_data, real) for lane_data in lane_data_pairs)
    for name, a in first.items():
        if name in of_rows:
            continue
        differs = _differs(np.asarray(a), np.asarray(again[name]), SAME)
        if a.shape[2:3] == (sets.most,) and name.endswith(ROWS):
            differs &= real.reshape(len(real), 1, sets.most, *[1] * (a.ndim - 3)) > 0
        if differs.any():
            return name, int(np.argmax(differs.reshape(len(real), -1).any(1)))
    return None


ROWS = " by row"
"""End of the name of a term with an entry for each row."""


def _terms_by_name(run: Evaluation) -> dict[str, Array]:
    """Return terms and deterministic values by name; terms multiplied by `REAL` end in `ROWS`."""
    arrays: dict[str, Array] = {}
    for (name, part), term in run.terms().items():
        variable = run.variables[name]
        by_row = ROWS if part == "density" and jnp.ndim(variable.scale) else ""
        arrays[f"the {part} of {name!r}{by_row}"] = jnp.asarray(term)
    return arrays | {name: jnp.asarray(v.value) for name, v in run.variables.items() if v.is_computed}


def _names_of_changed(whole: Mapping[str, Array], alone: Mapping[str, Array], tolerance: float, rows: int) -> list[str]:
    """Return the names of terms and values that differ, of rows in the first `rows`."""
    changed_names = []
    for name, value in whole.items():
        of_one = alone[name.removesuffix(ROWS)] if name not in alone else alone[name]
        part = value[:rows] if name.endswith(ROWS) else value
        if part.shape != of_one.shape or _differs(np.asarray(part), np.asarray(of_one), tolerance).any():
            changed_names.append(name)
    return changed_names


def _differs(a: np.ndarray, b: np.ndarray, tolerance: float) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= tolerance * (1 + np.abs(a) + np.abs(b)))
    return ~same


def _refusal(sets: DataSets, what: str, number: int) -> str:
    assert sets.rows is not None
    subject = what.removesuffix(ROWS)
    subject = subject if subject.startswith("the ") else f"the deterministic value {subject!r}"
    return (
        f"each: the data sets have from {sets.rows.min()} to {sets.rows.max()} rows, and are filled up to one length. "
        f"In data set {sets.text_of([number])} {subject} changes with the rows that fill it up, although their terms "
        f"are left out: it is computed from several rows, or from their number. Give each row a term of its own, along "
        f"the first axis; compute what belongs to a data set outside of the model; or give data sets of equal size."
    )


def _finite(sets: DataSets) -> Bool[np.ndarray, "sets"]:
    """Return True for data sets without NaN or infinity."""
    finite = np.ones(sets.count, bool)
    for arrays in sets.per_set.values():
        if arrays.dtype.kind == "f":
            finite &= np.isfinite(arrays).reshape(sets.count, -1).all(1)
    return finite


def _as_arrays(program: Program, data: dict[str, Any]) -> dict[str, Any]:
    arguments = split_arguments(program, data)
    return arguments.layout.join(arguments.arrays)


def _positions(program: Program, data: dict[str, Any]) -> list[dict[str, Array]]:
    zeros = run_unconstrained(program, None, data).position

    def one(key: Array) -> dict[str, Array]:
        keys = dict(zip(zeros, random.split(key, len(zeros)), strict=True))
        return {name: random.uniform(keys[name], zero.shape, zero.dtype, -2.0, 2.0) for name, zero in zeros.items()}

    return [one(key) for key in random.split(random.key(0), POSITIONS)]


def _alone(model: Program, position: dict[str, Array], data: dict[str, Any]) -> Evaluation:
    """Evaluate the model on a data set's own rows."""
    shapes = {name: value.shape for name, value in run_unconstrained(model, None, data).position.items()}
    if changing := [name for name, shape in shapes.items() if position[name].shape != shape]:
        raise ValueError(
            f"each: variable {first_few(list(map(repr, changing)))} has an element for each row, and the data sets "
            f"differ in their numbers of rows. Integrate it out, or run phx.mcmc on each data set; data sets of equal "
            f"size may have such variables."
        )
    return run_unconstrained(model, position, data)
