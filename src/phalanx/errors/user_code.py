"""Line of the user's code that an exception came from, with the names and values in it, from the traceback."""

from __future__ import annotations

import ast
import dis
import itertools
import linecache
import sysconfig
import textwrap
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from inspect import getsourcelines
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import jax
import numpy as np

PHALANX = str(Path(__file__).parents[1])
"""Folder of Phalanx."""

LIBRARIES = ("jax", "jaxlib", "numpyro", "numpy", "scipy", "blackjax", "flax", "optax", "equinox")
"""Libraries that raise errors about their arguments; their frames and those of Python's own are not the user's code."""


_TO_TARGETS = ("STORE", "UNPACK")
"""Instructions whose positions in the code are those of the targets, without the values assigned to them."""


@cache
def _library_folders() -> tuple[str, ...]:
    specs = [find_spec(name) for name in LIBRARIES]
    folders = [folder for spec in specs if spec is not None for folder in spec.submodule_search_locations or ()]
    return (*folders, PHALANX, "<frozen")


_PYTHON = sysconfig.get_paths()["stdlib"]


@dataclass(frozen=True)
class CodeLine:
    """A line of the user's code that raised an exception or that an exception passed through.

    Attributes:
        traceback: the entry of the traceback.
    """

    traceback: TracebackType

    def __str__(self) -> str:
        return f"line {self.number} of {self.frame.f_code.co_filename}"

    @property
    def frame(self) -> FrameType:
        """Frame of the function, with its local values."""
        return self.traceback.tb_frame

    @property
    def number(self) -> int:
        """Number of the line."""
        return self.traceback.tb_lineno

    @property
    def text(self) -> str:
        """Text of the line."""
        return linecache.getline(self.frame.f_code.co_filename, self.number, self.frame.f_globals).strip()

    @cached_property
    def code(self) -> str:
        """Expression that failed, or the line if Python does not know the expression."""
        positions = self.frame.f_code.co_positions()
        begin, end, column, right = next(itertools.islice(positions, self.traceback.tb_lasti // 2, None), (None,) * 4)
        if begin is None or begin != end or column is None or right is None or self.operation.startswith(_TO_TARGETS):
            return self.text
        line = linecache.getline(self.frame.f_code.co_filename, begin, self.frame.f_globals)
        return line.encode()[column:right].decode(errors="replace") or self.text

    @property
    def operation(self) -> str:
        """Name of the failing bytecode instruction."""
        return dis.opname[self.frame.f_code.co_code[self.traceback.tb_lasti]]

    @cached_property
    def names(self) -> list[str]:
        """Names in the failing expression."""
        try:
            return _names(ast.parse(textwrap.dedent(self.code)))
        except SyntaxError:
            return []

    def value(self, name: str) -> Any:
        """Return the value of a name at the line."""
        return self.frame.f_locals.get(name, self.frame.f_globals.get(name))

    def arrays(self) -> dict[str, Any]:
        """Return the arrays in the failing expression, by name."""
        values = {name: self.value(name) for name in self.names}
        return {name: value for name, value in values.items() if isinstance(value, jax.Array | np.ndarray | np.generic)}

    def strings(self) -> dict[str, str]:
        """Return the strings in the failing expression, by name."""
        values = {name: self.value(name) for name in self.names}
        return {name: value for name, value in values.items() if isinstance(value, str)}

    def sources(self, names: dict[int, str]) -> list[str]:
        """Return the descriptions of the objects in `known`, by id, that the failing expression was computed from."""
        sources = []
        visited = set()
        pending = list(self.names)
        while pending:
            name = pending.pop(0)
            if name in visited:
                continue
            visited.add(name)
            leaves = jax.tree.leaves(self._named_entries(self.frame.f_locals.get(name)))
            descriptions = [names[id(leaf)] for leaf in leaves if id(leaf) in names]
            sources += [description for description in descriptions if description not in sources]
            pending += [] if descriptions else self._assigned.get(name, [])
        return sources

    def _named_entries(self, value: object) -> Any:
        """Return the entries of a dict that the expression names, or all; another value is returned as it is."""
        if not isinstance(value, dict):
            return value
        return {k: v for k, v in value.items() if repr(k) in self.code or f'"{k}"' in self.code} or value

    @cached_property
    def _assigned(self) -> dict[str, list[str]]:
        """Names that each name of the function was computed from, in the lines above."""
        try:
            lines, first = getsourcelines(self.frame.f_code)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, SyntaxError, TypeError):
            return {}
        assigned: dict[str, list[str]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AugAssign) and node.lineno + first - 1 < self.number:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in itertools.chain.from_iterable(map(_names, targets)):
                    assigned.setdefault(target, []).extend(_names(node.value))
        return assigned


def user_line(error: BaseException) -> CodeLine | None:
    """Return the innermost line of the user's code that an exception passed through, or None."""
    entries = [entry for entry in _entries(error) if not _is_library(entry)]
    return CodeLine(entries[-1]) if entries else None


def raised_by_phalanx(error: BaseException) -> bool:
    """Return whether Phalanx itself raised an error."""
    return _file(_entries(error)[-1]).startswith(PHALANX)


def raised_by_library(error: BaseException) -> bool:
    """Return whether JAX, NumPy or NumPyro raised an error about their arguments, as far as its type allows."""
    if not isinstance(error, TypeError | ValueError | IndexError | NotImplementedError):
        return False
    last = _entries(error)[-1]
    # JAX hides its own frames, and NumPy's are not Python's: only a raise statement shows that the user raised it
    return _is_library(last) or CodeLine(last).operation != "RAISE_VARARGS"


def _entries(error: BaseException) -> list[TracebackType]:
    entries = []
    entry = error.__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    return entries


def _is_library(entry: TracebackType) -> bool:
    file = _file(entry)
    return file.startswith(_library_folders()) or (file.startswith(_PYTHON) and "-packages" not in file)


def _file(entry: TracebackType) -> str:
    return entry.tb_frame.f_code.co_filename


def _names(tree: ast.AST) -> list[str]:
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
