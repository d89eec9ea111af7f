"""Captured values: what a program reads from outside of its arguments, globals and what its function closes over.

A compiled program keeps what was there when it was traced. Whoever keeps compiled programs must know when a new trace
would find something else.
"""

from __future__ import annotations

from collections.abc import Hashable

from phalanx.jaxprs.canonical import form_of
from phalanx.programs.traced_program import TracedProgram


def captured(whole: TracedProgram, differentiated: bool = True) -> Hashable | None:
    """What this trace of a program has found; None where that cannot be told, and equals nothing found before.

    Args:
        whole: the trace.
        differentiated: whether the program's gradient is used, too: derivatives that users write are no part of it.
    """
    variables = [
        (name, v.observed, v.axes, type(v.distribution).__qualname__, getattr(v.distribution, "block", None))
        for name, v in whole.variables.items()
    ]
    found = form_of(whole.at_zero, variables, list(whole.position), list(whole.terms), whole.start)
    if found is None or not found.rules or not differentiated:
        return found
    gradient = form_of(whole.gradient())
    return None if gradient is None else (found, gradient)
