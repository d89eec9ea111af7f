"""Key of the values that a program reads besides its arguments: globals, and values that its functions close over.

A compiled program contains these values as they were at its trace. The key changes if a new trace would find others.
"""

from __future__ import annotations

from collections.abc import Hashable

from phalanx.jaxprs.canonical import Form, form_of
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


def _form(whole: TracedProgram) -> Form | None:
    variables = [
        (name, v.observed, v.axes, type(v.distribution).__qualname__, getattr(v.distribution, "block", None))
        for name, v in whole.variables.items()
    ]
    return form_of(whole.at_zero, variables, list(whole.position), list(whole.terms), whole.start)
