"""Search for the arguments whose values a program needs while it is traced, as for a size: its constants.

Arguments whose real numbers it uses as indices or levels are passed as whole numbers, if they are: tables turn whole
numbers into real ones where some are missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np

from phalanx.errors.model_errors import ModelError, asks_for_values, asks_for_whole_numbers
from phalanx.inputs.arguments import Arguments
from phalanx.mesh.processes import to_host

IN_BATCHES = "its rows change from step to step"
"""Reason why values of data in batches cannot be compiled in."""

MOST_ELEMENTS = 2**22
"""Most elements of an argument that may be compiled in."""

Traced = TypeVar("Traced")


def trace_with_values(
    arguments: Arguments, trace: Callable[[Arguments], Traced], varies: Mapping[str, str] | str = ""
) -> tuple[Arguments, Traced]:
    """Trace a program; if it needs the values of arguments, trace it again with as few as possible compiled in.

    Args:
        arguments: the program's arguments.
        trace: function that traces the program with its arguments.
        varies: reason why values cannot be compiled in, as in "its rows change from step to step", for all arguments
            or by argument; empty if they can.

    Returns:
        The arguments, with the needed ones compiled in and those used as indices as whole numbers, and the trace.

    Raises:
        ModelError: as `trace` does, if values of arguments do not help.
        ValueError: when the values of a needed argument, which it names, vary, or its rows are sharded; or those of an
            index are not whole.
    """
    try:
        return arguments, trace(arguments)
    except (ModelError, TypeError) as error:
        if asks_for_whole_numbers(error):
            return trace_with_values(_with_whole_numbers(arguments, trace, error), trace, varies)
        if not isinstance(error, ModelError) or not asks_for_values(error):
            raise
        trace_error = error
    sizes = dict(zip(arguments.names, (math.prod(shape.shape) for shape in arguments.whole_shapes()), strict=True))
    names = sorted((name for name, size in sizes.items() if size <= MOST_ELEMENTS), key=lambda name: -sizes[name])
    try:
        result = trace(arguments.with_compiled_in(names))
    except (ModelError, TypeError) as error:
        if asks_for_whole_numbers(error):
            whole = _with_whole_numbers(
                arguments, lambda traced_arguments: trace(traced_arguments.with_compiled_in(names)), error
            )
            return trace_with_values(whole, trace, varies)
        if isinstance(error, ModelError) and asks_for_values(error):
            raise trace_error from trace_error.__cause__
        raise
    for name in list(names):
        fewer = [other for other in names if other != name]
        if (again := _try_to_trace(arguments, fewer, trace)) is not None:
            names, result = fewer, again
    shardings = dict(zip(arguments.names, arguments.shardings, strict=True))
    reasons = dict.fromkeys(names, varies) if isinstance(varies, str) else varies
    for name in names:
        if why := "its rows are sharded over devices" if shardings[name].axes else reasons.get(name, ""):
            others = [other for other in names if other != name]
            raise ValueError(_refusal(_error_of(arguments, others, trace) or trace_error, name, why)) from trace_error
    return arguments.with_compiled_in(names), result


def _with_whole_numbers(arguments: Arguments, trace: Callable[[Arguments], Any], trace_error: Exception) -> Arguments:
    """Return the arguments of a program that uses real numbers as indices, with as few as possible as whole numbers.

    Raises:
        ValueError: when the numbers of such an argument are not whole; the message names the first.
        Exception: `trace_error`, if no argument can help.
    """
    real = [n for n, a in zip(arguments.names, arguments.arrays, strict=True) if jnp.issubdtype(a.dtype, jnp.floating)]
    first = {name: _first_fraction(arguments, name) for name in real}
    whole = [name for name in real if first[name] is None]

    def helps(names: list[str]) -> bool:
        try:
            trace(arguments.as_whole_numbers(names))
        except (ModelError, TypeError) as error:
            return not asks_for_whole_numbers(error)
        return True

    if not helps(whole):
        for name in real:
            if name not in whole and helps([*whole, name]):
                raise ValueError(
                    f"data: {first[name]}, and the model uses {name} as an index or a level, which is a whole number "
                    f"from 0 on. Give whole numbers, or leave out the rows that have none."
                ) from trace_error
        raise trace_error
    for name in list(whole):
        if helps(fewer := [other for other in whole if other != name]):
            whole = fewer
    return arguments.as_whole_numbers(whole)


def _first_fraction(arguments: Arguments, name: str) -> str | None:
    """Return the first number of an array that is not whole, with its place; None if all are."""
    number = arguments.names.index(name)
    array = arguments.shardings[number].trim(np.asarray(to_host(arguments.arrays[number])))
    wrong = ~(np.isfinite(array) & (array == np.rint(array)))
    if not wrong.any():
        return None
    index = tuple(map(int, np.unravel_index(int(np.argmax(wrong)), array.shape)))
    return f"{name}[{', '.join(map(str, index))}] is {array[index]:g}" if index else f"{name} is {array:g}"


def _error_of(arguments: Arguments, names: list[str], trace: Callable[[Arguments], Any]) -> ModelError | None:
    """Return the error of a trace in which the values of one needed argument are unknown."""
    try:
        trace(arguments.with_compiled_in(names))
    except ModelError as error:
        return error if asks_for_values(error) else None
    return None


def _try_to_trace(arguments: Arguments, names: list[str], trace: Callable[[Arguments], Traced]) -> Traced | None:
    try:
        return trace(arguments.with_compiled_in(names))
    except Exception:  # it needs more values; or it fails for another reason, which the trace with all values reports
        return None


def _refusal(trace_error: ModelError, name: str, why: str) -> str:
    where, _, _ = str(trace_error).partition(" cannot be computed")
    return (
        f"{where} needs the values of the argument {name!r} while the model is traced, but {why}. Compute the needed "
        f"value outside of the model and give it as data, as in data={{'size': int({name}.max()) + 1, ...}}: whole "
        f"numbers, strings and flags are compiled in."
    )
