"""Log densities in float32 of counts and parameters up to 1e9, beside NumPyro's in float64 at the same inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.special import expit, gammaln, logit, xlogy

import phalanx as phx
from phalanx.distributions.precise import log_peak, precise

ROWS = 300


def sizes(random: np.random.Generator, low: float = 0.0, high: float = 9.0) -> np.ndarray:
    """Return numbers of all magnitudes."""
    return 10 ** random.uniform(low, high, ROWS)


def counts(values: np.ndarray, most: np.ndarray | float = 2**30) -> np.ndarray:
    return np.clip(np.round(values), 0, most).astype(np.int32)


def poisson(random):
    k = counts(sizes(random, -1))
    rate = np.maximum(k + random.normal(size=ROWS) * 3 * np.sqrt(k), 0.1)
    return [rate], k


def binomial(random):
    n, p = counts(sizes(random)), expit(random.normal(size=ROWS) * 3)
    k = counts(n * p + random.normal(size=ROWS) * 3 * np.sqrt(n * p * (1 - p)), n)
    return n, p, k


def binomial_probs(random):
    n, p, k = binomial(random)
    return [p, n], k


def binomial_logits(random):
    n, p, k = binomial(random)
    return [logit(p), n], k


def gamma_poisson(random):
    concentration, rate = sizes(random, -2), sizes(random, -4, 4)
    mean = np.minimum(concentration / rate, 1e9)
    rate = concentration / mean
    return [concentration, rate], counts(mean + random.normal(size=ROWS) * 3 * np.sqrt(mean * (1 + 1 / rate)))


def negative_binomial_2(random):
    mean, concentration = sizes(random, -1, 7), sizes(random, -1, 12)
    return [mean, concentration], counts(mean + random.normal(size=ROWS) * 3 * np.sqrt(mean + mean**2 / concentration))


def negative_binomial_probs(random):
    (concentration, rate), k = gamma_poisson(random)
    return [concentration, 1 / (1 + rate)], k


def negative_binomial_logits(random):
    (concentration, rate), k = gamma_poisson(random)
    return [concentration, -np.log(rate)], k


def simplex(random, classes):
    p = random.dirichlet(np.full(classes, 0.7), ROWS) + 1e-6
    return p / p.sum(-1, keepdims=True)


def multinomial(random):
    p = simplex(random, 5)
    k = random.multinomial(counts(sizes(random)), p).astype(np.int32)
    return p, k.sum(-1), k


def multinomial_probs(random):
    p, n, k = multinomial(random)
    return [p, n], k


def multinomial_logits(random):
    p, n, k = multinomial(random)
    return [np.log(p) + random.normal(size=(ROWS, 1)), n], k


def dirichlet_multinomial(random):
    weights = simplex(random, 4) * sizes(random, -1)[:, None]
    n = counts(sizes(random))
    k = random.multinomial(n, [random.dirichlet(np.maximum(w, 1e-3)) for w in weights]).astype(np.int32)
    return [weights, n], k


def beta_binomial(random):
    a, b, n = sizes(random, -1), sizes(random, -1), counts(sizes(random))
    return [a, b, n], random.binomial(n, random.beta(a, b)).astype(np.int32)


def beta_negative_binomial(random):
    a, b, n = sizes(random, 0.5), sizes(random, 0, 6), sizes(random, 0, 6)
    return [a, b, n], counts(n * b / a * np.exp(random.normal(size=ROWS) / np.sqrt(np.minimum(np.minimum(a, b), n))))


def gamma(random):
    concentration, rate = sizes(random, -1), sizes(random, -3, 3)
    return [concentration, rate], np.maximum(random.gamma(concentration), 1e-20) / rate


def inverse_gamma(random):
    (concentration, rate), x = gamma(random)
    return [concentration, rate], 1 / np.maximum(x, 1e-15)


def chi2(random):
    (concentration, _), _ = gamma(random)
    return [2 * concentration], np.maximum(random.chisquare(2 * concentration), 1e-20)


def beta(random):
    a, b = sizes(random, -1), sizes(random, -1)
    return [a, b], np.clip(random.beta(a, b), 1e-20, 1 - 2e-7)


def dirichlet(random):
    weights = simplex(random, 4) * sizes(random, 0.5)[:, None]
    x = np.array([random.dirichlet(w) for w in weights]) + 1e-9
    return [weights], x / x.sum(-1, keepdims=True)


def student_t(random):
    df = sizes(random, -1)
    return [df, random.normal(size=ROWS), np.exp(random.normal(size=ROWS))], random.standard_t(np.maximum(df, 1)) * 2


def multivariate_student_t(random):
    df, factor = sizes(random, -1), np.tril(random.uniform(0, 0.3, size=(ROWS, 3, 3))) + np.eye(3)
    return [df, random.normal(size=(ROWS, 3)), factor], random.normal(size=(ROWS, 3)) * 3


FAMILIES: dict[Any, Callable[[np.random.Generator], tuple[list[np.ndarray], np.ndarray]]] = {
    dist.Poisson: poisson,
    dist.BinomialProbs: binomial_probs,
    dist.BinomialLogits: binomial_logits,
    dist.GammaPoisson: gamma_poisson,
    dist.NegativeBinomial2: negative_binomial_2,
    dist.NegativeBinomialProbs: negative_binomial_probs,
    dist.NegativeBinomialLogits: negative_binomial_logits,
    dist.MultinomialProbs: multinomial_probs,
    dist.MultinomialLogits: multinomial_logits,
    dist.DirichletMultinomial: dirichlet_multinomial,
    dist.BetaBinomial: beta_binomial,
    dist.BetaNegativeBinomial: beta_negative_binomial,
    dist.Gamma: gamma,
    dist.InverseGamma: inverse_gamma,
    dist.Chi2: chi2,
    dist.Beta: beta,
    dist.Dirichlet: dirichlet,
    dist.StudentT: student_t,
    dist.MultivariateStudentT: multivariate_student_t,
}
ON_SIMPLEX = {dist.MultinomialProbs: 0, dist.Dirichlet: -1}
"""Position of probabilities among parameters and value; rounded ones are taken to add up to 1."""


def in_float32(number: np.ndarray) -> np.ndarray:
    return number.astype(np.float32) if np.issubdtype(number.dtype, np.floating) else number


def evaluated(
    family: Any, mend: Callable[[Any], Any], numbers: list[np.ndarray], floats: list[int]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return log densities, and the derivatives by the numbers that are floats; the value is the last number."""

    def densities(*given):
        full = list(map(jnp.asarray, numbers))
        for number, array in zip(floats, given, strict=True):
            full[number] = array
        density = mend(family(*full[:-1], validate_args=False)).log_prob(full[-1])
        return jnp.sum(density), density

    function = jax.jit(jax.value_and_grad(densities, tuple(range(len(floats))), has_aux=True))
    (_, density), gradients = function(*(jnp.asarray(numbers[n]) for n in floats))
    return np.asarray(density), list(map(np.asarray, gradients))


