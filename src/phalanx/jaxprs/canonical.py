"""Canonical form of a traced program: programs with equal forms compute the same and can share an executable.

A form contains every equation with its operands, in order: variables are numbered as they appear, constants and
literals are identified by their bits, inner programs by their own forms, and no value by its memory address. A program
with a part that cannot be compared by content, such as a host callback or an array on other hosts, has no form.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Hashable, Iterable, Iterator
from enum import Enum
from functools import lru_cache
from inspect import isfunction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import AbstractMesh, Mesh

from phalanx.jaxprs.walking import Atom

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), range)

LIBRARIES = ("jax", "jaxlib", "numpyro", "phalanx")
"""Libraries whose functions and immutable records are identified by name and value within a process."""

SHORT = 64
"""Bytes up to which an array is written in full, not as a digest."""


class Form(NamedTuple):
    """Identity of a program.

    Attributes:
        digest: digest of the text of the program.
        others: JAX's own records, such as meshes and layouts, which are compared as JAX compares them.
        rules: True if the program has derivatives written by users, which only its gradient contains.
    """

    digest: bytes
    others: tuple[Hashable, ...]
    rules: bool


def form_of(*values: object) -> Form | None:
    """Return the form of jaxprs, arrays, plain values, and tuples, lists and dicts of them; None if they have no form.

    Example:
        >>> import jax
        >>> forms = [form_of(jax.make_jaxpr(f)(1.0, 2.0)) for f in (lambda x, y: x - y, lambda x, y: y - x)]
        >>> forms[0] == forms[1], forms[0] == form_of(jax.make_jaxpr(lambda a, b: a - b)(1.0, 2.0))
        (False, True)
    """
    writer = _Writer()
    try:
        return Form(hashlib.sha256(writer.text(values).encode()).digest(), tuple(writer.others), writer.rules)
    except _NoForm:
        return None


def operations_of(*values: object) -> bytes:
    """Return a digest of operations and numbers, which are equal in two traces of the same function.

    It leaves out parts that cannot be compared by content, such as functions and meshes, except for their types.

    Example:
        >>> import jax
        >>> programs = [jax.make_jaxpr(lambda x: jax.pure_callback(abs, x, c * x))(1.0) for c in (2.0, 2.0, 3.0)]
        >>> digests = [operations_of(program) for program in programs]
        >>> digests[0] == digests[1], digests[0] == digests[2]
        (True, False)
    """
    return hashlib.sha256(_WriterOfOperations().text(values).encode()).digest()


def is_of_a_library(f: Any) -> bool:
    """Return whether a function belongs to LIBRARIES and has no closure, so that its name identifies it.

    The module is read from the function's globals: `functools.wraps` changes `__module__`.
    """
    if isinstance(owner := getattr(f, "__self__", None), type) and _is_of(LIBRARIES, owner.__module__):
        f = f.__func__  # a method of a class; a method of an object may read the object's attributes
    if isfunction(f) and _checks_shapes(f):
        f = getattr(f, "__wrapped__", f)
    return isfunction(f) and f.__closure__ is None and _is_of(LIBRARIES, f.__globals__.get("__name__"))


def library_name(f: Any) -> str:
    """Return the name of a library's function: its module, line and class."""
    owner = getattr(f, "__self__", None)
    of_class = f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else ""
    code = (f.__wrapped__ if _checks_shapes(f) else f).__code__
    return f"{f.__module__}.{code.co_qualname} {code.co_firstlineno} {of_class}"


def _is_of(libraries: tuple[str, ...], module: str | None) -> bool:
    return (module or "").split(".")[0] in libraries


def _checks_shapes(f: Any) -> bool:
    """Return whether a function is a wrapper of jaxtyping, which only checks the arguments of the wrapped one."""
    checker = sys.modules.get("jaxtyping")
    return checker is not None and f.__code__.co_filename.startswith(os.path.dirname(str(checker.__file__)) + os.sep)


class _NoForm(Exception):
    """A value that cannot be compared by content."""


