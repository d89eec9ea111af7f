"""Arguments whose values a program needs while it is traced, as for a size or a branch: they are compiled in."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from phalanx.errors.model_errors import ModelError, asks_for_values
from phalanx.inputs.arguments import Arguments

MOST = 2**22
"""Elements of an argument that may be compiled in."""

Traced = TypeVar("Traced")


def trace_with_values(
    arguments: Arguments, trace: Callable[[Arguments], Traced], fixed: bool = True
) -> tuple[Arguments, Traced]:
    """Trace a program; where it asks for the values of arguments, again with as few of them compiled in as possible.

    Args:
        arguments: the program's.
        trace: traces the program with its arguments.
        fixed: whether they may be compiled in, as they may not where other rows will take their place.

    Returns:
        The arguments, those that are needed compiled in, and the trace.

    Raises:
        ModelError: as the trace does, if no values of arguments help.
        ValueError: naming the argument, when its rows are sharded, or change from step to step.
    """
    try:
        return arguments, trace(arguments)
    except ModelError as error:
        if not asks_for_values(error):
            raise
        failed = error
    sizes = dict(zip(arguments.names, (math.prod(shape.shape) for shape in arguments.whole_shapes()), strict=True))
    needed = sorted((name for name, size in sizes.items() if size <= MOST), key=lambda name: -sizes[name])
    try:
        traced = trace(arguments.fixing(needed))
    except ModelError as error:
        if asks_for_values(error):
            raise failed from failed.__cause__
        raise
    for name in list(needed):
        fewer = [other for other in needed if other != name]
        if (again := _tried(arguments, fewer, trace)) is not None:
            needed, traced = fewer, again
    sharded = dict(zip(arguments.names, arguments.shardings, strict=True))
    if out_of_reach := [name for name in needed if sharded[name].axes or not fixed]:
        raise ValueError(_refusal(failed, out_of_reach[0], sharded=bool(sharded[out_of_reach[0]].axes))) from failed
    return arguments.fixing(needed), traced


def _tried(arguments: Arguments, names: list[str], trace: Callable[[Arguments], Traced]) -> Traced | None:
    try:
        return trace(arguments.fixing(names))
    except Exception:  # still without values that it needs; or it fails of itself, which is told of all arguments
        return None


def _refusal(failed: ModelError, name: str, sharded: bool) -> str:
    where, _, _ = str(failed).partition(" cannot be computed")
    why = "its rows are sharded over devices" if sharded else "its rows change from step to step"
    return (
        f"{where} needs the values of the argument {name!r} while the model is traced, and {why}. Compute what it "
        f"needs outside of the model and give it as data, as in data={{'size': int({name}.max()) + 1, ...}}: whole "
        f"numbers, strings and flags are compiled in."
    )
