"""Lines of users' source code that operations of a program come from."""

from __future__ import annotations

import ast
import linecache
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpyro
from jax.extend.core import JaxprEqn

_INSTALLED = (Path(str(module.__file__)).parent for module in (jax, jaxlib, numpyro))
_HERE = Path(__file__).parents[1]
_LIBRARIES = tuple(str(folder) for folder in (*_INSTALLED, _HERE))
_PYTHON = sysconfig.get_paths()["stdlib"]
_DENSITIES = str(_HERE / "programs" / "unconstrained.py")
"""Calls from this file outside of the model are densities of distributions; a check of their own covers supports."""


@dataclass(frozen=True)
class SourceLine:
    """A line of a user's source file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"

    def _nodes(self, kind: type[ast.Call] | type[ast.Subscript]) -> list[Any]:
        nodes: list[Any] = [node for node in ast.walk(_parse(self.file)) if isinstance(node, kind)]
        return [node for node in nodes if node.lineno <= self.line <= (node.end_lineno or node.lineno)]

    def has_mode(self) -> bool:
        """Return whether a call on the line has `mode=` or `fill_value=`, for indices that are outside."""
        return any(word.arg in ("mode", "fill_value") for call in self._nodes(ast.Call) for word in call.keywords)

    def expression(self, names: Sequence[str]) -> str:
        """Return the only subscript on the line that mentions one of the names; otherwise the whole line."""
        subscripts = self._nodes(ast.Subscript)
        pieces = [
            ast.unparse(node)
            for node in subscripts
            if any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(node.slice))
        ] or [ast.unparse(node) for node in subscripts]
        return pieces[0] if len(pieces) == 1 else linecache.getline(self.file, self.line).strip() or "an index"


def _is_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or (file.startswith((_PYTHON, "<frozen")) and "-packages" not in file)


@cache
def _parse(file: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # cells of a notebook may hold commands
        return ast.Module([], [])


def source_line_of(eqn: JaxprEqn) -> SourceLine | None:
    """Return the line of the model that an equation comes from; None if it comes from a library only."""
    trace = eqn.source_info.traceback
    for frame in trace.frames if trace is not None else ():
        if frame.file_name == _DENSITIES:
            return None
        if not _is_library(frame.file_name):
            return SourceLine(frame.file_name, frame.line_num)
    return None


def called(eqn: JaxprEqn) -> str:
    """Return the name of the library function that the user called for an operation; empty if unknown."""
    name = ""
    trace = eqn.source_info.traceback
    for frame in trace.frames if trace is not None else ():
        if not _is_library(frame.file_name):
            break
        function = frame.function_name.rpartition(".")[2]
        name = name if function in _WRAPPERS else function.strip("_")
    return name


def picks(function: str) -> bool:
    """Return whether a library function is a lookup itself, rather than one that uses lookups, as `jnp.nonzero` does.

    The latter use invalid indices on purpose, so that JAX drops the updates.
    """
    return function in (*_SUBSCRIPTS, *_METHODS) or function.startswith("dynamic_") or counts_from_zero(function)


def counts_from_zero(function: str) -> bool:
    """Return whether a lookup does not count negative numbers from the end."""
    return function == "bincount" or function.startswith(("segment_", "gather", "scatter"))


_WRAPPERS = ("reraise_with_filtered_traceback", "cache_miss", "_python_pjit_helper")
_SUBSCRIPTS = ["op", "getitem", "rewriting_take", "take", "take_along_axis"]  # `w[g]` calls `op`
_METHODS = [
    "get",
    "set",
    "add",
    "subtract",
    "mul",
    "multiply",
    "divide",
    "power",
    "min",
    "max",
    "apply",
]  # of `w.at[g]`