class _Writer:
    """Writer of values as text that differs for different values; programs and large arrays are digests."""

    def __init__(self) -> None:
        self.others: dict[Hashable, int] = {}
        self.rules = False
        self._programs: dict[int, tuple[Jaxpr, str]] = {}  # a program that is called often is written once

    def text(self, value: object) -> str:
        if isinstance(value, PLAIN):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, tuple | list | dict | set | frozenset | slice):
            return self._collection(value)
        if isinstance(value, ClosedJaxpr):
            return f"closed {self._program(value.jaxpr)} {self._all(map(self._array, value.consts))}"
        if isinstance(value, Jaxpr):
            return f"open {self._program(value)}"
        if isinstance(value, np.dtype | type | Enum):
            return f"{type(value).__name__} {value!s}"
        if isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__"):
            return self._array(value)
        if is_of_a_library(value):
            return f"function {library_name(value)}"
        return self._other(value)

    def _collection(self, value: Any) -> str:
        # JAX's named tuples are records like its others, except those that contain programs
        if hasattr(value, "_fields") and _is_of_jax(value) and not any(map(is_program, value)):
            return self._other(value)
        if isinstance(value, slice):
            items = map(self.text, (value.start, value.stop, value.step))
        elif isinstance(value, dict):
            items = (f"{self.text(key)}: {self.text(item)}" for key, item in value.items())
        else:
            items = map(self.text, value)
        return f"{type(value).__name__}{self._all(sorted(items) if isinstance(value, set | frozenset) else items)}"

    def _all(self, texts: Iterable[str]) -> str:
        return f"({', '.join(texts)})"

    def _program(self, jaxpr: Jaxpr) -> str:
        if id(jaxpr) not in self._programs:
            text = "\n".join(self._lines(jaxpr))
            self._programs[id(jaxpr)] = jaxpr, hashlib.sha256(text.encode()).hexdigest()
        return self._programs[id(jaxpr)][1]

    def _lines(self, jaxpr: Jaxpr) -> Iterator[str]:
        numbers: dict[Any, int] = {}

        def new(variables: Iterable[Var]) -> str:
            for variable in variables:
                numbers[variable] = len(numbers)
            return self._all(f"{_kind(variable.aval)}" for variable in variables)

        def read(atoms: Iterable[Atom]) -> str:
            return self._all(self._literal(x) if isinstance(x, Literal) else str(numbers[x]) for x in atoms)

        yield f"{new(jaxpr.constvars)} {new(jaxpr.invars)}"
        for equation in jaxpr.eqns:
            yield f"{self._operation(equation)} {read(equation.invars)} makes {new(equation.outvars)}"
        yield f"gives {read(jaxpr.outvars)}"

    def _literal(self, literal: Literal) -> str:
        return f"{_kind(literal.aval)} {self._array(literal.val)}"

    def _operation(self, equation: JaxprEqn) -> str:
        """Return the text of an equation without its operands."""
        name = equation.primitive.name
        params = equation.params
        if name.startswith(("custom_jvp_call", "custom_vjp_call")):
            self.rules = True  # the rules are functions yet to be traced, and affect the gradient only
            params = {key: value for key, value in params.items() if not _is_function(value)}
        effects = sorted(type(effect).__name__ for effect in equation.effects)
        return f"{name} {effects} {self.text(dict(sorted(params.items())))}"

    def _array(self, value: object) -> str:
        if isinstance(value, PLAIN):
            return self.text(value)
        if isinstance(value, jax.Array):
            if not value.is_fully_addressable:
                raise _NoForm
            if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
                return f"{value.dtype} {self._array(random.key_data(value))}"
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise _NoForm
        bits: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.nbytes else b""
        digest = bytes(bits) if len(bits) <= SHORT else hashlib.sha256(bits).digest()
        return f"{array.dtype} {array.dtype.str} {array.shape} {digest.hex()}"

    def _other(self, value: object) -> str:
        """Return the text of one of JAX's immutable records, which the form keeps and compares as JAX does."""
        if not _is_of_jax(value) or _is_function(value):
            raise _NoForm
        try:
            return f"other {self.others.setdefault(value, len(self.others))}"
        except TypeError:
            raise _NoForm from None


class _WriterOfOperations(_Writer):
    """Writer of all that can be compared by content, and of the types of other values."""

    def text(self, value: object) -> str:
        try:
            return super().text(value)
        except _NoForm:
            return type(value).__name__

    def _array(self, value: object) -> str:
        try:
            return super()._array(value)
        except _NoForm:
            return type(value).__name__

    def _other(self, value: object) -> str:
        # JAX compares some of its records by identity, and makes others of them in another trace
        return type(value).__name__ if type(value).__eq__ is object.__eq__ else super()._other(value)


@lru_cache(4096)
def _kind(aval: object) -> str:
    """Return the text of a value's shape and type."""
    parts = (getattr(aval, name, None) for name in ("dtype", "shape", "weak_type"))
    return f"{type(aval).__name__} {' '.join(map(str, parts))}"


def _is_of_jax(value: object) -> bool:
    return _is_of(("jax", "jaxlib"), type(value).__module__)


def is_program(value: object) -> bool:
    """Return whether a value is a jaxpr, or a tuple or list that contains one."""
    return isinstance(value, ClosedJaxpr | Jaxpr) or (isinstance(value, tuple | list) and any(map(is_program, value)))


def _is_function(value: object) -> bool:
    """Return whether a value is a function, or JAX's wrapper of a function yet to be traced."""
    return hasattr(value, "call_wrapped") or (callable(value) and not isinstance(value, Mesh | AbstractMesh))