QUICK = (dist.Poisson, dist.BinomialProbs, dist.BinomialLogits, dist.GammaPoisson, dist.Gamma, dist.Beta, dist.StudentT)
"""Families whose rules have all functions that the others use, but for those of several classes."""


@pytest.mark.parametrize(
    "family",
    [pytest.param(family, marks=[] if family in QUICK else pytest.mark.slow) for family in FAMILIES],
    ids=lambda family: family.__name__,
)
def test_densities_and_gradients_keep_their_digits(family):
    parameters, value = FAMILIES[family](np.random.default_rng(0))
    numbers = [in_float32(number) for number in (*parameters, value)]
    floats = [n for n, number in enumerate(numbers) if number.dtype == np.float32]
    found, gradients = evaluated(family, precise, numbers, floats)
    wide = [number.astype(np.float64) for number in numbers]
    if family in ON_SIMPLEX:
        wide[ON_SIMPLEX[family]] /= wide[ON_SIMPLEX[family]].sum(-1, keepdims=True)
    with jax.enable_x64(True):
        expected, expected_gradients = evaluated(family, lambda d: d, wide, floats)
    assert found.dtype == np.float32
    # NegativeBinomial2 stores the ratio of concentration and mean, rounded: off by 1e-3 at 1e7
    error = np.abs(found - expected) / (1e-3 + 3e-6 * np.abs(expected))
    assert error.max() < 1, (error.max(), [n[error.argmax()] for n in numbers])
    for n, gradient, true in zip(floats, gradients, expected_gradients, strict=True):
        if n == {family: at % len(numbers) for family, at in ON_SIMPLEX.items()}.get(family):
            gradient = gradient - (gradient * numbers[n]).sum(-1, keepdims=True)  # along the simplex
            true = true - (true * wide[n]).sum(-1, keepdims=True)
        scale = np.abs(wide[n]) if n < len(parameters) or family is not dist.StudentT else 1.0
        far = np.abs(gradient - true) * scale > 1e-3 * (1 + np.abs(true) * scale)
        assert far.mean() < 0.01, (n, gradient[far][:5], true[far][:5])


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "event": lambda d: d.to_event(1),
    "expand": lambda d: d.expand([2, 3]),
    "mask": lambda d: d.mask(np.array([True, False, True])),
    "zero-inflated": lambda d: dist.ZeroInflatedDistribution(d, gate=0.1),
    "hurdle": lambda d: dist.HurdleProbs(d, 0.1),
    "mixture": lambda d: dist.MixtureSameFamily(dist.Categorical(jnp.full(3, 1 / 3)), d),
    "mixture of several": lambda d: dist.MixtureGeneral(dist.Categorical(jnp.full(2, 0.5)), [d, d]),
    "transformed": lambda d: dist.TransformedDistribution(d, dist.transforms.AffineTransform(0.0, 1.0)),
}


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_densities_within_others_keep_their_digits(wrapped):
    rates, counts = np.array([1e8, 1.0002e8, 0.9999e8], np.float32), np.array([100_010_001, 100_010_003, 100_000_001])
    value = counts[0] if wrapped == "mixture" else counts
    with jax.numpy_rank_promotion("allow"):
        found = precise(WRAPPED[wrapped](dist.Poisson(rates))).log_prob(np.int32(value))
        with jax.enable_x64(True):
            wide = WRAPPED[wrapped](dist.Poisson(rates.astype(np.float64)))
            expected = np.asarray(wide.log_prob(value.astype(np.float64) if wrapped == "transformed" else value))
    np.testing.assert_allclose(found, expected, atol=1e-3)


