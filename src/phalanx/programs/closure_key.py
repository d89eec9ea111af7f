"""Key of the values that a program reads besides its arguments: globals, and values that its functions close over.

A compiled program contains these values as they were at its trace. The key changes if a new trace would find others.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from inspect import isfunction, ismethod
from typing import Any

from phalanx.jaxprs.canonical import LIBRARIES, Form, form_of, is_of_a_library
from phalanx.programs.traced_program import TracedProgram


def captured(whole: TracedProgram, differentiated: bool = True) -> Hashable | None:
    """Return a key that equal traces share; None if the trace cannot be compared.

    Args:
        whole: the trace.
        differentiated: True if the gradient is used: only its trace contains derivatives written by users.
    """
    found = _form(whole)
    if found is None or not found.rules or not differentiated:
        return found
    gradient = form_of(whole.gradient())
    return None if gradient is None else (found, gradient)


def captured_words(whole: TracedProgram) -> str:
    """Return a digest of the trace, equal in all processes; empty if the trace cannot be compared."""
    found = _form(whole)
    return "" if found is None else found.digest.hex()


@dataclass(frozen=True)
class OfThisProcess:
    """Part of a key that other processes cannot compare."""


def draws_key(whole: TracedProgram) -> Hashable:
    """Return a key of the draws and supports of the model's distributions, which a trace of densities leaves out.

    The code of a user's class may change between processes, so that its key is that of this process.
    """
    return None if all(_is_of_libraries(v.distribution) for v in whole.variables.values()) else OfThisProcess()


def _is_of_libraries(value: Any) -> bool:
    """Return whether a distribution, and all that it is made of, has code of libraries alone."""
    if isfunction(value) or ismethod(value):
        return is_of_a_library(value)
    if isinstance(value, tuple | list | dict):
        return all(map(_is_of_libraries, value.values() if isinstance(value, dict) else value))
    owner = type(value).__module__.split(".")[0]
    if owner in ("numpyro", "phalanx"):
        return all(map(_is_of_libraries, getattr(value, "__dict__", {}).values()))
    return owner in ("builtins", "numpy", "weakref", *LIBRARIES)  # NumPyro's transforms refer to their inverses


def _form(whole: TracedProgram) -> Form | None:
    variables = [
        (name, v.observed, v.axes, type(v.distribution).__qualname__, getattr(v.distribution, "block", None))
        for name, v in whole.variables.items()
    ]
    return form_of(whole.at_zero, variables, list(whole.position), list(whole.terms), whole.start)
