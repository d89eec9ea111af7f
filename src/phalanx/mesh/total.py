"""Log density in two floats, so that differences of log densities, such as energies, are precise.

A float32 of 1e7 has a resolution of 1, one of 1e9 of 64. Therefore a total is the sum of a multiple of a power of two
and a remainder. Multiples add up exactly, over terms and devices in any order, up to 2**24 of them; remainders are
small, and so are their rounding errors. Differences of totals of up to 1e10 are right to 1e-3. Rounding within single
terms is not covered: `benchmarks/energies.py` measures it on real rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

if TYPE_CHECKING:
    from jaxtyping import Float, Float64

GRID = 1024.0
"""Unit of which coarse parts are multiples."""

BITS = 12
"""Significant bits of a factor, up to which its product with a total is exact; half of those of a float32."""

LARGEST_EXACT = 2.0**24
"""Largest number up to which a float32 represents all whole numbers."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Total:
    """A log density or an energy of every lane, as the sum of two floats.

    The difference of two totals is an array. A total plus or minus an array is a total, and so is its negative: an
    energy is a number for each lane minus a log density.

    Attributes:
        coarse: a multiple of `GRID`, constant around a point: the derivative is entirely in the fine part.
        fine: the remainder; the whole total if it is not finite.

    Example:
        >>> from phalanx.mesh.total import Total
        >>> total = Total.of(-1e7)
        >>> float(total + 0.25 - total), float((total + 0.25).value - total.value)
        (0.25, 0.0)
    """

    coarse: Any
    fine: Any

    __array_ufunc__ = None  # NumPy scalars on the left then use `__radd__` and `__rsub__`

    @classmethod
    def of(cls, value: ArrayLike) -> Total:
        """Return the total of a single float."""
        value = jnp.asarray(value)
        coarse = multiples(value, GRID)
        return cls(coarse, value - coarse)

    @property
    def value(self) -> Float[Array, "*lanes"]:
        """The nearest single float."""
        return self.coarse + self.fine

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of both parts: one number for each lane."""
        return self.fine.shape

    @property
    def dtype(self) -> np.dtype:
        """Type of both parts."""
        return self.fine.dtype

    def in_double(self) -> np.float64 | Float64[np.ndarray, "*lanes"]:
        """Return the total in one float64, on the host."""
        return np.asarray(self.coarse, np.float64) + np.asarray(self.fine, np.float64)

    def settled(self) -> Total:
        """Return the same total with a remainder as small as possible, for totals that are added to many times."""
        more = multiples(self.fine, GRID)
        return Total(self.coarse + more, self.fine - more)

    def over(self, parts: float) -> Total:
        """Return the total divided by `parts`; so many equal shares add up exactly."""
        if parts == 1:
            return self
        coarse = multiples(self.coarse / parts, GRID)
        return Total(coarse, (self.coarse - parts * coarse + self.fine) / parts)

    def times(self, factor: Any) -> Total:
        """Return the total times a factor in (0, 1], exactly for the coarse part if it has at most `BITS` bits.

        The multiple of `GRID` is split into two numbers of 12 bits, whose products a float32 represents.
        """
        high = multiples(self.coarse, GRID * 2**BITS)
        products = factor * high, factor * (self.coarse - high)
        coarse = [multiples(product, GRID) for product in products]
        rests = [product - part for product, part in zip(products, coarse, strict=True)]
        return Total(coarse[0] + coarse[1], rests[0] + rests[1] + factor * self.fine)

    def __add__(self, other: Total | ArrayLike) -> Total:
        if isinstance(other, Total):
            return Total(self.coarse + other.coarse, self.fine + other.fine)
        return Total(self.coarse, self.fine + other)

    __radd__ = __add__

    def __neg__(self) -> Total:
        return Total(-self.coarse, -self.fine)

    def __sub__(self, other: Total | ArrayLike) -> Any:
        if isinstance(other, Total):
            return (self.coarse - other.coarse) + (self.fine - other.fine)
        return Total(self.coarse, self.fine - other)

    def __rsub__(self, other: Total | ArrayLike) -> Total:
        return -self + other


def multiples(values: Float[Array, "*shape"], of: Any) -> Float[Array, "*shape"]:
    """Return each value rounded to a multiple of a number, at most `LARGEST_EXACT` of them, without a derivative."""
    count = lax.stop_gradient(values) / of
    bound = jnp.asarray(LARGEST_EXACT, count.dtype)
    return of * lax.round(lax.clamp(-bound, count, bound), lax.RoundingMethod.TO_NEAREST_EVEN)
