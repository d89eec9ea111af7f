"""Remedies for errors of tracing: the code to write instead, by the kind of error and the line that raised it."""

from __future__ import annotations

import re

from jax.errors import (
    ConcretizationTypeError,
    NonConcreteBooleanIndexError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerIntegerConversionError,
    UnexpectedTracerError,
)

from phalanx.errors.user_code import CodeLine

_UNTRACEABLE = (
    ConcretizationTypeError,
    NonConcreteBooleanIndexError,
    TracerArrayConversionError,
    TracerIntegerConversionError,
    UnexpectedTracerError,
)


def is_untraceable(error: Exception) -> bool:
    """Return True if an error reports that a traced value has no concrete number."""
    return isinstance(error, _UNTRACEABLE) or "sequences of concrete values" in str(error)


LEAKED = (
    "A value outlived the trace that it belongs to: it was kept in a global, a list or an object from an earlier call, "
    "or left jax.lax.scan, cond, jit or vmap as a side effect (phx.sample inside of one does so). Return values "
    "instead of keeping them, and call phx.sample outside, with one leading dimension for all steps."
)

_OUTSIDE = "compute it outside of the model and give it as data: whole numbers, strings and flags stay as they are."

_SIZES = ("unique", "nonzero", "where", "argwhere", "flatnonzero", "bincount", "repeat", "arange", "linspace", "zeros")
_SIZED = re.compile(rf"\bnp\.({'|'.join((*_SIZES, 'ones', 'full', 'eye', 'reshape', 'tile', 'split'))})\b|expand|plate")


def remedy(error: Exception, line: CodeLine) -> str:
    """Return advice on an error that a line raised; an empty string without advice."""
    if isinstance(error, UnexpectedTracerError):
        return LEAKED
    if isinstance(error, NonConcreteBooleanIndexError):
        return (
            "The entries that a mask selects determine a shape. Keep all and use jnp.where(mask, value, other); if the "
            "mask depends on data alone, select outside of the model."
        )
    if isinstance(error, TracerBoolConversionError):
        return _for_branch(line)
    if is_untraceable(error):
        return _for_number(error, line)
    return _for_misuse(str(error))


def _for_branch(line: CodeLine) -> str:
    if line.text.startswith("while"):
        return "Use jax.lax.fori_loop, or jax.lax.while_loop where no gradient is needed (see phx.rwmh)."
    if re.search(r"\b(min|max|sorted)\(", line.code):
        return "Use jnp.minimum, jnp.maximum or jnp.sort."
    if re.search(r"\b(and|or|not)\b", line.text):
        return "Use &, | and ~ (or jnp.logical_and, ...) on arrays, and jnp.where(condition, a, b) to choose."
    if line.text.startswith("assert"):
        return "Check data outside of the model; a constraint on a variable is its distribution's support."
    return (
        "Use jnp.where(condition, a, b), or jax.lax.cond(condition, f, g) for whole branches. If the condition depends "
        "on data alone, compute it outside of the model and give it as a flag."
    )


def _for_number(error: Exception, line: CodeLine) -> str:
    if match := re.search(r"\bmath\.(\w+)", line.code):
        return f"Use jnp.{match[1]} instead of math.{match[1]}."
    if line.code.endswith("]"):
        return (
            f"To index a list or a NumPy array with it, make that a jnp.asarray(...) first; to choose between "
            f"functions use jax.lax.switch. If it depends on data alone, {_OUTSIDE}"
        )
    if re.search(r"\brange\(", line.code):
        return f"Use jax.lax.fori_loop or jax.lax.scan. If the number depends on data alone, {_OUTSIDE}"
    if _SIZED.search(line.code) or "sequences of concrete values" in str(error) or "size argument" in str(error):
        return f"Sizes must be known before tracing: {_OUTSIDE}"
    if match := re.search(r"\b(?:np|numpy|onp)\.([\w.]+)", line.code):
        return f"Use jnp.{match[1]} instead of np.{match[1]}."
    if match := re.search(r"\bscipy\.([\w.]+)", line.code):
        return f"Use jax.scipy.{match[1]} instead of scipy.{match[1]}."
    if match := re.search(r"\b(int|float|bool|complex|round)\(", line.code):
        instead = {"int": ".astype(int)", "float": ".astype(float)", "round": "jnp.round(...)"}.get(match[1], "jnp")
        return f"Leave out {match[1]}(...), or use {instead}. If it depends on data alone, {_OUTSIDE}"
    return f"Use functions of jax.numpy (jnp) on it. If it depends on data alone, {_OUTSIDE}"


NO_GRADIENT = re.compile(r"Reverse-mode differentiation does not work|(callbacks|FFI call).*(JVP|differentiated)")
"""Messages of JAX about operations without a derivative."""

_WITHOUT_GRADIENT = "or use a kernel that needs no gradient, such as phx.rwmh()."


def remedy_of_gradient(message: str) -> str:
    """Return advice on an operation without a derivative."""
    if "Reverse-mode" in message:
        return (
            "Make a fixed number of steps, with jax.lax.scan, or jax.lax.fori_loop between two Python numbers, in "
            "which jnp.where keeps a result that is final; give the function a derivative with jax.custom_vjp or "
            f"jax.lax.custom_root; {_WITHOUT_GRADIENT}"
        )
    return f"Give the function a derivative with jax.custom_vjp, {_WITHOUT_GRADIENT}"


def _for_misuse(message: str) -> str:
    if NO_GRADIENT.search(message):
        return remedy_of_gradient(message)
    if "manual axis types do not match" in message:
        return (
            "The initial values of a loop must vary over the same mesh axes as its results: "
            "jax.lax.pcast(start, axis, to='varying')."
        )
    if "setting an array element" in message:
        return "Use jnp arrays, which are changed by a = a.at[index].set(value)."
    if "__format__" in message:
        return "To print values use jax.debug.print('{}', value)."
    if re.search(r"broadcast|shape|dimension|dot_general|concatenat", message):
        return (
            "Dimensions must be equal, or one: reshape an array (x[:, None] adds a dimension), or .expand the "
            "distribution."
        )
    return ""
