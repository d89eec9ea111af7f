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

_LIBRARIES = tuple(
    str(folder)
    for folder in (*(Path(str(m.__file__)).parent for m in (jax, jaxlib, numpyro)), Path(__file__).parents[1])
)
_DENSITIES = str(Path(__file__).with_name("unconstrained.py"))
"""What is called from here outside of the model is a distribution's density, and its support has a check of its own."""


@dataclass(frozen=True)
class Place:
    """A line of the user's: the file, its number, and the statement that it is part of."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"

    def statement(self) -> ast.stmt | None:
        """The innermost statement there."""
        found = None
        for node in ast.walk(_parsed(self.file)):
            if isinstance(node, ast.stmt) and node.lineno <= self.line <= (node.end_lineno or node.lineno):
                found = node if found is None or node.lineno >= found.lineno else found
        return found

    def says_mode(self) -> bool:
        """Whether the statement says what to do with indices that are outside."""
        statement = self.statement()
        calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)] if statement else []
        return any(keyword.arg in ("mode", "fill_value") for call in calls for keyword in call.keywords)

    def expression(self, names: Sequence[str]) -> str:
        """What picks, as the user wrote it: the one subscript that has one of the names in it, or the statement."""
        statement = self.statement()
        if statement is None:
            return linecache.getline(self.file, self.line).strip() or "an index"
        subscripts = [node for node in ast.walk(statement) if isinstance(node, ast.Subscript)]
        words = [ast.unparse(node) for node in subscripts]
        fitting = [w for w, node in zip(words, subscripts, strict=True) if _mentions(node.slice, names)] or words
        return fitting[0] if len(fitting) == 1 else ast.unparse(statement).splitlines()[0]


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
