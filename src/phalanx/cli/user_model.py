"""Functions in a user's Python file, named `FILE.py:NAME`: a model, a kernel, a reducer, a check, a figure."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

MODULE = "phalanx_user_file"
"""Module name of the file: not its own name, since a file may be called `types.py`."""


def load(reference: str, what: str = "model") -> Callable[..., Any]:
    """Import a Python file and return the function whose name follows the colon.

    The file runs as an import does, without the block under `if __name__ == "__main__":`. It may import its neighbours.

    Args:
        reference: the file and the name of a function in it, e.g. "models.py:regression".
        what: role of the function, for messages.

    Returns:
        The function.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if `reference` has another form, the file fails (the message names the line), or lacks the name.
        TypeError: if the name belongs to an object that cannot be called.
    """
    path, name = split_reference(reference, what)
    if not path.is_file():
        why = "it is a folder" if path.is_dir() else f"it does not exist in {path.absolute().parent}"
        raise FileNotFoundError(f"{what} {reference!r}: {path} cannot be read: {why}.")
    module = _import(path)
    functions = ", ".join(_functions(module))
    there = f"Its functions: {functions}." if functions else "It defines no functions."
    if not hasattr(module, name):
        raise ValueError(f"{what} {reference!r}: {path} has no {name!r}. {there}")
    function = getattr(module, name)
    if not callable(function):
        raise TypeError(f"{what} {reference!r}: {name!r} is not a function but a {type(function).__name__}. {there}")
    return function


def is_reference(word: str) -> bool:
    """Return whether a word has the form `FILE.py:NAME`."""
    return ".py" in word or ":" in word


def split_reference(reference: str, what: str = "model") -> tuple[Path, str]:
    """Split `FILE.py:NAME` at its last colon."""
    file, colon, name = reference.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise ValueError(f"{what} {reference!r}: expected FILE.py:NAME, such as models.py:regression.")
    return Path(file).expanduser(), name


@contextmanager
def naming_lines_of(path: Path) -> Iterator[None]:
    """Name the line of the user's file in an error that comes from the file or passes through it.

    Raises:
        ValueError: in place of the error.
    """
    try:
        yield
    except Exception as error:
        line = _line_in(path, error)
        if line is None:
            raise
        first, *_ = str(error).strip().splitlines() or [""]
        raise ValueError(f"{path}, line {line}: {type(error).__name__}: {first}") from error


def _import(path: Path) -> ModuleType:
    spec = spec_from_file_location(MODULE, path.absolute())
    assert spec is not None and spec.loader is not None, "a name that ends in .py has a loader"
    module = module_from_spec(spec)
    sys.modules[MODULE] = module  # dataclasses resolve their annotations there
    sys.path.insert(0, str(path.absolute().parent))
    with naming_lines_of(path):
        spec.loader.exec_module(module)
    return module


def _functions(module: ModuleType) -> list[str]:
    return [n for n, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == MODULE]


def _line_in(path: Path, error: Exception) -> int | None:
    """Return the last line of the file in the traceback of an error."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).name == path.name:
        return error.lineno
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == path.absolute()]
    return lines[-1] if lines else None
