"""Random numbers by coordinate: the i-th is a function of the key and i, so any device can make any part of them.

A counter-based generator (Threefry, JAX's default) hashes (key, i). `jax.random` numbers elements from zero in every
array it fills; here the caller numbers them, so that an array spread over devices is filled as if in one piece.

Source: Salmon, Moraes, Dror, Shaw (2011), Parallel random numbers: as easy as 1, 2, 3.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.extend.random import threefry2x32_p
from jax.typing import DTypeLike


def uniforms(key: Array, numbers: Array, dtype: DTypeLike) -> Array:
    """Uniforms on [0, 1), one for each of `numbers`."""
    first, second = _words(key, numbers)
    if jnp.dtype(dtype) == jnp.float64:
        bits = first.astype(jnp.uint64) << 32 | second.astype(jnp.uint64)
        return lax.bitcast_convert_type(bits >> 12 | np.uint64(0x3FF0000000000000), jnp.float64) - 1.0
    # 23 random bits as the mantissa of a number in [1, 2)
    bits = (first ^ second) >> 9 | np.uint32(0x3F800000)
    return (lax.bitcast_convert_type(bits, jnp.float32) - 1.0).astype(dtype)


def standard_normals(key: Array, numbers: Array, dtype: DTypeLike) -> Array:
    """Standard normals, one for each of `numbers`, by inversion."""
    wide = jnp.float64 if jnp.dtype(dtype) == jnp.float64 else jnp.float32
    low = np.nextafter(np.array(-1.0, wide), np.array(0.0, wide))  # erf_inv is infinite at -1
    symmetric = jnp.maximum(low, uniforms(key, numbers, wide) * (1.0 - low) + low)
    return (np.sqrt(2).astype(wide) * lax.erf_inv(symmetric)).astype(dtype)


def _words(key: Array, numbers: Array) -> tuple[Array, Array]:
    """Two independent random words for each number."""
    key0, key1 = _key_words(key)
    numbers = numbers.astype(jnp.uint32)
    first, second = threefry2x32_p.bind(
        jnp.broadcast_to(key0, numbers.shape), jnp.broadcast_to(key1, numbers.shape), jnp.zeros_like(numbers), numbers
    )
    return first, second


def _key_words(key: Array) -> Array:
    words = random.key_data(key)
    # another generator's key has another size: hash it to two words
    return words if words.shape == (2,) else random.bits(key, (2,), jnp.uint32)
