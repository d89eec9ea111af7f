r"""Distributions of NumPyro with log densities that keep their digits for large counts and concentrations.

A rule writes a log density as peaks $c(\cdot)$ and deviances, see `deviance.py`. In float32 it is exact to $10^{-3}$
for counts and parameters of up to $10^9$; the differences of log-gammas in NumPyro are off by tens and hundreds there.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from types import MethodType
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from jax.nn import log_sigmoid
from jax.typing import ArrayLike
from numpyro.distributions import Distribution

from phalanx.distributions.bernoulli import log_prob_of_bernoulli
from phalanx.distributions.deviance import (
    TwoFloats,
    deviance,
    log_peak,
    log_rising,
    logit_deviance,
    logits_deviance,
    number_less,
    pairs_of,
    product_less,
    products_apart,
    sum_of,
)
from phalanx.mesh.compatibility.numpyro_internals import validate_sample
from phalanx.mesh.compatibility.workarounds import Workaround

Rule = Callable[[Any, Any], Array]
"""Log density of a distribution at a value."""

SIMPLEX_DIGITS = 100.0
"""Distance of a sum of probabilities from 1, in units of the last digit, up to which it is a rounding error."""


RARE = 1e10
"""Ratio of a negative binomial variable's concentration to its mean from which on counts are far above the mean."""


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
    changed = {name: value for name, value in inner.items() if value is not vars(distribution)[name]}
    if changed:
        distribution = copy(distribution)
        vars(distribution).update(changed)
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


def _poisson(self: Any, value: ArrayLike) -> Array:
    k, rate = pairs_of(value, self.rate)
    return log_peak(k.high) - deviance(k.high, rate.high, number_less(rate.high, k))


def _binomial_probs(self: Any, value: ArrayLike) -> Array:
    n, k, probs = pairs_of(self.total_count, value, self.probs)
    m, p, info = n.minus(k), probs.high, jnp.finfo(probs.high.dtype)
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
    a, r, rare = weight.high, jnp.minimum(rate.high, RARE), rate.high > RARE
    excess = (product_less(k.high, r, a) + k.low * r) / (1 + r)  # of the weight's mean (a + k) r / (1 + r)
    excess = jnp.where(rare, k.high - a / rate.high, excess)
    of_weight, of_count = (a + k.high) / (1 + 1 / rate.high), (a + k.high) / (1 + rate.high)
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
    weights, n = jnp.sum(weight, -1, keepdims=True), jnp.sum(k.high, -1, keepdims=True)
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
    total, none = sum_of(a, b), jnp.zeros_like(a)
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
    dist.BernoulliLogits: log_prob_of_bernoulli,
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
