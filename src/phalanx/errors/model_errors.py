"""Errors in a user's function that JAX traces, told of the function: file and line, variable, and what to do instead.

While a program is traced its values are no numbers yet. What Python or NumPy then cannot do with them ends in errors
that speak of tracers and of our files. Here they are told again; the user's own exceptions stay what they are, with a
note of where.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.errors import UnexpectedTracerError

from phalanx.errors.remedies import LEAKED, is_untraceable, remedy
from phalanx.errors.user_code import Place, place_of, raised_by_library, raised_by_us

_TRACERS = re.compile(r"\b\w*Tracer\b(\([^()]*\))?")


class ModelError(TypeError, ValueError):
    """A user's function does what cannot be traced, or what does not fit together; the message says where."""


@contextmanager
def model_errors(
    function: Any, variables: Mapping[str, Any] | None = None, arguments: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """Tell errors of the `with` block, in which `function` is called, as errors of that function.

    Args:
        function: the user's function, for its name.
        variables: random variables met so far, by name; looked at when something goes wrong.
        arguments: what the function is given, by name.

    Raises:
        ModelError: from JAX's, NumPy's and NumPyro's errors.
    """
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        place = place_of(error)
        if place is None or raised_by_us(error):
            raise
        name = _name(function)
        if not is_untraceable(error) and not raised_by_library(error):
            error.add_note(f"In {name}, {place}{_after(variables)}.")
            raise
        raise ModelError(_message(error, name, place, variables or {}, arguments or {})) from error


def asks_for_values(error: ModelError) -> bool:
    """Return whether the function asked for a number where there is none yet."""
    cause = error.__cause__
    return isinstance(cause, Exception) and is_untraceable(cause) and not isinstance(cause, UnexpectedTracerError)


def check_nothing_leaked(function: Any, constants: Sequence[Any]) -> None:
    """Refuse a function that has read values of an earlier trace of it.

    Args:
        function: the user's function.
        constants: what its trace has read from outside.

    Raises:
        ModelError: saying what to do.
    """
    # Within a trace of the user's own its values are alive, and what is computed there is one of them.
    alone = not isinstance(jnp.zeros(()), Tracer)
    if alone and any(isinstance(value, Tracer) for value in constants):
        raise ModelError(f"{_name(function)} reads a value of an earlier call. {LEAKED}")


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _message(
    error: Exception, name: str, place: Place, variables: Mapping[str, Any], arguments: Mapping[str, Any]
) -> str:
    begin = f"{name}, {place}: {place.code!r}" if place.code else f"{name}, {place}"
    # A name of a variable is a string, too, and in order; data that are one may be meant as numbers.
    words = [f"{n} is the string {value!r}" for n, value in place.strings().items() if arguments.get(n) is value]
    if is_untraceable(error) and words:
        return f"{begin} cannot be computed: {' and '.join(words)}, and not a number.{_last(variables)}"
    if is_untraceable(error):
        values = _origins(place, variables, arguments)
        came = "" if isinstance(error, UnexpectedTracerError) else f" {_known_later(values)}"
        return f"{begin} cannot be computed.{came} {remedy(error, place)}{'' if values else _last(variables)}"
    shapes = [f"{n} has shape {value.shape}" for n, value in place.arrays().items()]
    what = _TRACERS.sub("array", str(error).strip().partition("\n")[0]).rstrip(".:")
    facts = [", ".join(shapes), *words] if shapes else words
    here = f" Here {', and '.join(facts)}." if facts else ""
    return f"{begin}: {what}.{here} {remedy(error, place)}".rstrip() + _last(variables)


def _known_later(values: list[str]) -> str:
    what = ", ".join(values) if values else "a value in it"
    has = "have" if len(values) > 1 else "has"
    return (
        f"It asks for a number, and {what} {has} none yet: the function is traced once, for all values of variables "
        f"and arrays."
    )


def _origins(place: Place, variables: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[str]:
    """What the values in the failing expression come from: variables, and arguments."""
    given = {id(leaf): f"the argument {key!r}" for key, tree in arguments.items() for leaf in jax.tree.leaves(tree)}
    drawn = {id(variable.value): f"the variable {key!r}" for key, variable in variables.items()}
    return place.sources({**given, **drawn})


def _after(variables: Mapping[str, Any] | None) -> str:
    return f", after the variable {list(variables)[-1]!r}" if variables else ""


def _last(variables: Mapping[str, Any]) -> str:
    return f" (The last variable met: {list(variables)[-1]!r}.)" if variables else ""
