"""Rule of random bits: each device draws those of its own rows, the same as one device draws for all."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jax.extend.core import JaxprEqn

from phalanx.mesh.random_numbers import rolled_hashes, threefry
from phalanx.placements.mesh_axis import MeshAxis
from phalanx.placements.placement import REPLICATED, PlacedValue
from phalanx.placements.rules.table import Plan


def bits_of_rows(axis: MeshAxis, equation: JaxprEqn, key: PlacedValue, dim: int) -> Plan | None:
    """Hash the numbers of each device's entries: the bits of JAX's default generator are a function of these.

    None for other generators, and for more entries than 32 bits can number.
    """
    shape = equation.params["shape"]
    width = equation.params["bit_width"]
    rows_at = dim - len(key.shape)  # the dimensions of the keys come first
    numbers_all = jax.config.jax_threefry_partitionable  # pyright: ignore[reportAttributeAccessIssue]  # an option
    is_default = str(key.dtype) == "key<fry>" and numbers_all
    if rows_at < 0 or not is_default or math.prod(shape) >= 2**32:
        return None
    count = shape[rows_at]

    def local(keys: Array) -> list[Array]:
        local_shape = [axis.rows(count) if each == rows_at else size for each, size in enumerate(shape)]
        numbers = jnp.zeros(local_shape, jnp.uint32)
        for each in range(len(shape)):
            at = lax.broadcasted_iota(jnp.int32, local_shape, each)
            if each == rows_at:
                at = jnp.minimum(axis.row_numbers(tuple(local_shape), each, count), count - 1)
            numbers = numbers + at.astype(jnp.uint32) * jnp.uint32(math.prod(shape[each + 1 :]))
        key_words = random.key_data(keys)
        key_words = key_words.reshape(*key_words.shape[:-1], *[1] * len(shape), 2)
        numbers = jnp.broadcast_to(numbers, (*keys.shape, *local_shape))
        with rolled_hashes():
            high, low = threefry((key_words[..., 0], key_words[..., 1]), jnp.zeros_like(numbers), numbers)
        if width == 64:
            return [high.astype(jnp.uint64) << 32 | low.astype(jnp.uint64)]
        return [(high ^ low).astype(f"uint{width}")]

    return Plan([REPLICATED], [dim], local=local)
