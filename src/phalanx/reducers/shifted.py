"""Sums about an origin, in two floats and to a scale, for all reducers of moments.

In float32 the sum of squares of draws with mean 10,000 and standard deviation 1 has no correct digit of the variance.
Draws are therefore replaced by their distances from the first one, the anchor, which are exact, and then centred on the
mean so far, since the first draw may be an outlier. A sum of 65,536 numbers in float32 is good to three digits at
worst: each sum is two floats, the second of which holds the rounding errors of the first.

The square of 1e20 overflows in float32, and that of 1e-30 is zero. Each element of each chain has a scale, a power of
two by which its distances are multiplied, which is exact. It begins at the largest such number and is lowered when a
distance would be too large to be squared: to 1 for distances between some 1e-13 and 1e12, otherwise to one over the
distance. Sums so far are multiplied by the change, also exactly. On the host sums have no scale: float64 holds the
squares of all float32 numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float64, Int, Shaped

Sums = TypeVar("Sums")


def at_lanes(numbers: Any, like: Any) -> Any:
    """Return a flag or count of every chain, shaped to broadcast against that chain's elements; with JAX or NumPy."""
    return numbers.reshape(numbers.shape + (1,) * (like.ndim - numbers.ndim))


def sum_type(dtype: DTypeLike) -> DTypeLike:
    """Return the dtype in which draws are summed: float64 for 64 bits, and float32 for all else.

    Raises:
        TypeError: when they are not real numbers.
    """
    dtype = jnp.dtype(dtype)
    if not jnp.issubdtype(dtype, jnp.floating) and dtype.kind not in "biu":
        raise TypeError(
            f"it has draws of type {dtype.name}, and reducers take real numbers. Reduce its real and "
            f"imaginary parts, or its modulus, with phx.reduce."
        )
    return jnp.float64 if dtype.itemsize == 8 else jnp.float32


def begin_at(
    anchor: Shaped[Array, "chains *shape"], count: Int[Array, "chains"], draw: Shaped[Array, "chains *shape"]
) -> Shaped[Array, "chains *shape"]:
    """Return the anchor: the one before, or the draw where it is the first."""
    return jnp.where(at_lanes(count == 0, draw), draw, anchor)


def half_distance(draw: Shaped[Array, "*shape"], anchor: Shaped[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return half of `draw - anchor`, which cannot overflow, in the type of sums; whole numbers are rounded once."""
    wide = sum_type(draw.dtype)
    if jnp.issubdtype(draw.dtype, jnp.floating) or draw.dtype.itemsize == 8:
        return draw.astype(wide) * 0.5 - anchor.astype(wide) * 0.5
    if draw.dtype.itemsize < 4:
        return (draw.astype(jnp.int32) - anchor.astype(jnp.int32)).astype(wide) * 0.5
    high, low = ((part(draw).astype(jnp.int32) - part(anchor).astype(jnp.int32)) for part in (_high, _low))
    return high.astype(wide) * 2**15 + low.astype(wide) * 0.5


def first_scale(example: Shaped[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return the scale before the first distance that is not zero: the largest power of two with an inverse."""
    wide = sum_type(example.dtype)
    return jnp.full(example.shape, 1 / jnp.finfo(wide).tiny, wide)


def lowered(
    scale: Float[Array, "*shape"],
    half: Float[Array, "*shape"],
    where: Bool[Array, "..."],
    sums: Sums,
    rescale: Callable[[Sums, Float[Array, "*shape"]], Sums],
) -> tuple[Float[Array, "*shape"], Sums]:
    """Return the scale with which these distances can be squared and summed, and the sums to that scale.

    Args:
        scale: so far.
        half: of the distances.
        where: true for elements that are drawn.
        sums: to the scale so far.
        rescale: `rescale(sums, change)`, of a change of the scale by factors of at most 1.
    """
    floats = jnp.finfo(half.dtype)
    largest = 2.0 ** (floats.maxexp // 3)
    tiny = float(floats.tiny)
    size = jnp.abs(half)
    too_large = where & (size * (2 * scale) > largest) & jnp.isfinite(size)

    def lower(scale: Array, sums: Sums) -> tuple[Array, Sums]:
        power = lax.reduce_precision(jnp.clip(size, 2 * tiny, 0.125 / tiny), floats.nexp, 0)
        ordinary = (size >= 0.5 / largest) & (size <= 0.5 * largest)
        new = jnp.where(too_large, jnp.where(ordinary, 1.0, 0.5 / power), scale)
        return new, rescale(sums, new / scale)

    return lax.cond(too_large.any(), lower, lambda scale, sums: (scale, sums), scale, sums)


def _high(number: Array) -> Array:
    return number >> 16


def _low(number: Array) -> Array:
    return number & 0xFFFF


def add_to(
    total: Float[Array, "*shape"], remainder: Float[Array, "*shape"], more: Float[Array, "*shape"]
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """Add a number to a sum in two floats."""
    new = total + more
    part = new - total
    return new, remainder + ((total - (new - part)) + (more - part))


def grand(
    count: Int[np.ndarray, "chains"], mean: Float64[np.ndarray, "chains *shape"]
) -> tuple[np.integer, Float64[np.ndarray, "*shape"]]:
    """Return the number of draws of all chains and their mean, from those of each chain."""
    total = count.sum()
    weights = count / max(total, 1)
    return total, np.tensordot(weights, mean, axes=1)
