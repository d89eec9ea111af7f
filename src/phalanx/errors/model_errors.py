"""Errors in a user's function that JAX traces, with the file and line, the variable involved, and the remedy.

While a program is traced its values are not numbers yet. Operations of Python or NumPy that need numbers raise errors
about tracers and about our files. This module turns them into errors about the user's function; it keeps the user's own
exceptions, and adds a note with the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.errors import UnexpectedTracerError

from phalanx.errors.remedies import LEAKED, NO_GRADIENT, is_untraceable, remedy, remedy_of_gradient
from phalanx.errors.user_code import CodeLine, raised_by_library, raised_by_phalanx, user_line

_TRACERS = re.compile(r"\b\w*Tracer\b(\([^()]*\))?")


class ModelError(TypeError, ValueError):
    """Error in a user's function: it cannot be traced, or shapes do not match. The message names the line."""


@contextmanager
def model_errors(
    function: object, variables: Mapping[str, Any] | None = None, arguments: Mapping[str, object] | None = None
) -> Iterator[None]:
    """Turn errors of the `with` block, in which `function` is called, into errors about that function.

    Args:
        function: the user's function, for its name.
        variables: random variables sampled so far, by name; read when an error occurs.
        arguments: arguments of the function, by name.

    Raises:
        ModelError: from errors of JAX, NumPy and NumPyro.
    """
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        line = user_line(error)
        if line is None or raised_by_phalanx(error):
            raise
        name = _name(function)
        if not is_untraceable(error) and not raised_by_library(error):
            error.add_note(f"In {name}, {line}{_after(variables)}.")
            raise
        raise ModelError(_message(error, name, line, variables or {}, arguments or {})) from error


@contextmanager
def gradient_errors() -> Iterator[None]:
    """Turn errors of the `with` block, which differentiates a log density, into errors about a line of the model.

    Raises:
        ModelError: where JAX has no reverse mode, as for loops of unknown length.
    """
    try:
        yield
    except ModelError:
        raise
    except ValueError as error:
        if not NO_GRADIENT.search(str(error)):
            raise
        # JAX raises it after the model has returned, and attaches the stack of the operation
        lines = [user_line(origin) for origin in (error, error.__cause__, error.__context__) if origin is not None]
        line = next((line for line in reversed(lines) if line is not None), None)
        where = "." if line is None else f" at {line}: {line.code!r}." if line.code else f" at {line}."
        what = str(error).partition(". ")[0]
        raise ModelError(
            f"The log density has no gradient{where} JAX says: {what}. {remedy_of_gradient(what)}"
        ) from error


def asks_for_values(error: ModelError) -> bool:
    """Return whether the function needed the value of a tracer."""
    cause = error.__cause__
    return isinstance(cause, Exception) and is_untraceable(cause) and not isinstance(cause, UnexpectedTracerError)


def asks_for_whole_numbers(error: Exception) -> bool:
    """Return whether JAX refused real numbers as indices."""
    cause = error.__cause__ if isinstance(error, ModelError) else error
    return isinstance(cause, TypeError | ValueError) and "integer" in str(cause)


def has_no_sampler(error: Exception) -> bool:
    """Return whether a distribution refused to be drawn from, as improper priors do."""
    return any(isinstance(one, NotImplementedError) for one in (error, error.__cause__, error.__context__))


def check_nothing_leaked(function: object, constants: Sequence[object]) -> None:
    """Raise if a function has read values of an earlier trace.

    Args:
        function: the user's function.
        constants: values that its trace has read from outside.

    Raises:
        ModelError: with the remedy.
    """
    # Inside of a trace by the user, tracers of that trace are valid, and even constants are tracers.
    alone = not isinstance(jnp.zeros(()), Tracer)
    if alone and any(isinstance(value, Tracer) for value in constants):
        raise ModelError(f"{_name(function)} reads a value of an earlier call. {LEAKED}")


def _name(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _message(
    error: Exception, name: str, line: CodeLine, variables: Mapping[str, Any], arguments: Mapping[str, object]
) -> str:
    begin = f"{name}, {line}: {line.code!r}" if line.code else f"{name}, {line}"
    # Report strings among the data, which may be meant as numbers, but no others: names of variables are strings, too.
    strings = [f"{n} is the string {value!r}" for n, value in line.strings().items() if arguments.get(n) is value]
    is_of_shapes = not isinstance(error, TypeError | IndexError) or "shapes" in str(error)
    if not is_of_shapes and (objects := _objects_among(line, arguments)):
        return f"{begin} cannot be computed: {objects}{_last(variables)}"
    if is_untraceable(error) and strings:
        return f"{begin} cannot be computed: {' and '.join(strings)}, and not a number.{_last(variables)}"
    if is_untraceable(error):
        values = _origins(line, variables, arguments)
        came = "" if isinstance(error, UnexpectedTracerError) else f" {_known_later(values)}"
        return f"{begin} cannot be computed.{came} {remedy(error, line)}{'' if values else _last(variables)}"
    shapes = [f"{n} has shape {value.shape}" for n, value in line.arrays().items()]
    what = _TRACERS.sub("array", str(error).strip().partition("\n")[0]).rstrip(".:")
    facts = [", ".join(shapes), *strings] if shapes else strings
    here = f" Here {', and '.join(facts)}." if facts else ""
    return f"{begin}: {what}.{here} {remedy(error, line)}".rstrip() + _last(variables)


def _objects_among(line: CodeLine, arguments: Mapping[str, object]) -> str:
    """Return sentences on an argument in the failing expression that is, or lists, words or dates; "" without one."""
    for name in line.names:
        value = line.value(name)
        if value is None or isinstance(value, str) or arguments.get(name) is not value:
            continue
        objects = [leaf for leaf in jax.tree.leaves(value) if isinstance(leaf, str | bytes | date | timedelta)]
        if not objects:
            continue
        several = isinstance(value, list | tuple)
        what = f"a {type(value).__name__} of objects such as {objects[0]!r}" if several else repr(objects[0])
        what = f"the argument {name!r} is {what}, and not {'of numbers' if several else 'a number'}."
        if isinstance(objects[0], date | timedelta):
            return f"{what} Give the time since one of them, in days."
        return (
            f"{what} Give words as a pandas.Categorical, whose levels the model has as numbers 0, 1, ..., or as "
            f"np.unique({name}, return_inverse=True)[1]."
        )
    return ""


def _known_later(values: list[str]) -> str:
    what = ", ".join(values) if values else "a part of it"
    has = "have" if len(values) > 1 else "has"
    return (
        f"It needs a number, but {what} {has} no value yet: the function is traced once, for all values of variables "
        f"and arrays."
    )


def _origins(line: CodeLine, variables: Mapping[str, Any], arguments: Mapping[str, object]) -> list[str]:
    """Return the variables and arguments that the failing expression was computed from."""
    arguments_by_id = {
        id(leaf): f"the argument {key!r}" for key, tree in arguments.items() for leaf in jax.tree.leaves(tree)
    }
    variables_by_id = {id(variable.value): f"the variable {key!r}" for key, variable in variables.items()}
    return line.sources({**arguments_by_id, **variables_by_id})


def _after(variables: Mapping[str, Any] | None) -> str:
    return f", after the variable {list(variables)[-1]!r}" if variables else ""


def _last(variables: Mapping[str, Any]) -> str:
    return f" (The last variable sampled: {list(variables)[-1]!r}.)" if variables else ""