class Users(dist.Poisson):
    """Distribution with a density of the user's."""

    def log_prob(self, value):
        return jnp.full(jnp.shape(value), 7.0)


class Named(dist.BetaProportion):
    """Distribution that inherits its density."""


def test_rules_are_inherited_and_never_replace_a_users_density():
    assert precise(Users(1.0)).log_prob(3) == 7.0
    found = precise(Named(jnp.float32(0.3), jnp.float32(1e6))).log_prob(jnp.float32(0.3005))
    a, b = np.float32(0.3) * np.float32(1e6), np.float32(np.float32(0.7) * np.float32(1e6))
    np.testing.assert_allclose(found, stats.beta.logpdf(np.float64(np.float32(0.3005)), a, b), atol=0.02)


EDGES = {
    "no count": (lambda: dist.Poisson(5.0), 0, -5.0),
    "no rate": (lambda: dist.Poisson(0.0), 0, 0.0),
    "impossible": (lambda: dist.Poisson(0.0), 2, -np.inf),
    "below": (lambda: dist.Poisson(5.0), -1, -np.inf),
    "no success": (lambda: dist.Binomial(10**7, probs=0.0), 0, 0.0),
    "no failure": (lambda: dist.Binomial(10**9, probs=1.0), 10**9, 0.0),
    "no failure, logit": (lambda: dist.Binomial(3, logits=2.0), 3, 3 * np.log(1 / (1 + np.exp(-2.0)))),
    "too many": (lambda: dist.Binomial(10, probs=0.3), 11, -np.inf),
    "too many, logit": (lambda: dist.Binomial(10, logits=0.3), 11, -np.inf),
    "too many, beta": (lambda: dist.BetaBinomial(1.0, 2.0, 10), 11, -np.inf),
    "none expected": (lambda: dist.NegativeBinomial2(0.0, 3.0), 0, 0.0),
    "gamma at zero": (lambda: dist.Gamma(1.0, 5.0), 0.0, np.log(5.0)),
    "gamma at zero, zero": (lambda: dist.Gamma(2.0, 5.0), 0.0, -np.inf),
    "beta at zero": (lambda: dist.Beta(1.0, 4.0), 0.0, np.log(4.0)),
    "beta at one": (lambda: dist.Beta(2.0, 0.5), 1.0, np.inf),
    "simplex": (lambda: dist.Dirichlet(jnp.ones(3)), jnp.array([0.0, 0.25, 0.75]), np.log(2.0)),
    "empty class": (
        lambda: dist.Multinomial(5, probs=jnp.array([0.0, 0.5, 0.5])),
        jnp.array([0, 2, 3]),
        np.log(10 / 32),
    ),
    "weights": (
        lambda: dist.MultinomialProbs(jnp.array([0.2, 0.2]), 2, validate_args=False),
        jnp.array([1, 1]),
        np.log(0.08),
    ),
}


