r"""Distributions of NumPyro with log densities that keep their digits for large counts and concentrations.

A rule writes a log density as peaks $c(\cdot)$ and deviances. In float32 it is exact to $10^{-3}$ for counts and
parameters of up to $10^9$; the differences of log-gammas in NumPyro are off by tens and hundreds there.

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
from collections.abc import Callable, Sequence
from copy import copy
from types import MethodType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero
from jax.nn import log_sigmoid
from jax.scipy.special import digamma, xlogy
from jax.typing import ArrayLike
from numpyro.distributions import Distribution

from phalanx.mesh.compatibility.numpyro_internals import validate_sample
from phalanx.mesh.compatibility.workarounds import Workaround

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

Rule = Callable[[Any, Any], Array]
"""Log density of a distribution at a value."""

SIMPLEX_DIGITS = 100.0
"""Distance of a sum of probabilities from 1, in units of the last digit, up to which it is a rounding error."""


RARE = 1e10
"""Ratio of a negative binomial variable's concentration to its mean from which on counts are far above the mean."""


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
    log_large = jnp.log(large)
    inverse = 1 / large
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
    p = half.high / total
    q = other.high / total
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
    remainder = jnp.sum(remainders, -1)
    m = jnp.sum(p * distance, -1)
    w = remainder + m
    near = w < 0.5
    change = jnp.where(near, _log1p_series(jnp.where(near, w, 0.0)) + remainder, jnp.log1p(w) - m)
    return n[..., 0] * change


def log_rising(x: Array, steps: float) -> Array:
    r"""Return $\log(\Gamma(x + h) / \Gamma(x)) - h \log x$ for $h$ steps."""
    change = steps / x
    return x * log1p_less(change, 1 + change) + (steps - 1) * jnp.log1p(change) + log_peak(x) - log_peak(x + steps)


def precise(distribution: Distribution) -> Distribution:
    """Return the distribution with a precise log density, also within another one; the same one if no rule applies.

    Subclasses that inherit a log density inherit its rule. A distribution within another one is an attribute of it: the
    base of an expanded, masked, transformed, truncated or zero-inflated one, and the components of a mixture.
    """
    rule = _rule_of(type(distribution))
    if rule is not None:
        distribution = copy(distribution)
        vars(distribution)["log_prob"] = MethodType(validate_sample(rule), distribution)
        return distribution
    inner = {name: _precise_inside(value) for name, value in vars(distribution).items()}
    new_attributes = {name: value for name, value in inner.items() if value is not vars(distribution)[name]}
    if new_attributes:
        distribution = copy(distribution)
        vars(distribution).update(new_attributes)
    return distribution


def _precise_inside(value: Any) -> Any:
    if isinstance(value, Distribution):
        return precise(value)
    if type(value) in (list, tuple) and any(isinstance(part, Distribution) for part in value):
        return type(value)(map(_precise_inside, value))
    return value


def _rule_of(kind: type) -> Rule | None:
    for base in kind.__mro__:
        if base in RULES and (base is not dist.BernoulliLogits or Workaround.BERNOULLI_AT_ZERO.is_on):
            return RULES[base]
        if "log_prob" in vars(base):
            return None
    return None


def _bernoulli(self: Any, value: ArrayLike) -> Array:
    """Return the log density; NaN for a value that is neither zero nor one."""
    value = jnp.asarray(value)
    logits = jnp.asarray(self.logits)
    m = jnp.where(value == 0, logits, jnp.where(value == 1, -logits, jnp.nan))
    # at zero both parts take the branch m + log(1 + exp(-m)), so that all derivatives are those of one expression
    above = m >= 0
    return -(jnp.where(above, m, 0.0) + jnp.log1p(jnp.exp(-jnp.where(above, m, -m))))


def _poisson(self: Any, value: ArrayLike) -> Array:
    k, rate = pairs_of(value, self.rate)
    return log_peak(k.high) - deviance(k.high, rate.high, number_less(rate.high, k))


