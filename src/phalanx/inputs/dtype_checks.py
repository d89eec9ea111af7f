"""Conversion of arrays to the types that JAX computes with, 32 bits unless 64 are enabled, with checks for loss.

JAX itself silently truncates whole numbers to 32 bits, and rounds times in seconds since 1970 to two minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

COARSE = 1e-3
"""A rounding error, in standard deviations of the column, that changes an answer."""

MERGING = 1e-5
"""A rounding error, in standard deviations, that may make neighbouring values equal."""

NEIGHBOURS = 1024
"""Number of values that are compared for that: so few that ordinary measurements hardly ever share a float32."""

TIES = 0.1
"""Fraction of different values that become equal, above which a column no longer distinguishes rows."""

NOISE = 1e-10
"""Relative spread below which differences between fractions are rounding errors of a constant."""

_X64 = 'enable 64 bits before the first array: jax.config.update("jax_enable_x64", True)'


def to_jax_dtype(name: str, array: np.ndarray, first: int = 0) -> np.ndarray:
    """Return `array` in the type that JAX computes with.

    Args:
        name: its name in messages.
        array: any array.
        first: the number of its first row, if it is a piece of a longer array.

    Returns:
        The array; itself if its type needs no change.

    Raises:
        TypeError: when it contains something other than real numbers, with the first place.
        ValueError: when a number does not fit the type, with its place, or rounding makes different values equal.
    """
    _check_kind(name, array, first)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    dtype = jax.dtypes.canonicalize_dtype(array.dtype if array.dtype.itemsize <= 8 else np.float64)
    if dtype == array.dtype:
        return array
    if dtype.kind in "iu":
        _check_range(name, array, np.iinfo(dtype), first)
        return array.astype(dtype)
    with np.errstate(over="ignore"):
        narrow = array.astype(dtype)
    _check_overflow(name, array, narrow, first)
    for column, wide, short in _columns(name, array, narrow):
        _check_rounding(column, wide, short)
    return narrow


def refuse_first(
    name: str,
    wrong: np.ndarray,
    what: Callable[[Any], str],
    advice: str,
    first: int = 0,
) -> None:
    """Raise if `wrong` is true anywhere; the message names the first place, its content, the count, and advice."""
    count = int(np.count_nonzero(wrong))
    if not count:
        return
    index = tuple(map(int, np.unravel_index(int(np.argmax(wrong)), np.shape(wrong))))
    more = f" (and {count - 1:,} more)" if count > 1 else ""
    raise ValueError(f"{_place(name, index, first)} {what(index)}{more}. {advice}")


def _place(name: str, index: tuple[int, ...], first: int) -> str:
    if not index:
        return name
    return f"{name}[{', '.join(map(str, (index[0] + first, *index[1:])))}]"


def _check_kind(name: str, array: np.ndarray, first: int) -> None:
    kind = array.dtype.kind
    if kind in "biuf" or jnp.issubdtype(array.dtype, np.floating):  # bfloat16 is of a kind of its own
        return
    if kind == "M":
        raise TypeError(
            f"{name} holds dates ({array.dtype}), but a model computes with numbers. Give the time since one of them, "
            f"such as ({name} - {name}[0]) / np.timedelta64(1, 'D') for days."
        )
    if kind == "m":
        raise TypeError(
            f"{name} holds durations ({array.dtype}), but a model computes with numbers. Give them in a unit, such as "
            f"{name} / np.timedelta64(1, 'D') for days."
        )
    if kind == "c":
        raise TypeError(f"{name} is complex ({array.dtype}). Give {name}.real and {name}.imag as two arrays.")
    example = _first_object(name, array, first) if kind in "OUS" else ""
    raise TypeError(
        f"{name} is an array of {array.dtype}, which cannot be computed with; encode it as numbers.{example}"
    )


def _first_object(name: str, array: np.ndarray, first: int) -> str:
    """Return a sentence on the first object that is not a number, with the way to convert it."""
    for index in np.ndindex(array.shape):
        item = array[index]
        place = _place(name, index, first)
        if not isinstance(item, bool | int | float | np.number | np.bool_):
            return f" {place} is {_text_of(item)}{_advice(item)}."
        if isinstance(item, int) and not -(2**63) <= item < 2**63:
            raise ValueError(
                f"{place} = {item} does not fit {jax.dtypes.canonicalize_dtype(np.int64)}. Scale it, or give floats."
            )
    return " Its items are numbers: use .astype(float)."


def _advice(item: Any) -> str:
    """Return the end of a sentence about an object: its type, or the way to make it a number."""
    kind = type(item).__name__
    if kind in ("NoneType", "NAType", "NaTType"):
        return "; a missing number is float('nan'), or leave the row out"
    if isinstance(item, str | bytes):
        advice = (
            "; to number words use pandas.Categorical(words), whose levels are in alphabetical order, or "
            "pandas.Categorical(words, categories=[...], ordered=True) for another order, as of an ordinal outcome"
        )
        return f"{advice}; of numbers in text, use pandas.to_numeric" if _is_number(item) else advice
    if isinstance(item, list | tuple) or np.ndim(item):
        return f", a {kind}; pad rows of different lengths to one length and mask the rest, in an array of numbers"
    if isinstance(item, date):
        return f", a {kind}; give the time since one of them, in days"
    return f", a {kind}; use .astype(float)" if _is_number(item) else f", a {kind}"


def _is_number(item: Any) -> bool:
    """Return whether an object converts to a number."""
    try:
        float(item)
    except (TypeError, ValueError):
        return False
    return True


def _check_range(name: str, array: np.ndarray, limits: np.iinfo, first: int) -> None:
    if not array.size or (int(array.max()) <= limits.max and int(array.min()) >= limits.min):
        return
    refuse_first(
        name,
        (array > limits.max) | (array < limits.min),
        lambda i: f"= {array[i]} does not fit {limits.dtype}",
        f"JAX would silently truncate it. Subtract something, give floats (.astype('float64')), or {_X64}.",
        first=first,
    )


def _check_overflow(name: str, array: np.ndarray, narrow: np.ndarray, first: int) -> None:
    refuse_first(
        name,
        np.isinf(narrow) & np.isfinite(array),
        lambda i: f"= {array[i]} does not fit {narrow.dtype}, and would be infinite",
        f"Scale it, give its logarithm, or {_X64}.",
        first=first,
    )


def _columns(name: str, array: np.ndarray, narrow: np.ndarray) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the columns of a matrix, as each has a scale of its own; other arrays as one column."""
    if array.ndim != 2:
        yield name, array.ravel(), narrow.ravel()
        return
    for number in range(array.shape[1]):
        yield f"{name}[:, {number}]", array[:, number], narrow[:, number]


def _check_rounding(name: str, wide: np.ndarray, narrow: np.ndarray) -> None:
    keep = np.isfinite(wide)
    wide, narrow = (wide, narrow) if keep.all() else (wide[keep], narrow[keep])
    if len(wide) < 2:
        return
    largest = float(np.abs(wide).max())
    spread = float(np.std(wide))
    error = float(np.abs(wide - narrow).max())
    if not np.isfinite(spread) or error <= MERGING * spread:
        return
    if spread <= NOISE * largest and not np.array_equal(wide, np.rint(wide)):
        return
    before, after = (len(np.unique(some[:NEIGHBOURS])) for some in (wide, narrow))
    if error <= COARSE * spread and before - after <= TIES * before:
        return
    among = f"; {before} different values among the first {min(NEIGHBOURS, len(wide))} become {after}"
    raise ValueError(
        f"{name} would lose the differences between its values: near {largest:.6g} numbers of {narrow.dtype} are "
        f"{np.spacing(np.asarray(largest, narrow.dtype)):.2g} apart, and the standard deviation is {spread:.2g}"
        f"{among if after < before else ''}. Subtract the first value or the mean, or {_X64}."
    )


def _text_of(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 40 else f"{text[:37]}..."