@pytest.mark.parametrize("case", EDGES)
def test_edges_of_supports(case):
    make, value, expected = EDGES[case]
    with numpyro.validation_enabled(False):
        np.testing.assert_allclose(precise(make()).log_prob(value), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_second_derivatives_of_a_batch_of_lanes():
    def density(u):
        a, p = jnp.exp(u[0]), jax.nn.sigmoid(u[1])
        terms = (dist.Poisson(a), 7), (dist.Gamma(a, 2.0), 3.5), (dist.Binomial(20, probs=p), 4), (dist.Beta(a, 2.0), p)
        terms += (dist.Binomial(20, logits=u[1]), 4), (dist.NegativeBinomial2(3.0, a), 5), (dist.StudentT(a), u[1])
        return sum(jnp.asarray(mend(d).log_prob(value)) for d, value in terms)

    points = jnp.array([[0.3, -1.0], [1.5, 0.7], [3.0, 2.0]])
    mend = precise
    found = jax.jit(jax.vmap(jax.hessian(density)))(points)
    mend = lambda d: d  # noqa: E731
    np.testing.assert_allclose(found, jax.vmap(jax.hessian(density))(points), rtol=2e-4, atol=2e-4)


def test_every_count_has_its_own_density():
    k = np.arange(999_999_000, 999_999_040, dtype=np.int32)
    found = phx.log_joint(lambda y: phx.sample("y", dist.Poisson(np.float32(1e9)), obs=y))
    found = np.array([float(found({}, y=one)) for one in k[:2]]), float(found({}, y=k[-1]))
    true = stats.poisson.logpmf(k, 1e9)
    np.testing.assert_allclose([*found[0], found[1]], [*true[:2], true[-1]], atol=1e-4)


@pytest.mark.parametrize(
    "distribution, mean, sd",
    [
        (dist.Beta(3e5, 7e5), 0.3, np.sqrt(0.21 / 1e6)),
        (dist.Gamma(1e6, 1e5), 10.0, 0.01),
        (dist.StudentT(1e6), 0.0, 1.0),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.slow
def test_concentrated_variables_have_their_spread(distribution, mean, sd):
    posterior = phx.mcmc(lambda: phx.sample("x", distribution), num_warmup=300, num_samples=1000, progress=False)
    draws = np.float64(posterior.draws["x"])
    size = posterior.summary().loc["x", "ess_bulk"]
    assert [finding.topic for finding in posterior.verdict().findings] == ["prior only"]
    # 4.5 standard errors of a mean and of a standard deviation: a false failure in 70,000 tests
    assert abs(draws.mean() - mean) < 4.5 * sd / np.sqrt(size)
    assert abs(draws.std() / sd - 1) < 4.5 * np.sqrt(0.5 / size) + 0.02


@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 4e-6), (np.float64, 1e-13)])
def test_peaks_of_small_numbers_are_those_of_log_gammas(dtype, error):
    """Of small numbers they come from larger ones by the recurrence of the gamma function."""
    x = np.concatenate([np.linspace(0, 20, 2001), [1e-30, np.nextafter(dtype(3), dtype(4))]]).astype(dtype)
    with jax.enable_x64(dtype is np.float64):
        peaks = np.asarray(log_peak(jnp.asarray(x)))
        ends = np.asarray(log_peak(jnp.asarray([0.0, -1.0, np.nan, np.inf], dtype)))
    wide = x.astype(np.float64)
    np.testing.assert_allclose(peaks, xlogy(wide, wide) - wide - gammaln(wide + 1), rtol=0, atol=error)
    np.testing.assert_array_equal(ends, [0.0, -np.inf, np.nan, -np.inf])
