"""Key of the values that a program reads besides its arguments: globals, and values that its functions close over.

A compiled program contains these values as they were at its trace. The key changes if a new trace would find others.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from inspect import isfunction, ismethod
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from phalanx.jaxprs.canonical import LIBRARIES, Form, form_of, is_of_a_library
from phalanx.jaxprs.source_lines import source_line_of
from phalanx.jaxprs.walking import all_equations, constants_within
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


def check_function(whole: TracedProgram) -> None:
    """Raise if each trace of a program computes with other constants: it draws random numbers or reads a clock.

    Where a second trace differs, a third one is compared with it: a setting of JAX or NumPyro that was changed after
    the first trace makes one other program, not another one each time.

    Raises:
        ValueError: naming the line with the first constant that differs.
    """
    if any(isinstance(value, Tracer) for value in constants_within(whole.at_zero)):  # of a trace of the user's own
        return
    again = whole.again()
    if not _is_other(whole, again):
        return
    third = whole.again()
    if not _is_other(again, third):
        return
    line = next(filter(None, map(source_line_of, _differing(again.at_zero, third.at_zero))), None)
    raise ValueError(
        f"The model {getattr(whole.program, '__name__', whole.program)} is another one each time it runs"
        f"{'' if line is None else f', by line {line.line} of {line.file}'}: it computes with other constants. Remove "
        f"random numbers of NumPy or Python, counters and clocks from it: pass them as data, or sample them with "
        f"phx.sample."
    )


def _is_other(one: TracedProgram, other: TracedProgram) -> bool:
    """Return whether two traces of a program with the same variables and shapes compute with other constants.

    A program with other variables, or other shapes, is refused where its density is traced.
    """
    forms = form_of(one.at_zero), form_of(other.at_zero)
    if None in forms or forms[0] == forms[1]:
        return False
    shapes = [jax.tree.map(jnp.shape, trace.position) for trace in (one, other)]
    return [*one.terms] == [*other.terms] and shapes[0] == shapes[1]


def _differing(program: ClosedJaxpr, other: ClosedJaxpr) -> Iterator[JaxprEqn]:
    """Yield the equations that read other constants than those of another trace."""
    consts = [dict(zip(p.jaxpr.constvars, p.consts, strict=True)) for p in (program, other)]
    for mine, theirs in zip(all_equations(program), all_equations(other), strict=False):
        values = [
            [atom.val if isinstance(atom, Literal) else known.get(atom) for atom in equation.invars]
            for equation, known in zip((mine, theirs), consts, strict=True)
        ]
        if form_of(values[0]) != form_of(values[1]) or mine.primitive is not theirs.primitive:
            yield mine


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
