"""Sums of many terms of a log density, as exact as the terms.

The last digit of a plain float32 sum over 20 million rows is about 1, while each term is exact to 1e-4. So a few terms
at a time are added as they are, at hardly any loss. Their sums are split at a power of two so large that the upper
parts add up exactly in any order, and so small that rounding of the lower parts hardly matters.

Source: Rump, Ogita, Oishi (2008), Accurate floating-point summation, for the splitting.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array, lax

from phalanx.mesh.total import Total, multiples
from phalanx.placements.row_functions import sum_entries

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

FEWEST_TERMS = 16
"""Fewest neighbouring terms that are added as they are; so many if their count has no divisor below `MOST_TERMS`."""

MOST_TERMS = 64
"""Number below which divisors of the count of terms are tried."""

GROUP = 4096
"""Most numbers that are split at one power of two: their lower parts add up to at most half of the largest number."""

DIGITS = 24
"""Binary digits of a float32."""


@jax.custom_jvp
def total_of(terms: Shaped[Array, "*shape"]) -> Total:
    """Return the sum of all elements, with the derivative of a plain sum. In float64 the plain sum is exact enough."""
    return sum_entries(_total_of, terms)


@total_of.defjvp
def _derivative(terms: tuple[Array], tangents: tuple[Array]) -> tuple[Total, Total]:
    total = total_of(*terms)
    return total, Total(jnp.zeros_like(total.coarse), jnp.sum(tangents[0]).astype(total.dtype))


@jax.custom_jvp
def times(total: Total, factor: Array | float) -> Total:
    """Return a total times a factor, which is not differentiated; see `Total.times`."""
    return sum_entries(Total.times, total, factor)


@times.defjvp
def _derivative_of_times(primals: tuple[Total, Array], tangents: tuple[Total, Array]) -> tuple[Total, Total]:
    (total, factor), (tangent, _) = primals, tangents
    return times(total, factor), Total(jnp.zeros_like(total.coarse), factor * (tangent.coarse + tangent.fine))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def over(total: Total, parts: float) -> Total:
    """Return a total divided by a number; see `Total.over`."""
    return sum_entries(lambda total: total.over(parts), total)


@over.defjvp
def _derivative_of_over(parts: float, primals: tuple[Total], tangents: tuple[Total]) -> tuple[Total, Total]:
    (total,), (tangent,) = primals, tangents
    return over(total, parts), Total(jnp.zeros_like(total.coarse), (tangent.coarse + tangent.fine) / parts)


def _total_of(terms: Shaped[Array, "*shape"]) -> Total:
    terms = terms.astype(jnp.promote_types(terms.dtype, jnp.float32)).ravel()
    if terms.size <= FEWEST_TERMS or jnp.finfo(terms.dtype).nmant >= DIGITS:
        return Total.of(jnp.sum(terms))
    sums = _sums_of_neighbours(terms)
    if sums.size <= GROUP:
        above, below = _split_sums(sums)
        return Total.of(above) + below
    sums = jnp.pad(sums, (0, -sums.size % GROUP)).reshape(-1, GROUP)
    of_groups, below_them = _split_sums(sums)
    above, below = _split_sums(of_groups)
    return Total.of(above) + (below + below_them.sum())


def _sums_of_neighbours(values: Float[Array, "terms"]) -> Float[Array, "sums"]:
    """Return sums of a few neighbouring values each."""
    for length in range(FEWEST_TERMS, MOST_TERMS):
        if values.size % length == 0:
            return values.reshape(-1, length).sum(1)
    return jnp.pad(values, (0, -values.size % FEWEST_TERMS)).reshape(-1, FEWEST_TERMS).sum(1)


def _split_sums(values: Float[Array, "*groups terms"]) -> tuple[Float[Array, "*groups"], Float[Array, "*groups"]]:
    """Return sums along the last axis: of the values' multiples of a power of two, exactly, and of the remainders."""
    count = values.shape[-1]
    info = jnp.finfo(values.dtype)
    largest = jnp.max(jnp.abs(values), -1, keepdims=True)
    # the power is at least 2/3 of the largest value's, so the sum has fewer than 2**24 multiples
    power = lax.reduce_precision(largest, info.nexp, 0) * 2.0 ** ((count - 1).bit_length() + 1 - DIGITS)
    power = jnp.where((power > info.tiny) & (power < info.max), power, jnp.ones_like(power))
    above = multiples(values, power)
    return above.sum(-1), (values - above).sum(-1)
