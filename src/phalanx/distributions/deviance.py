r"""Deviances and remainders of log-gammas: log densities of large counts and concentrations as sums of small terms.

$\log \Gamma(10^7)$ is $1.5 \cdot 10^8$, and the last digit of a float32 of that size is 16: a log density that is a
difference of such terms is noise. Written by the largest value that it can have and a deviance, it is

$$\log \operatorname{Poisson}(x \mid M) = c(x) - D(x, M), \quad c(x) = \log \frac{x^x e^{-x}}{\Gamma(x + 1)}, \quad
D(x, M) = x \log \frac{x}{M} + M - x = x \left(t - \log(1 + t)\right), \quad t = \frac{M - x}{x}.$$

Both are of the size of the result. Densities of binomial, negative binomial, gamma and beta variables are sums of such
terms, since $\log \Gamma(x + 1) = x \log x - x - c(x)$. What is left is to compute $M - x$, and logarithms near zero,
without cancellation.

Source: Loader (2000), Fast and accurate computation of binomial probabilities, for the decomposition; Dekker (1971),
A floating-point technique for extending the available precision, for the products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero
from jax.scipy.special import digamma, xlogy
from jax.typing import ArrayLike

LARGE = {True: 3.0, False: 8.0}
"""Number from which on Stirling's series is exact to the last digit, in float32 and in float64."""

STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)
"""Coefficients of Stirling's series for log-gamma, in odd powers of 1 / x."""

FARTHEST = 60.0
"""Distance of a logit from that of the data beyond which the deviance is linear to the last digit."""

DIGITS = 24
"""Binary digits of a float32."""

LOG_2 = (0.693359375, -2.12194440e-4)
"""The logarithm of 2 as a number of few bits, whose multiples are exact, and the remainder."""


class TwoFloats(NamedTuple):
    """Number as the sum of two floats, such as a count of more digits than a float has."""

    high: Array
    low: Array

    def minus(self, other: TwoFloats) -> TwoFloats:
        """Return the difference."""
        high, low = sum_of(self.high, -other.high)
        return sum_of(high, low + (self.low - other.low))


def pairs_of(*numbers: ArrayLike) -> list[TwoFloats]:
    """Return numbers as pairs of one type and rank."""
    arrays = [jnp.asarray(number) for number in numbers]
    dtype = jnp.result_type(float, *arrays)
    ndim = max(array.ndim for array in arrays)
    aligned = [jnp.expand_dims(array, range(ndim - array.ndim)) for array in arrays]
    return [_pair_of(array, dtype) for array in aligned]


def _pair_of(number: Array, dtype: jnp.dtype) -> TwoFloats:
    """Return a number as a pair: exactly, also if it is an integer of more digits than the type has."""
    high = number.astype(dtype)
    width = 8 * number.dtype.itemsize
    if not jnp.issubdtype(number.dtype, jnp.integer) or width <= jnp.finfo(dtype).nmant:
        return TwoFloats(high, jnp.zeros_like(high))
    low = number - high.astype(number.dtype)
    return TwoFloats(high, low.astype(f"int{width}").astype(dtype))


def sum_of(a: Array, b: Array) -> TwoFloats:
    """Return the sum of two floats as a pair, exactly."""
    a, b = jnp.where(jnp.isnan(b), 0.0, a), jnp.where(jnp.isnan(a), 0.0, b)  # see `number_less`
    total = a + b
    part = lax.stop_gradient(total) - a
    low = lax.stop_gradient((a - (total - part)) + (b - part))
    return TwoFloats(total, low)


def number_less(number: Array, pair: TwoFloats) -> Array:
    """Return a float minus a pair."""
    # XLA adds up the parts of a constant pair before it subtracts them, unless it cannot see that both are constant
    return (number - pair.high) - jnp.where(jnp.isnan(number), 0.0, pair.low)


@jax.custom_jvp
def product_less(a: Array, b: Array, c: Array) -> Array:
    """Return `a * b - c` with a small relative error of `a * b`."""
    (a, below_a), (b, below_b) = _halves(a), _halves(b)
    # products of halves are exact, so that it does not matter which of them the compiler fuses with a sum
    return (((a * b - c) + a * below_b) + below_a * b) + below_a * below_b


