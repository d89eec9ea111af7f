"""Where in the user's code an exception came from, read off its traceback."""

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

OURS = str(Path(__file__).parents[1])
"""Phalanx itself."""

LIBRARIES = ("jax", "jaxlib", "numpyro", "numpy", "scipy", "blackjax", "flax", "optax", "equinox")
"""What raises errors on a user's behalf. Their frames, and those of Python's own library, are not the user's code."""


_TO_TARGETS = ("STORE", "UNPACK")
"""Instructions of which Python knows the targets alone, and not what is to be put there."""


@cache
def _foreign() -> tuple[str, ...]:
    specs = [find_spec(name) for name in LIBRARIES]
    found = [folder for spec in specs if spec is not None for folder in spec.submodule_search_locations or ()]
    return (*found, OURS, "<frozen")


_PYTHON = sysconfig.get_paths()["stdlib"]


@dataclass(frozen=True)
class Place:
    """A line of the user's code, at which an exception was raised or went through.

    Attributes:
        traceback: the entry of the traceback.
    """

    traceback: TracebackType

    def __str__(self) -> str:
        return f"line {self.line} of {self.frame.f_code.co_filename}"

    @property
    def frame(self) -> FrameType:
        """The function's frame, with its local values."""
        return self.traceback.tb_frame

    @property
    def line(self) -> int:
        """The line's number."""
        return self.traceback.tb_lineno

    @property
    def text(self) -> str:
        """The line."""
        return linecache.getline(self.frame.f_code.co_filename, self.line, self.frame.f_globals).strip()

    @cached_property
    def code(self) -> str:
        """The expression that failed, or the line where Python does not know which."""
        positions = self.frame.f_code.co_positions()
        begin, end, left, right = next(itertools.islice(positions, self.traceback.tb_lasti // 2, None), (None,) * 4)
        if begin is None or begin != end or left is None or right is None or self.operation.startswith(_TO_TARGETS):
            return self.text
        line = linecache.getline(self.frame.f_code.co_filename, begin, self.frame.f_globals)
        return line.encode()[left:right].decode(errors="replace") or self.text

    @property
    def operation(self) -> str:
        """The instruction of Python's that was at work."""
        return dis.opname[self.frame.f_code.co_code[self.traceback.tb_lasti]]

    @cached_property
    def names(self) -> list[str]:
        """Names in the failing expression."""
        try:
            return _names(ast.parse(textwrap.dedent(self.code)))
        except SyntaxError:
            return []

    def value(self, name: str) -> Any:
        """What a name stands for there."""
        return self.frame.f_locals.get(name, self.frame.f_globals.get(name))

    def arrays(self) -> dict[str, Any]:
        """Arrays in the failing expression, by name."""
        values = {name: self.value(name) for name in self.names}
        return {name: value for name, value in values.items() if isinstance(value, jax.Array | np.ndarray | np.generic)}

    def strings(self) -> dict[str, str]:
        """Return the strings in the failing expression, by name."""
        values = {name: self.value(name) for name in self.names}
        return {name: value for name, value in values.items() if isinstance(value, str)}

    def sources(self, known: dict[int, str]) -> list[str]:
        """Which of the `known` objects, described by their id, the failing expression was computed from."""
        found, seen, left = [], set(), list(self.names)
        while left:
            name = left.pop(0)
            if name in seen:
                continue
            seen.add(name)
            leaves = jax.tree.leaves(self._meant(self.frame.f_locals.get(name)))
            described = [known[id(leaf)] for leaf in leaves if id(leaf) in known]
            found += [words for words in described if words not in found]
            left += [] if described else self._assigned.get(name, [])
        return found

    def _meant(self, value: Any) -> Any:
        """Of a dict the entries that the expression names."""
        if not isinstance(value, dict):
            return value
        return {k: v for k, v in value.items() if repr(k) in self.code or f'"{k}"' in self.code} or value

    @cached_property
    def _assigned(self) -> dict[str, list[str]]:
        """Names that each name of the function was computed from, in the lines before."""
        try:
            lines, first = getsourcelines(self.frame.f_code)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, SyntaxError, TypeError):
            return {}
        found: dict[str, list[str]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AugAssign) and node.lineno + first - 1 < self.line:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in itertools.chain.from_iterable(map(_names, targets)):
                    found.setdefault(target, []).extend(_names(node.value))
        return found


def place_of(error: BaseException) -> Place | None:
    """The innermost line of the user's code that an exception went through; None when there is none."""
    entries = [entry for entry in _entries(error) if not _is_foreign(entry)]
    return Place(entries[-1]) if entries else None


def raised_by_us(error: BaseException) -> bool:
    """Whether Phalanx itself raised it."""
    return _file(_entries(error)[-1]).startswith(OURS)


def raised_by_library(error: BaseException) -> bool:
    """Whether JAX, NumPy or NumPyro raised it, of what they were given; as far as it is one of their kinds."""
    if not isinstance(error, TypeError | ValueError | IndexError | NotImplementedError):
        return False
    last = _entries(error)[-1]
    # JAX takes its own frames away, and NumPy's are not Python's; what the user raised, the instruction tells
    return _is_foreign(last) or Place(last).operation != "RAISE_VARARGS"


def _entries(error: BaseException) -> list[TracebackType]:
    found, entry = [], error.__traceback__
    while entry is not None:
        found.append(entry)
        entry = entry.tb_next
    return found


def _is_foreign(entry: TracebackType) -> bool:
    file = _file(entry)
    return file.startswith(_foreign()) or (file.startswith(_PYTHON) and "-packages" not in file)


def _file(entry: TracebackType) -> str:
    return entry.tb_frame.f_code.co_filename


def _names(tree: ast.AST) -> list[str]:
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
