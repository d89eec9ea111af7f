"""What a program reads from outside of its arguments: globals, and what its function closes over.

A compiled program keeps what was there when it was traced. Whoever keeps compiled programs must know when a new trace
would find something else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxprs_in_params

from phalanx.programs.shares import TracedProgram

PLAIN = (bool, int, float, complex, str, bytes, type(None), np.dtype, np.generic)


def outside(whole: TracedProgram) -> bytes:
    """A digest of the numbers, and of the operations, that this trace of a program has found."""
    traced = whole.at_zero
    found = hashlib.blake2b()
    for value in traced.consts:
        found.update(_number(value))
    for equation in _equations(traced.jaxpr):
        found.update(equation.primitive.name.encode())
        for atom in equation.invars:
            if isinstance(atom, Literal):
                found.update(_number(atom.val))
        for name, value in sorted(equation.params.items()):
            if _is_plain(value):
                found.update(f"{name}={value!r}".encode())
    return found.digest()


def _equations(jaxpr: Jaxpr) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from _equations(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner)


def _number(value: Any) -> bytes:
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return str(id(value)).encode()  # of arrays on other hosts the numbers are not here
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = random.key_data(value)
    array = np.asarray(value)
    return f"{array.dtype}{array.shape}".encode() + array.tobytes()


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return isinstance(value, PLAIN)
