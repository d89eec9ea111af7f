"""Search for the arguments whose values a program needs while it is traced, as for a size: its constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

from phalanx.errors.model_errors import ModelError, asks_for_values
from phalanx.inputs.arguments import Arguments

IN_BATCHES = "its rows change from step to step"
"""Reason why values of data in batches cannot be compiled in."""

MOST = 2**22
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
        The arguments, with the needed ones compiled in, and the trace.

    Raises:
        ModelError: as `trace` does, if values of arguments do not help.
        ValueError: when the values of a needed argument, which it names, vary, or its rows are sharded.
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
    reasons = dict.fromkeys(needed, varies) if isinstance(varies, str) else varies
    for name in needed:
        if why := "its rows are sharded over devices" if sharded[name].axes else reasons.get(name, ""):
            raise ValueError(_refusal(failed, name, why)) from failed
    return arguments.fixing(needed), traced


def _tried(arguments: Arguments, names: list[str], trace: Callable[[Arguments], Traced]) -> Traced | None:
    try:
        return trace(arguments.fixing(names))
    except Exception:  # it needs more values; or it fails for another reason, which the trace with all values reports
        return None


def _refusal(failed: ModelError, name: str, why: str) -> str:
    where, _, _ = str(failed).partition(" cannot be computed")
    return (
        f"{where} needs the values of the argument {name!r} while the model is traced, but {why}. Compute the needed "
        f"value outside of the model and give it as data, as in data={{'size': int({name}.max()) + 1, ...}}: whole "
        f"numbers, strings and flags are compiled in."
    )
