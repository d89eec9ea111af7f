"""Checksum of an array's bits, computed on its devices: equal for equal numbers under any sharding.

Each number is mixed with its index, and the results are summed modulo 2^32. The sum does not depend on the order of its
terms, nor on the devices. Two such sums make 64 bits; two different arrays agree by chance with probability 2^-64.
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.typing import ArrayLike

from phalanx.mesh.processes import to_host

SALTS = (0x9E3779B9, 0x85EBCA77)
"""Odd factors of the indices, one for each of the two sums."""


def fingerprint(array: ArrayLike, rows: int | None = None) -> str:
    """Return the checksum of an array, as text; in a padded array only the first `rows` rows count."""
    shape = np.shape(array) if rows is None else (rows, *np.shape(array)[1:])
    digits = [f"{int(to_host(word)):08x}" for word in _sums(array, rows)]
    return f"{jnp.result_type(array)} {shape} {''.join(digits)}"


@partial(jax.jit, static_argnames="rows")
def _sums(array: Array, rows: int | None) -> list[Array]:
    bits = _words(array)
    index = _indices(bits.shape)
    real = jnp.bool_(True) if rows is None else lax.broadcasted_iota(jnp.int32, bits.shape, 0) < rows
    words = [_mix_bits(bits ^ _mix_bits(index * np.uint32(salt) + np.uint32(salt >> 7))) for salt in SALTS]
    return [jnp.sum(jnp.where(real, word, np.uint32(0)), dtype=jnp.uint32) for word in words]


def _words(array: Array) -> Array:
    """Return the bits of an array as words of 32 bits, with a last dimension if an element has several."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return random.key_data(array)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        return jnp.stack([_words(array.real), _words(array.imag)], -1)
    if array.dtype == bool or array.dtype.itemsize < 1:
        return array.astype(jnp.uint32)
    if jnp.issubdtype(array.dtype, jnp.floating):
        array = jnp.where(array == 0, jnp.zeros_like(array), array)  # 0 and -0 are equal
    if array.dtype.itemsize < 4:
        return lax.bitcast_convert_type(array, f"uint{8 * array.dtype.itemsize}").astype(jnp.uint32)
    return lax.bitcast_convert_type(array, jnp.uint32)


def _indices(shape: tuple[int, ...]) -> Array:
    """Return the index of each element in row-major order, modulo 2^32."""
    steps = [math.prod(shape[axis + 1 :]) % 2**32 for axis in range(len(shape))]
    parts = [lax.broadcasted_iota(jnp.uint32, shape, axis) * np.uint32(step) for axis, step in enumerate(steps)]
    return sum(parts, jnp.zeros(shape, jnp.uint32))


def _mix_bits(word: Array) -> Array:
    """Mix the bits of each word: the finaliser of MurmurHash3 (Appleby, 2011)."""
    word = (word ^ (word >> 16)) * np.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * np.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
