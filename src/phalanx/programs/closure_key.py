"""Key of the values that a program reads besides its arguments: globals, and values that its functions close over.

A compiled program contains these values as they were at its trace. The key changes if a new trace would find others.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from inspect import isfunction, ismethod
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from phalanx.jaxprs.canonical import LIBRARIES, Form, form_of, is_of_a_library, is_program, operations_of
from phalanx.jaxprs.source_lines import source_line_of
from phalanx.jaxprs.walking import all_equations, constants_within
from phalanx.programs.traced_program import TracedProgram


def captured(whole: TracedProgram, differentiated: bool = True) -> Hashable | None:
    """Return a key that equal traces share; None if the trace cannot be compared.

    Args:
        whole: the trace.
        differentiated: True if the gradient is used: only its trace contains derivatives written by users.
    """
    form = _form(whole)
    if form is None or not form.rules or not differentiated:
        return form
    gradient = form_of(whole.gradient())
    return None if gradient is None else (form, gradient)


def captured_words(whole: TracedProgram) -> str:
    """Return a digest of the trace, equal in all processes; empty if the trace cannot be compared."""
    form = _form(whole)
    return "" if form is None else form.digest.hex()


@dataclass(frozen=True)
class OfThisProcess:
    """Part of a key that other processes cannot compare."""


def check_function(whole: TracedProgram) -> None:
    """Raise if traces of a program keep computing with other constants: it draws random numbers or reads a clock.

    A single difference is no error: a setting of JAX may have changed since the first trace, or the program may cache a
    value. If the second trace differs from the first, each of up to `FURTHER_TRACES` is compared with the one before.

    Raises:
        ValueError: naming the line with the first constant that differs, or the variable if no line of the user's does.
    """
    if any(isinstance(value, Tracer) for value in constants_within(whole.at_zero)):  # of a trace of the user's own
        return
    again = whole.again()
    if not _is_other(whole, again):
        return
    for _ in range(FURTHER_TRACES):
        last = whole.again()
        if _is_other(again, last):
            raise ValueError(
                f"The model {getattr(whole.program, '__name__', whole.program)} is another one each time it runs"
                f"{_first_difference(again, last)}: it computes with other constants. Remove random numbers of NumPy "
                f"or Python, counters and clocks from it: pass them as data, or sample them with phx.sample."
            )
        again = last


FURTHER_TRACES = 4
"""Number of traces after a second one that differs: two may agree by chance if a branch is taken at random."""


def _is_other(one: TracedProgram, other: TracedProgram) -> bool:
    """Return whether two traces of a program with the same variables and shapes compute with other constants.

    A program with other variables, or other shapes, is refused where its density is traced.
    """
    if operations_of(one.at_zero) == operations_of(other.at_zero):
        return False
    shapes = [jax.tree.map(jnp.shape, trace.position) for trace in (one, other)]
    return [*one.terms] == [*other.terms] and shapes[0] == shapes[1]


def _first_difference(one: TracedProgram, other: TracedProgram) -> str:
    """Return words on the first line of a user's, otherwise the first variable, at which two traces differ."""
    pairs = zip(all_equations(one.at_zero), all_equations(other.at_zero), strict=False)
    constants = [_constants(one.at_zero), _constants(other.at_zero)]
    differing = (mine for mine, theirs in pairs if _operation(mine, constants[0]) != _operation(theirs, constants[1]))
    if (line := next(filter(None, map(source_line_of, differing)), None)) is not None:
        return f", by line {line.line} of {line.file}"
    name = next(_variables_that_differ(one, other), None)
    return "" if name is None else f", by the variable {name!r}"


def _constants(program: ClosedJaxpr) -> dict[Any, Any]:
    return dict(zip(program.jaxpr.constvars, program.consts, strict=True))


def _operation(equation: JaxprEqn, constants: Mapping[Any, Any]) -> bytes:
    """Return a digest of an equation with the constants that it reads, without the programs that it calls."""
    operands = [atom.val if isinstance(atom, Literal) else constants.get(atom) for atom in equation.invars]
    params = {name: value for name, value in equation.params.items() if not is_program(value)}
    return operations_of(equation.primitive.name, operands, dict(sorted(params.items())))


def _variables_that_differ(one: TracedProgram, other: TracedProgram) -> Iterator[str]:
    """Yield the names of variables whose densities, and then values, depend on constants that differ."""
    constants = [_constants(one.at_zero), _constants(other.at_zero)]
    triples = zip(one.at_zero.jaxpr.constvars, one.at_zero.consts, other.at_zero.consts, strict=False)
    differing = {variable for variable, mine, theirs in triples if operations_of(mine) != operations_of(theirs)}
    for mine, theirs in zip(one.at_zero.eqns, other.at_zero.eqns, strict=False):
        calls = [
            operations_of([value for value in equation.params.values() if is_program(value)])
            for equation in (mine, theirs)
        ]
        reads = any(not isinstance(atom, Literal) and atom in differing for atom in mine.invars)
        if reads or calls[0] != calls[1] or _operation(mine, constants[0]) != _operation(theirs, constants[1]):
            differing.update(mine.outvars)
    outputs, _ = jax.tree_util.tree_flatten_with_path((one.position, one.terms, one.values))
    for (path, _), mine, theirs in zip(outputs, one.at_zero.jaxpr.outvars, other.at_zero.jaxpr.outvars, strict=False):
        literals = [operations_of(atom.val) for atom in (mine, theirs) if isinstance(atom, Literal)]
        if len({*literals}) > 1 or (not isinstance(mine, Literal) and mine in differing):
            key = path[1].key
            yield key[0] if isinstance(key, tuple) else key


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
