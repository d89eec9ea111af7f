"""Sums about an origin, in two floats each, for all reducers of moments.

In float32 the sum of squares of draws with mean 10,000 and standard deviation 1 has no correct digit of the variance.
Draws are therefore replaced by their distances from the first one, the anchor, which are exact, and then centred on the
mean so far, since the first draw may be an outlier. A sum of 65,536 numbers in float32 is good to three digits at
worst: each sum is two floats, the second of which holds the rounding errors of the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import Array

if TYPE_CHECKING:
    from jaxtyping import Float, Float64, Int, Shaped


def at_lanes(where: Shaped[Array, "*chains"], like: Array) -> Array:
    """Return a flag or count of every chain, shaped to broadcast against that chain's elements."""
    return where.reshape(where.shape + (1,) * (like.ndim - where.ndim))


def sum_type(dtype: Any) -> Any:
    """Return the dtype in which draws are summed: float64 for 64 bits, and float32 for all else.

    Raises:
        TypeError: when they are not real numbers.
    """
    dtype = jnp.dtype(dtype)
    if not jnp.issubdtype(dtype, jnp.floating) and dtype.kind not in "biu":
        raise TypeError(f"it has draws of type {dtype.name}, and reducers take real numbers. Reduce its real and "
                        f"imaginary parts, or its modulus, with phx.reduce.")  # fmt: skip
    return jnp.float64 if dtype.itemsize == 8 else jnp.float32


def begin_at(
    anchor: Shaped[Array, "chains *shape"], count: Int[Array, "chains"], draw: Shaped[Array, "chains *shape"]
) -> Shaped[Array, "chains *shape"]:
    """Return the anchor: the one before, or the draw where it is the first."""
    return jnp.where(at_lanes(count == 0, draw), draw, anchor)


def distance(draw: Shaped[Array, "*shape"], anchor: Shaped[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return `draw - anchor` in the type of sums; whole numbers, whose difference may overflow, are rounded once."""
    wide = sum_type(draw.dtype)
    if jnp.issubdtype(draw.dtype, jnp.floating) or draw.dtype.itemsize == 8:
        return draw.astype(wide) - anchor.astype(wide)
    if draw.dtype.itemsize < 4:
        return (draw.astype(jnp.int32) - anchor.astype(jnp.int32)).astype(wide)
    high, low = ((part(draw).astype(jnp.int32) - part(anchor).astype(jnp.int32)) for part in (_high, _low))
    return high.astype(wide) * 2**16 + low.astype(wide)


def _high(number: Array) -> Array:
    return number >> 16


def _low(number: Array) -> Array:
    return number & 0xFFFF


def add_to(
    total: Float[Array, "*shape"], lost: Float[Array, "*shape"], more: Float[Array, "*shape"]
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """Add a number to a sum in two floats."""
    new = total + more
    part = new - total
    return new, lost + ((total - (new - part)) + (more - part))


def grand(
    count: Int[np.ndarray, "chains"], mean: Float64[np.ndarray, "chains *shape"]
) -> tuple[np.integer, Float64[np.ndarray, "*shape"]]:
    """Return the number of draws of all chains and their mean, from those of each chain."""
    total = count.sum()
    weights = count / max(total, 1)
    return total, np.tensordot(weights, mean, axes=1)