def _binomial_probs(self: Any, value: ArrayLike) -> Array:
    n, k, probs = pairs_of(self.total_count, value, self.probs)
    m = n.minus(k)
    p = probs.high
    info = jnp.finfo(probs.high.dtype)
    # impossible counts keep a finite density, as in NumPyro: probabilities of 0 and 1 are often rounded ones
    p = jnp.where(k.high > 0, jnp.maximum(p, info.tiny), p)
    p = jnp.where(m.high > 0, jnp.minimum(p, 1 - info.eps), p)
    return _coefficient(k.high, m.high) - _deviance_of_probs(n, k, m, p)


def _binomial_logits(self: Any, value: ArrayLike) -> Array:
    n, k, logits = pairs_of(self.total_count, value, self.logits)
    m = n.minus(k)
    return _coefficient(k.high, m.high) - logit_deviance(k, m, logits.high)


def _coefficient(k: Array, m: Array) -> Array:
    """Return the log density of k successes and m failures if k / (k + m) is the probability of success."""
    return log_peak(k) + log_peak(m) - log_peak(jnp.maximum(k, 0.0) + jnp.maximum(m, 0.0))


def _deviance_of_probs(n: TwoFloats, k: TwoFloats, m: TwoFloats, p: Array) -> Array:
    """Return the deviance of k successes and m failures, n in all, with probability of success p."""
    excess = product_less(n.high, p, k.high) + (n.low * p - k.low)
    return deviance(k.high, n.high * p, excess) + deviance(m.high, n.high * (1 - p), -excess)


def _arrangements(weight: Array, count: Array) -> Array:
    r"""Return $\log(\Gamma(\alpha + k) / (\Gamma(\alpha) k!))$ without its largest part.

    The part is $(\alpha + k) \log(\alpha + k) - \alpha \log \alpha - k \log k$.
    """
    return _coefficient(weight, count) - jnp.log1p(jnp.maximum(count, 0.0) / weight)


def _gamma_poisson(self: Any, value: ArrayLike) -> Array:
    k, weight, rate = pairs_of(value, self.concentration, self.rate)
    a = weight.high
    r = jnp.minimum(rate.high, RARE)
    rare = rate.high > RARE
    excess = (product_less(k.high, r, a) + k.low * r) / (1 + r)  # of the weight's mean (a + k) r / (1 + r)
    excess = jnp.where(rare, k.high - a / rate.high, excess)
    of_weight = (a + k.high) / (1 + 1 / rate.high)
    of_count = (a + k.high) / (1 + rate.high)
    return _arrangements(a, k.high) - deviance(a, of_weight, excess) - deviance(k.high, of_count, -excess)


def _negative_binomial_probs(self: Any, value: ArrayLike) -> Array:
    k, weight, p = pairs_of(value, self.total_count, self.probs)
    n = sum_of(k.high, weight.high)
    n = TwoFloats(n.high, n.low + k.low + weight.low)
    return _arrangements(weight.high, k.high) - _deviance_of_probs(n, k, weight, p.high)


def _negative_binomial_logits(self: Any, value: ArrayLike) -> Array:
    k, weight, logits = pairs_of(value, self.total_count, self.logits)
    return _arrangements(weight.high, k.high) - logit_deviance(k, weight, logits.high)


def _multinomial_probs(self: Any, value: ArrayLike) -> Array:
    k, n, probs = pairs_of(value, _per_class(self.total_count), self.probs)
    p = probs.high
    total = jnp.sum(p, -1, keepdims=True)
    excess = (products_apart(n.high, p, k.high, total) - k.low * total) / total
    terms = jnp.sum(log_peak(k.high) - deviance(k.high, n.high * p / total, excess), -1)
    return terms - log_peak(n.high[..., 0]) + n.high[..., 0] * _log_total(total[..., 0])


def _multinomial_logits(self: Any, value: ArrayLike) -> Array:
    k, n, logits = pairs_of(value, _per_class(self.total_count), self.logits)
    peaks = jnp.sum(log_peak(k.high), -1) - log_peak(n.high[..., 0])
    return peaks - logits_deviance(k, n.high, logits.high)