@product_less.defjvp
def _product_derivative(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    (a, b, _), (da, db, dc) = primals, tangents
    return product_less(*primals), da * b + a * db - dc


@jax.custom_jvp
def products_apart(a: Array, b: Array, c: Array, d: Array) -> Array:
    """Return `a * b - c * d`, rounded once even where it cancels."""
    (a, below_a), (b, below_b), (c, below_c), (d, below_d) = map(_halves, (a, b, c, d))
    difference = ((a * b - c * d) + a * below_b) - c * below_d
    return ((difference + below_a * b) - below_c * d) + (below_a * below_b - below_c * below_d)


@products_apart.defjvp
def _products_derivative(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    (a, b, c, d), (da, db, dc, dd) = primals, tangents
    return products_apart(*primals), da * b + a * db - (dc * d + c * dd)


def _halves(number: Array) -> tuple[Array, Array]:
    """Return a float as the sum of two with half of its digits each."""
    info = jnp.finfo(number.dtype)
    high = lax.reduce_precision(number, info.nexp, info.nmant // 2)
    return high, number - high


def log_ratio(a: TwoFloats, b: TwoFloats) -> TwoFloats:
    r"""Return $\log(a / b)$ of positive numbers as a pair, of which the lower part has no derivative."""
    ratio = a.high / b.high
    high = jnp.log(ratio)
    info = jnp.finfo(high.dtype)
    if info.nmant > DIGITS:
        return TwoFloats(high, jnp.zeros_like(high))
    a, b, ratio, near = lax.stop_gradient((a, b, ratio, high))
    power = lax.reduce_precision(ratio, info.nexp, 0)  # log(a / b) = log(power) + 2 artanh(s)
    b = TwoFloats(b.high * power, b.low * power)
    total = sum_of(a.high, b.high)
    difference = a.high - b.high
    s = difference / total.high
    rest = (a.low - b.low) - s * (total.low + a.low + b.low) - product_less(s, total.high, difference)
    exponent = jnp.round(jnp.log2(power))
    square = s * s
    series = 2 * s * square * _polynomial(square, [1 / (2 * n + 3) for n in range(6)])
    low = ((exponent * LOG_2[0] - near) + 2 * s) + (2 * rest / total.high + exponent * LOG_2[1] + series)
    return TwoFloats(high, low)


@jax.custom_jvp
def log_peak(x: Array) -> Array:
    r"""Return $c(x) = \log(x^x e^{-x} / \Gamma(x + 1))$, elementwise: zero at zero, $-\infty$ below.

    It is the log density of a Poisson variable at its mean, about $-\log(2 \pi x) / 2$.
    """
    least = LARGE[jnp.finfo(x.dtype).nmant <= DIGITS]
    is_large = x > least
    small = jnp.clip(x, 0.0, least)
    large = jnp.where(is_large, x, small + least)  # Gamma(x + 1 + h) = Gamma(x + 1) (x + 1) ... (x + h)
    log_large, inverse = jnp.log(large), 1 / large
    peak = -0.5 * (np.log(2 * np.pi) + log_large) - inverse * _polynomial(inverse * inverse, STIRLING)
    factors = math.prod((small + step for step in range(2, int(least) + 1)), start=small + 1)
    change = xlogy(small, small) - large * log_large + least + jnp.log(factors)
    of_small = jnp.where(x == 0, 0.0, jnp.where(x < 0, -jnp.inf, peak + change))
    return jnp.where(is_large, peak, of_small)


@log_peak.defjvp
def _peak_derivative(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents
    least = LARGE[jnp.finfo(x.dtype).nmant <= DIGITS]
    large = jnp.maximum(x, least)
    small = jnp.clip(x, jnp.finfo(x.dtype).tiny, least)
    inverse = 1 / large
    coefficients = [(2 * n + 1) * coefficient for n, coefficient in enumerate(STIRLING)]
    of_large = inverse * (inverse * _polynomial(inverse * inverse, coefficients) - 0.5)
    of_small = jnp.log(small) - digamma(small + 1)
    return log_peak(x), jnp.where(x > least, of_large, of_small) * tangent


@jax.custom_jvp
def log1p_less(t: Array, ratio: Array) -> Array:
    r"""Return $\log(1 + t) - t$ with a small relative error; `ratio` is $1 + t$ with all digits, near zero too."""
    near = (t > -0.35) & (t < 0.5)
    return jnp.where(near, _log1p_series(jnp.where(near, t, 0.0)), jnp.log(jnp.where(near, 1.0, ratio)) - t)


@log1p_less.defjvp
def _log1p_derivative(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    t, ratio = primals
    return log1p_less(t, ratio), -t / ratio * tangents[0]


@jax.custom_jvp
def expm1_less(t: Array) -> Array:
    r"""Return $e^t - 1 - t$ with a small relative error."""
    near = jnp.abs(t) < 0.5
    within = jnp.where(near, t, 0.0)
    terms = 8 if jnp.finfo(t.dtype).nmant <= DIGITS else 15
    factorials = np.cumprod(np.arange(1.0, terms + 2))
    series = within * within * _polynomial(within, list(1 / factorials[1:]))
    return jnp.where(near, series, jnp.exp(jnp.where(near, 0.0, t)) - 1 - t)


@expm1_less.defjvp
def _expm1_derivative(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (t,), (tangent,) = primals, tangents
    remainder = expm1_less(t)
    return remainder, (remainder + t) * tangent


def _log1p_series(t: Array) -> Array:
    r"""Return $\log(1 + t) - t$ for $t$ from -0.35 to 0.5."""
    s = t / (2 + t)  # log(1 + t) = 2 artanh(s), and t - 2 s = s t
    square = s * s
    terms = 5 if jnp.finfo(t.dtype).nmant <= DIGITS else 12
    return 2 * s * square * _polynomial(square, [1 / (2 * n + 3) for n in range(terms)]) - s * t


@jax.custom_jvp
def log_mean_exp_less(p: Array, t: Array) -> Array:
    r"""Return $\log(1 + p (e^t - 1)) - p t$ with a small relative error, for $p \le 1 / 2$."""
    near = jnp.abs(t) < 0.5
    remainder = expm1_less(t)
    w = p * (remainder + t)
    series = _log1p_series(jnp.where(near, w, 0.0)) + p * remainder
    return jnp.where(near, series, jnp.log1p(w) - p * t)


@log_mean_exp_less.defjvp
def _log_mean_exp_derivative(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    (p, t), (dp, dt) = primals, tangents
    remainder = expm1_less(t)
    growth = remainder + t
    of_p = remainder - p * t * growth
    of_t = p * (1 - p) * growth
    return log_mean_exp_less(p, t), (of_p * dp + of_t * dt) / (1 + p * growth)


def _polynomial(x: Array, coefficients: Sequence[float]) -> Array:
    """Return a polynomial by its coefficients, that of the lowest power first."""
    *others, last = coefficients
    total = jnp.full_like(x, last)
    for coefficient in reversed(others):
        total = total * x + coefficient
    return total


@jax.custom_jvp
def deviance(x: Array, mean: Array, excess: Array) -> Array:
    r"""Return $D(x, M) = x \log(x / M) + M - x$, which is $M$ where $x = 0$.

    Args:
        x: value.
        mean: the mean $M$.
        excess: $M - x$, computed without cancellation; derivatives are those by `x` and `mean`.
    """
    positive, t, ratio = _relative(x, mean, excess)
    return jnp.where(positive, -x * log1p_less(t, ratio), mean)


def _deviance_derivative(primals: tuple[Array, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    (x, mean, excess), (dx, dmean, _) = primals, tangents
    positive, t, ratio = _relative(x, mean, excess)
    value = deviance(x, mean, excess)
    tangent = jnp.zeros_like(value)
    if not isinstance(dmean, SymbolicZero):
        tangent = jnp.where(positive, excess / mean, 1.0) * dmean
    if not isinstance(dx, SymbolicZero):  # a count has none, and its part would take as long as the value
        tangent = tangent - (log1p_less(t, ratio) + t) * dx
    return value, tangent


deviance.defjvp(_deviance_derivative, symbolic_zeros=True)


def _relative(x: Array, mean: Array, excess: Array) -> tuple[Array, Array, Array]:
    """Return the mask of positive values, and excess and mean in units of the value, zero and one elsewhere."""
    positive = x > 0
    inverse = 1 / jnp.where(positive, x, 1.0)
    return positive, jnp.where(positive, excess * inverse, 0.0), jnp.where(positive, mean * inverse, 1.0)


def logit_deviance(k: TwoFloats, m: TwoFloats, logit: Array) -> Array:
    r"""Return $D(k, n p) + D(m, n (1 - p))$ with $n = k + m$ and $p = \sigma(u)$ at a logit $u$.

    With $p_0 = k / n$ and $\delta = u - \log(k / m)$ it is $n (\log(1 + p_0 (e^\delta - 1)) - p_0 \delta)$. A zero is
    replaced by a half, and what this changes is added.

    Args:
        k: number of successes, or weight of them.
        m: number of failures.
        logit: logit of the probability of success.
    """
    swapped = k.high > m.high
    less = jnp.minimum(k.high, m.high)
    none = less <= 0
    more = jnp.maximum(k.high, m.high)
    more = jnp.where(more > 0, more, 0.5)
    half = TwoFloats(jnp.where(none, 0.5, less), jnp.where(none, 0.0, jnp.where(swapped, m.low, k.low)))
    other = TwoFloats(more, jnp.where(swapped, k.low, m.low))
    total = half.high + other.high
    p, q = half.high / total, other.high / total
    reference = log_ratio(half, other)
    distance = number_less(jnp.where(swapped, -logit, logit), reference)
    change = log_mean_exp_less(p, jnp.minimum(distance, FARTHEST)) + q * jnp.maximum(distance - FARTHEST, 0.0)
    n = jnp.maximum(k.high, 0.0) + jnp.maximum(m.high, 0.0)
    return n * change + jnp.where(none, n * p, 0.0) * distance - jnp.where(none, n * jnp.log1p(-p), 0.0)


def logits_deviance(k: TwoFloats, n: Array, logits: Array) -> Array:
    r"""Return $\sum_i k_i \log(k_i / (n p_i))$ of counts of n trials and $p = \operatorname{softmax}(u)$, classes last.

    With $p_{0i} = k_i / n$ and $\delta_i = u_i - \log k_i + s$ it is $n (\log(1 + w) - m)$ for any shift $s$, where $m$
    and $w$ are the sums of $p_{0i} \delta_i$ and $p_{0i} (e^{\delta_i} - 1)$. A class without counts adds to $w$ alone.
    """
    none = k.high <= 0
    most = jnp.max(k.high, -1, keepdims=True)
    at_most = lax.stop_gradient(jnp.max(jnp.where(k.high == most, logits, -jnp.inf), -1, keepdims=True))
    reference = log_ratio(
        TwoFloats(jnp.where(none, 1.0, k.high), jnp.where(none, 0.0, k.low)),
        TwoFloats(jnp.maximum(most, 1.0), jnp.zeros_like(most)),
    )
    p = jnp.maximum(k.high, 0.0) / jnp.maximum(n, 1.0)
    distance = sum_of(logits, -at_most)
    distance = number_less(distance.high, reference) + distance.low
    shift = jnp.sum(p * distance, -1, keepdims=True)
    shift = shift + jnp.maximum(jnp.max(distance, -1, keepdims=True) - shift - FARTHEST, 0.0)
    distance = distance - lax.stop_gradient(shift)
    remainders = jnp.where(none, jnp.exp(distance) / jnp.maximum(n, 1.0), p * expm1_less(distance))
    remainder, m = jnp.sum(remainders, -1), jnp.sum(p * distance, -1)
    w = remainder + m
    near = w < 0.5
    change = jnp.where(near, _log1p_series(jnp.where(near, w, 0.0)) + remainder, jnp.log1p(w) - m)
    return n[..., 0] * change


def log_rising(x: Array, steps: float) -> Array:
    r"""Return $\log(\Gamma(x + h) / \Gamma(x)) - h \log x$ for $h$ steps."""
    change = steps / x
    return x * log1p_less(change, 1 + change) + (steps - 1) * jnp.log1p(change) + log_peak(x) - log_peak(x + steps)
