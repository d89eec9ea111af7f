"""Match of a model's arguments with the columns of a data file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

from phalanx.cli.data.cells import CellError, at_line, coded
from phalanx.errors.names import hint
from phalanx.inputs.placement import shard


class Matched(NamedTuple):
    """Keyword arguments of a model, and the names in the data that it does not take."""

    arguments: dict[str, Any]
    left_out: list[str]


def match_data(model: Callable[..., Any], data: Mapping[str, Any], *, impute: bool = False) -> Matched:
    """Select the model's arguments from the data; arguments with a default may be absent.

    Args:
        model: the model.
        data: values by name.
        impute: True if empty cells of words are missing entries to impute.

    Returns:
        The arguments, and the names of the other values.

    Raises:
        ValueError: if the data lack an argument of the model, or a cell is not a number.
    """
    parameters = inspect.signature(model).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        names = list(data)
    else:
        names = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]
    required_names = [
        p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if missing := [name for name in required_names if name not in data]:
        has = f"the data have only {', '.join(data)}" if data else "there are no data: name a file of them with --data"
        signature = f"{getattr(model, '__name__', 'the model')}{inspect.signature(model)}"
        raise ValueError(f"{signature} asks for {', '.join(missing)}, and {has}.{hint(missing, data)}")
    arguments = {name: _code_column(name, data, impute) for name in names if name in data}
    return Matched(arguments, [name for name in data if name not in arguments])


def _code_column(name: str, data: Mapping[str, Any], impute: bool) -> Any:
    try:
        return coded(name, data[name], impute)
    except CellError as error:
        file = getattr(data, "files", {}).get(name)
        if file is None:
            raise
        raise ValueError(f"--data {file}{at_line(file, (name, error.row))}: {error}") from None


def shard_rows(arguments: Mapping[str, Any], mesh: Mesh) -> tuple[dict[str, Any], list[str]]:
    """Shard the rows of the longest arrays over the mesh's `data` axis.

    Args:
        arguments: the keyword arguments of a model.
        mesh: the devices.

    Returns:
        The arguments, and the names of the sharded ones; the others are replicated.

    Raises:
        ValueError: if the data contain no array.
    """
    rows = {name: np.shape(value)[0] for name, value in arguments.items() if np.ndim(value) > 0}
    if not rows:
        raise ValueError("--data-shards: the data contain no array whose rows could be sharded over devices.")
    longest = [name for name, count in rows.items() if count == max(rows.values())]
    return {**arguments, **shard({name: arguments[name] for name in longest}, mesh)}, longest