def _per_class(number: ArrayLike) -> Array:
    return jnp.asarray(number)[..., None]


def _log_total(total: Array) -> Array:
    """Return the logarithm of a sum of probabilities; zero if it is 1 up to rounding errors."""
    normalised = jnp.abs(total - 1) < SIMPLEX_DIGITS * jnp.finfo(total.dtype).eps
    return jnp.where(normalised, 0.0, jnp.log(jnp.where(normalised, 1.0, total)))


def _dirichlet_multinomial(self: Any, value: ArrayLike) -> Array:
    k, weight = pairs_of(value, self.concentration)
    return _polya(weight.high, k)


def _beta_binomial(self: Any, value: ArrayLike) -> Array:
    n, k, a, b = pairs_of(self.total_count, value, self.concentration1, self.concentration0)
    return _polya(*_two_classes((a.high, b.high), (k, n.minus(k))))


def _beta_negative_binomial(self: Any, value: ArrayLike) -> Array:
    k, n, a, b = pairs_of(value, self.n, self.concentration1, self.concentration0)
    return _polya(*_two_classes((a.high, b.high), (k, n))) - jnp.log1p(k.high / n.high)


def _two_classes(weights: tuple[Array, Array], counts: tuple[TwoFloats, TwoFloats]) -> tuple[Array, TwoFloats]:
    """Stack the numbers of two classes along a new last axis."""

    def stack(*parts: Array) -> Array:
        return jnp.stack(jnp.broadcast_arrays(*parts), -1)

    high = stack(*(k.high for k in counts))
    low = stack(*(k.low for k in counts))
    return stack(*weights), TwoFloats(high, low)


def _polya(weight: Array, k: TwoFloats) -> Array:
    """Return the log density of counts whose probabilities have a Dirichlet distribution, classes last."""
    weights = jnp.sum(weight, -1, keepdims=True)
    n = jnp.sum(k.high, -1, keepdims=True)
    excess = (products_apart(k.high, weights, weight, n) + k.low * weights) / (weights + n)
    of_weight, of_count = ((weight + k.high) * part / (weights + n) for part in (weights, n))
    deviances = deviance(weight, of_weight, excess) + deviance(k.high, of_count, -excess)
    terms = _arrangements(weight, k.high) - deviances
    return jnp.sum(terms, -1) - _arrangements(weights, n)[..., 0]


def _gamma(self: Any, value: ArrayLike) -> Array:
    x, concentration, rate = (pair.high for pair in pairs_of(value, self.concentration, self.rate))
    positive = x != 0
    inside = jnp.where(positive, x, 1.0)
    excess = product_less(rate, inside, concentration)
    density = _log_weight(concentration) - deviance(concentration, rate * inside, excess)
    return jnp.where(positive, density - jnp.log(inside), _at_end(concentration, jnp.log(rate)))


def _inverse_gamma(self: Any, value: ArrayLike) -> Array:
    x, concentration, rate = (pair.high for pair in pairs_of(value, self.concentration, self.rate))
    excess = -product_less(concentration, x, rate) / x
    return _log_weight(concentration) - deviance(concentration, rate / x, excess) - jnp.log(x)


def _log_weight(concentration: Array) -> Array:
    r"""Return $\log(\alpha^\alpha e^{-\alpha} / \Gamma(\alpha))$."""
    return log_peak(concentration) + jnp.log(concentration)


def _at_end(concentration: Array, density: Array) -> Array:
    r"""Return a log density where $x^{\alpha - 1}$ is at zero: a number for $\alpha = 1$ only."""
    return jnp.where(concentration == 1, density, jnp.where(concentration > 1, -jnp.inf, jnp.inf))


