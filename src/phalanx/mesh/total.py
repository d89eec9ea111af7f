"""A log density in two floats: what is lost in one is lost in its last digits, and energies are differences of those.

A float32 of 1e7 has a resolution of 1, and one of 1e9 of 64. So a total is a multiple of a power of two, and a rest.
Multiples add up exactly, over terms and over devices in any order, as long as there are no more than 2**24 of them; the
rests are small, and so is what they lose. Differences of totals of up to 1e10 are right to 1e-3. What single terms have
lost is not known here: `benchmarks/energies.py` measures how much that is of real rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

if TYPE_CHECKING:
    from jaxtyping import Float, Float64

GRID = 1024.0
"""What coarse parts are multiples of."""

MOST = 2.0**24
"""Multiples up to which a float32 tells all whole numbers apart."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Total:
    """A log density or an energy, of every lane: the sum of two floats.

    The difference of two is an array, as right as two floats can make it. With an array added it is another total, as
    its negative is: energies are a number for each lane minus a log density.

    Attributes:
        coarse: a multiple of `GRID`, the same around a point: the derivative is all in the fine part.
        fine: the rest; where the total is not finite, all of it.

    Example:
        >>> from phalanx.mesh.total import Total
        >>> total = Total.of(-1e7)
        >>> float(total + 0.25 - total), float((total + 0.25).value - total.value)
        (0.25, 0.0)
    """

    coarse: Any
    fine: Any

    __array_ufunc__ = None  # NumPy's numbers on the left leave the sum to us

    @classmethod
    def of(cls, value: Any) -> Total:
        """A total of a single float."""
        value = jnp.asarray(value)
        coarse = multiples(value, GRID)
        return cls(coarse, value - coarse)

    @property
    def value(self) -> Float[Array, "*lanes"]:
        """The nearest single float."""
        return self.coarse + self.fine

    @property
    def shape(self) -> tuple[int, ...]:
        """One number for each lane."""
        return self.fine.shape

    @property
    def dtype(self) -> Any:
        """Type of both parts."""
        return self.fine.dtype

    def in_double(self) -> np.float64 | Float64[np.ndarray, "*lanes"]:
        """In one float64, on the host."""
        return np.asarray(self.coarse, np.float64) + np.asarray(self.fine, np.float64)

    def settled(self) -> Total:
        """The same with a rest as small as can be: what is added to many times needs it now and then."""
        more = multiples(self.fine, GRID)
        return Total(self.coarse + more, self.fine - more)

    def over(self, parts: float) -> Total:
        """One of so many equal shares, coarse part and all; they add up exactly. Less than one is a multiple."""
        if parts == 1:
            return self
        coarse = multiples(self.coarse / parts, GRID)
        return Total(coarse, (self.coarse - parts * coarse + self.fine) / parts)

    def __add__(self, other: Any) -> Total:
        if isinstance(other, Total):
            return Total(self.coarse + other.coarse, self.fine + other.fine)
        return Total(self.coarse, self.fine + other)

    __radd__ = __add__

    def __neg__(self) -> Total:
        return Total(-self.coarse, -self.fine)

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, Total):
            return (self.coarse - other.coarse) + (self.fine - other.fine)
        return Total(self.coarse, self.fine - other)

    def __rsub__(self, other: Any) -> Total:
        return -self + other


def multiples(values: Float[Array, "*shape"], of: Any) -> Float[Array, "*shape"]:
    """Each value to the nearest multiple of a number; of what is larger than all, the largest. It has no derivative."""
    count = lax.stop_gradient(values) / of
    bound = jnp.asarray(MOST, count.dtype)
    return of * lax.round(lax.clamp(-bound, count, bound), lax.RoundingMethod.TO_NEAREST_EVEN)
