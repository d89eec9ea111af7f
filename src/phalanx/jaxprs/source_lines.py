"""Lines of the user's: where in a model an operation comes from, and what is written there."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpyro

_INSTALLED = (Path(str(module.__file__)).parent for module in (jax, jaxlib, numpyro))
_HERE = Path(__file__).parents[1]
_LIBRARIES = tuple(str(folder) for folder in (*_INSTALLED, _HERE))
_DENSITIES = str(_HERE / "programs" / "unconstrained.py")
"""What is called from here outside of the model is a distribution's density, and its support has a check of its own."""


@dataclass(frozen=True)
class Place:
    """A line of the user's: the file, its number, and the statement that it is part of."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"

    def _nodes(self, kind: type[Any]) -> list[Any]:
        nodes: list[Any] = [node for node in ast.walk(_parsed(self.file)) if isinstance(node, kind)]
        return [node for node in nodes if node.lineno <= self.line <= (node.end_lineno or node.lineno)]

    def says_mode(self) -> bool:
        """Whether a call there says what to do with indices that are outside."""
        return any(word.arg in ("mode", "fill_value") for call in self._nodes(ast.Call) for word in call.keywords)

    def expression(self, names: Sequence[str]) -> str:
        """What picks, as the user wrote it: the one subscript that has one of the names in it, or the line."""
        subscripts = self._nodes(ast.Subscript)
        words = [ast.unparse(node) for node in subscripts if _mentions(node.slice, names)] or [
            ast.unparse(node) for node in subscripts
        ]
        return words[0] if len(words) == 1 else linecache.getline(self.file, self.line).strip() or "an index"


@cache
def _parsed(file: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # cells of a notebook may hold commands
        return ast.Module([], [])


def _mentions(node: ast.AST, names: Sequence[str]) -> bool:
    return any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(node))


def place_of(eqn: Any) -> Place | None:
    """The line of the model; None where an operation is not the model's own."""
    trace = eqn.source_info.traceback
    for frame in trace.frames if trace is not None else ():
        if frame.file_name == _DENSITIES:
            return None
        if not frame.file_name.startswith(_LIBRARIES):
            return Place(frame.file_name, frame.line_num)
    return None


def called(eqn: Any) -> str:
    """The function of a library through which the user came to an operation, as far as it can be told."""
    name = ""
    trace = eqn.source_info.traceback
    for frame in trace.frames if trace is not None else ():
        if not frame.file_name.startswith(_LIBRARIES):
            break
        function = frame.function_name.rpartition(".")[2]
        name = name if function in _WRAPPERS else function.strip("_")
    return name


def picks(function: str) -> bool:
    """Whether a function is a lookup that the user asked for, not one of whose steps are, as those of `jnp.nonzero`.

    Such steps point outside on purpose, for JAX to drop what they write there.
    """
    return function in (*_SUBSCRIPTS, *_METHODS) or function.startswith("dynamic_") or counts_from_zero(function)


def counts_from_zero(function: str) -> bool:
    """Whether a lookup takes negative numbers as they are, not as counted from the end."""
    return function == "bincount" or function.startswith(("segment_", "gather", "scatter"))


_WRAPPERS = ("reraise_with_filtered_traceback", "cache_miss", "_python_pjit_helper")
_SUBSCRIPTS = ["op", "getitem", "rewriting_take", "take", "take_along_axis"]  # `op` is what `w[g]` calls
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