def _beta(self: Any, value: ArrayLike) -> Array:
    x, a, b = (pair.high for pair in pairs_of(value, self.concentration1, self.concentration0))
    inside = jnp.where((x == 0) | (x == 1), 0.5, x)
    total = sum_of(a, b)
    none = jnp.zeros_like(a)
    density = _log_weight_of_two(a, b) - _deviance_of_probs(total, TwoFloats(a, none), TwoFloats(b, none), inside)
    density = density - jnp.log(inside) - jnp.log1p(-inside)
    return jnp.where(x == 0, _at_end(a, jnp.log(b)), jnp.where(x == 1, _at_end(b, jnp.log(a)), density))


def log_prob_of_beta_at_logit(a: ArrayLike, b: ArrayLike, logit: ArrayLike) -> Array:
    """Return the log density of a Beta(a, b) variable with this logit."""
    one, other, u = pairs_of(a, b, logit)
    density = _log_weight_of_two(one.high, other.high) - logit_deviance(one, other, u.high)
    return density - log_sigmoid(u.high) - log_sigmoid(-u.high)


def _log_weight_of_two(a: Array, b: Array) -> Array:
    return _log_weight(a) + _log_weight(b) - _log_weight(a + b)


def _dirichlet(self: Any, value: ArrayLike) -> Array:
    x, weight = (pair.high for pair in pairs_of(value, self.concentration))
    positive = x != 0
    inside = jnp.where(positive, x, 1.0)
    total, weights = (jnp.sum(numbers, -1, keepdims=True) for numbers in (x, weight))
    excess = products_apart(weights, inside, weight, total) / total
    terms = _log_weight(weight) - deviance(weight, weights * inside / total, excess) - jnp.log(inside)
    terms = jnp.sum(jnp.where(positive, terms, _at_end(weight, jnp.log(weights / total))), -1)
    return terms - _log_weight(weights[..., 0]) + weights[..., 0] * _log_total(total[..., 0])


def _student_t(self: Any, value: ArrayLike) -> Array:
    x, df, loc, scale = (pair.high for pair in pairs_of(value, self.df, self.loc, self.scale))
    return _power_law(df, jnp.square((x - loc) / scale), 1) - jnp.log(scale)


def _multivariate_student_t(self: Any, value: ArrayLike) -> Array:
    size = self.scale_tril.shape[-1]
    log_scale = jnp.sum(jnp.log(jnp.diagonal(self.scale_tril, axis1=-2, axis2=-1)), -1)
    normal = dist.MultivariateNormal(self.loc, scale_tril=self.scale_tril, validate_args=False)
    density, log_scale, df = (pair.high for pair in pairs_of(normal.log_prob(value), log_scale, self.df))
    square = -2 * (density + log_scale + 0.5 * size * np.log(2 * np.pi))
    return _power_law(df, square, size) - log_scale


def _power_law(df: Array, square: Array, size: int) -> Array:
    """Return the log density of a standard Student t vector with the given sum of squares."""
    normaliser = log_rising(0.5 * df, 0.5 * size) - 0.5 * size * np.log(2 * np.pi)
    return normaliser - 0.5 * (df + size) * jnp.log1p(square / df)


RULES: dict[type, Rule] = {
    dist.BernoulliLogits: _bernoulli,
    dist.Poisson: _poisson,
    dist.BinomialProbs: _binomial_probs,
    dist.BinomialLogits: _binomial_logits,
    dist.GammaPoisson: _gamma_poisson,
    dist.NegativeBinomialProbs: _negative_binomial_probs,
    dist.NegativeBinomialLogits: _negative_binomial_logits,
    dist.MultinomialProbs: _multinomial_probs,
    dist.MultinomialLogits: _multinomial_logits,
    dist.DirichletMultinomial: _dirichlet_multinomial,
    dist.BetaBinomial: _beta_binomial,
    dist.BetaNegativeBinomial: _beta_negative_binomial,
    dist.Gamma: _gamma,
    dist.InverseGamma: _inverse_gamma,
    dist.Beta: _beta,
    dist.Dirichlet: _dirichlet,
    dist.StudentT: _student_t,
    dist.MultivariateStudentT: _multivariate_student_t,
}
"""Rule of each distribution whose log density NumPyro computes with too few digits."""
