"""All discrete distributions of NumPyro, summed out and observed, against the sum over their values in float64."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats
from jax import Array
from jax.nn import logsumexp
from numpyro.contrib.control_flow import scan
from tests.unit.marginals.brute_force import log_sum

import phalanx as phx

Make = Callable[[Any], dist.Distribution]

PRIORS: dict[str, tuple[int, Make]] = {
    "BernoulliLogits": (2, dist.BernoulliLogits),
    "BernoulliProbs": (2, lambda e: dist.BernoulliProbs(jax.nn.sigmoid(e))),
    "BetaBinomial": (4, lambda e: dist.BetaBinomial(jnp.exp(e), 2.0, 3)),
    "BinomialLogits": (4, lambda e: dist.BinomialLogits(e, 3)),
    "BinomialProbs": (4, lambda e: dist.BinomialProbs(jax.nn.sigmoid(e), 3)),
    "CategoricalLogits": (3, lambda e: dist.CategoricalLogits(jnp.stack([e, 0 * e, 1 - e], -1))),
    "CategoricalProbs": (3, lambda e: dist.CategoricalProbs(jax.nn.softmax(jnp.stack([e, 0 * e, 1 - e], -1)))),
    "DiscreteUniform": (4, lambda e: dist.DiscreteUniform(0, 3).expand(jnp.shape(e))),
    "OrderedLogistic": (3, lambda e: dist.OrderedLogistic(e, jnp.array([-0.5, 0.7]))),
    "ZeroInflatedLogits": (4, lambda e: dist.ZeroInflatedLogits(dist.DiscreteUniform(0, 3).expand(jnp.shape(e)), e)),
    "ZeroInflatedProbs": (4, lambda e: dist.ZeroInflatedProbs(dist.BinomialLogits(e, 3), gate=0.3)),
}
"""Distributions with a finite list of values 0, 1, ...: the number of values, and the distribution."""

C = np.array([0, 2, 1])
COUNTS = np.array([[0, 2, 1], [3, 0, 0], [1, 1, 1]])

LIKELIHOODS: dict[str, tuple[np.ndarray, Make]] = {
    **{name: (C if size > 2 else C // 2, make) for name, (size, make) in PRIORS.items()},
    "BetaNegativeBinomial": (C, lambda e: dist.BetaNegativeBinomial(jnp.exp(e), 2.0, 3.0)),
    "DirichletMultinomial": (COUNTS, lambda e: dist.DirichletMultinomial(jnp.exp(jnp.stack([e, 0 * e, -e], -1)), 3)),
    "GammaPoisson": (C, lambda e: dist.GammaPoisson(jnp.exp(e), 2.0)),
    "GeometricLogits": (C, dist.GeometricLogits),
    "GeometricProbs": (C, lambda e: dist.GeometricProbs(jax.nn.sigmoid(e))),
    "HurdleLogits": (C, lambda e: dist.HurdleLogits(dist.Poisson(jnp.exp(e)), e)),
    "HurdlePoisson": (C, lambda e: dist.HurdlePoisson(jax.nn.sigmoid(e), jnp.exp(e))),
    "HurdleProbs": (C, lambda e: dist.HurdleProbs(dist.Poisson(jnp.exp(e)), gate=jax.nn.sigmoid(e))),
    "MultinomialLogits": (COUNTS, lambda e: dist.MultinomialLogits(jnp.stack([e, 0 * e, -e], -1), 3)),
    "MultinomialProbs": (
        COUNTS,
        lambda e: dist.MultinomialProbs(jax.nn.softmax(jnp.stack([e, 0 * e, -e], -1)), 3),
    ),
    "NegativeBinomial2": (C, lambda e: dist.NegativeBinomial2(jnp.exp(e), 2.0)),
    "NegativeBinomialLogits": (C, lambda e: dist.NegativeBinomialLogits(2.0, e)),
    "NegativeBinomialProbs": (C, lambda e: dist.NegativeBinomialProbs(2.0, jax.nn.sigmoid(e))),
    "Poisson": (C, lambda e: dist.Poisson(jnp.exp(e))),
    "ZeroInflatedPoisson": (C, lambda e: dist.ZeroInflatedPoisson(jax.nn.sigmoid(e), jnp.exp(e))),
}
"""Observed values, and their distribution."""

ROWS = 3
MASK = [True, False, True]
SEEN = np.array([0.3, 1.1, 2.2])
EFFECTS = np.array([-0.5, 0.3, 1.0])


@pytest.fixture(autouse=True)
def _as_in_inference() -> Iterator[None]:
    """In inference NumPyro does not check values, which makes each density depend on its value."""
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"), numpyro.validation_enabled(False):
        yield


def terms_of(model: Any, x: float) -> dict[str, Array]:
    tape = phx.trace(phx.substitute(phx.marginalize(model), {"x": jnp.asarray(x)}))()
    return {name: variable.log_prob() for name, variable in tape.items() if name != "x"}


def density(model: Any, x: float) -> float:
    target = phx.Target(phx.marginalize(model))
    return float(target.log_density({"x": jnp.asarray(x)}))


def is_discrete(kind: Any) -> bool:
    try:
        return kind.support.is_discrete is True
    except (AttributeError, NotImplementedError):  # no distribution, or one with the support of its parts
        return False


def test_all_discrete_distributions_are_listed():
    """New ones of NumPyro belong into the lists; Delta and mixtures have the values of their parts."""
    classes = {name: c for name in dist.__all__ if inspect.isclass(c := getattr(dist, name))}
    found = {name for name, c in classes.items() if is_discrete(c)}
    assert found <= {*LIKELIHOODS}
    assert {name for name in found if getattr(classes[name], "has_enumerate_support", False) is True} <= {*PRIORS}


@pytest.mark.slow
def test_each_prior_in_a_plate_under_scale_and_mask():
    def model() -> None:
        x: Any = numpyro.sample("x", dist.Normal(0.0, 1.0))
        masked, scaled = numpyro.handlers.mask(mask=jnp.array(MASK)), numpyro.handlers.scale(scale=jnp.exp(x))
        for name, (_, make) in PRIORS.items():
            with numpyro.plate(f"{name} rows", ROWS), masked, scaled:
                z: Any = numpyro.sample(f"z {name}", make(x))
            numpyro.sample(f"y {name}", dist.Normal(z * x, 1.0), obs=SEEN)

    found, x = terms_of(model, 0.4), 0.4
    for name, (size, make) in PRIORS.items():
        values = np.arange(size)
        own = np.exp(x) * np.array(MASK) * np.asarray(make(jnp.asarray(x)).log_prob(values))[:, None]
        rows = logsumexp(own + scipy.stats.norm.logpdf(SEEN, values[:, None] * x, 1.0), axis=0)
        np.testing.assert_allclose(found[f"y {name}"], rows, rtol=1e-9, err_msg=name)


@pytest.mark.slow
def test_each_prior_in_a_loop():
    """Chains of a state for each row, whose first step depends on no state."""

    def model() -> None:
        x: Any = numpyro.sample("x", dist.Normal(0.0, 1.0))
        for name, (_, make) in PRIORS.items():

            def step(before: Any, row: Any, name: str = name, make: Make = make) -> Any:
                with numpyro.handlers.scale(scale=jnp.exp(x)):
                    z: Any = numpyro.sample(f"z {name}", make(x))
                numpyro.sample(f"y {name}", dist.Normal(x * z + before, 1.0), obs=row)
                return z, None

            scan(step, jnp.zeros((), int), SEEN)

    found, x = terms_of(model, 0.4), 0.4
    for name, (size, make) in PRIORS.items():
        values = np.arange(size)
        own = np.exp(x) * np.asarray(make(jnp.asarray(x)).log_prob(values))
        before = jnp.where(values == 0, 0.0, -jnp.inf)
        for seen in SEEN:
            tied = before[:, None] + own + scipy.stats.norm.logpdf(seen, x * values + values[:, None], 1.0)
            before = logsumexp(tied, axis=0)
        np.testing.assert_allclose(found[f"z {name}"], logsumexp(before), rtol=1e-9, err_msg=name)


@pytest.mark.slow
def test_each_likelihood_given_a_discrete_variable():
    def model() -> None:
        x: Any = numpyro.sample("x", dist.Normal(0.0, 1.0))
        for name, (seen, make) in LIKELIHOODS.items():
            with numpyro.plate(f"{name} rows", ROWS):
                z: Any = numpyro.sample(f"z {name}", dist.DiscreteUniform(0, 2))
                numpyro.sample(f"y {name}", make(jnp.asarray(EFFECTS)[z] * x), obs=seen)

    found = terms_of(model, 0.4)
    for name, (seen, make) in LIKELIHOODS.items():
        each = [make(jnp.full(ROWS, effect * 0.4)).log_prob(jnp.asarray(seen)) for effect in EFFECTS]
        rows = logsumexp(jnp.stack(each), axis=0) - np.log(3)
        np.testing.assert_allclose(found[f"y {name}"], rows, rtol=1e-9, err_msg=name)


def test_scales_of_rows_whose_entries_are_one_event():
    """A scale for each of two events, of two entries each: every entry has its row's."""

    def model() -> None:
        x = phx.sample("x", dist.Normal(0.0, 1.0))
        states = dist.DiscreteUniform(0, 2).expand([2, 3]).to_event(1)
        z = phx.scale(lambda: phx.sample("z", states), jnp.array([1.0, 2.5]) * jnp.exp(x))()
        phx.sample("y", dist.Normal(z * x, 1.0), obs=np.stack([SEEN, SEEN]))

    exact = log_sum(model, {"x": 0.4}, {"z": (3, (2, 3))})
    np.testing.assert_allclose(density(model, 0.4), exact, rtol=1e-9)


COVARIANCE = np.array([[1.0, 0.3], [0.3, 2.0]])
FACTOR = np.linalg.cholesky(COVARIANCE)
OF_ROWS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "covariance": ((), lambda mean: dist.MultivariateNormal(mean, COVARIANCE)),
    "factor": ((), lambda mean: dist.MultivariateNormal(mean, scale_tril=FACTOR)),
    "precision": ((), lambda mean: dist.MultivariateNormal(mean, precision_matrix=COVARIANCE)),
    "Student": ((), lambda mean: dist.MultivariateStudentT(5.0, mean, FACTOR)),
    "low rank": ((), lambda mean: dist.LowRankMultivariateNormal(mean, FACTOR[:, :1], jnp.ones(2))),
    "matrix": ((2,), lambda mean: dist.MatrixNormal(jnp.stack([mean, mean], -2), FACTOR, FACTOR)),
    "flattened": ((), lambda mean: dist.Normal(jnp.tanh(mean.reshape(-1)).reshape(mean.shape), 1.0).to_event(1)),
}
"""Distributions of a row, given its mean: the rows of a mixture share what else they have."""


@pytest.mark.slow
def test_mixtures_whose_components_share_a_covariance():
    """The rows are too many to be summed over jointly."""
    rows, random = 40, np.random.default_rng(0)
    means = jnp.asarray(random.normal(size=(3, 2)))
    seen = {name: random.normal(size=(rows, *more, 2)) for name, (more, _) in OF_ROWS.items()}

    def model() -> None:
        x: Any = numpyro.sample("x", dist.Normal(0.0, 1.0))
        for name, (_, make) in OF_ROWS.items():
            with numpyro.plate(f"{name} rows", rows):
                z: Any = numpyro.sample(f"z {name}", dist.DiscreteUniform(0, 2))
                numpyro.sample(f"y {name}", make(x * means[z]), obs=seen[name])

    found = terms_of(model, 0.4)
    for name, (_, make) in OF_ROWS.items():
        each = [make(jnp.broadcast_to(0.4 * mean, (rows, 2))).log_prob(seen[name]) for mean in means]
        exact = logsumexp(jnp.stack(each), axis=0) - np.log(3)
        np.testing.assert_allclose(found[f"y {name}"], exact, rtol=1e-9, err_msg=name)


def mixture() -> None:
    x = phx.sample("x", dist.Normal(0.0, 1.0))
    z = phx.sample("z", dist.DiscreteUniform(0, 3).expand([ROWS]))
    phx.sample("y", dist.Normal(x + z, 1.0).to_event(1), obs=SEEN)


def log_evidence() -> float:
    """The evidence of `mixture`: observations of each joint value have covariance 1 + I."""
    values = np.stack(np.meshgrid(*[np.arange(4)] * ROWS, indexing="ij"), -1).reshape(-1, ROWS)
    of_all: Any = np.ones((ROWS, ROWS)) + np.eye(ROWS)
    each = scipy.stats.multivariate_normal(np.zeros(ROWS), of_all).logpdf(SEEN - values)
    return float(logsumexp(each) - ROWS * np.log(4))


@pytest.mark.slow
def test_importance_estimates_the_evidence_of_a_discrete_uniform():
    """The error is a standard error: 5 of them fail once in a million times."""
    found = phx.importance(
        phx.marginalize(mixture), lambda: phx.sample("x", dist.StudentT(5.0, -0.2, 0.7)), seed=1
    ).evidence()
    assert abs(found.log_evidence - log_evidence()) < 5 * found.error


@pytest.mark.slow
def test_smc_estimates_the_evidence_of_a_discrete_uniform():
    """The error is a standard error: 5 of them fail once in a million times."""
    found = phx.smc(phx.marginalize(mixture), progress=False).evidence()
    assert abs(found.log_evidence - log_evidence()) < 5 * found.error


@pytest.mark.slow
def test_fit_estimates_the_evidence_of_a_discrete_uniform():
    """The error is a standard error: 5 of them fail once in a million times."""
    found = phx.fit(phx.marginalize(mixture), phx.guides.laplace(), progress=False).evidence()
    assert abs(found.log_evidence - log_evidence()) < 5 * found.error


@pytest.mark.slow
def test_maximum_where_a_variable_scales_the_density_of_a_discrete_uniform():
    """The density of x is that of its prior times 4 to the power of 3 (1 - exp x): its maximum has a closed form."""

    def model() -> None:
        x = phx.sample("x", dist.Normal(0.0, 1.0))
        phx.scale(lambda: phx.sample("z", dist.DiscreteUniform(0, 3).expand([ROWS])), jnp.exp(x))()

    found = phx.maximize(phx.marginalize(model)).values["x"]
    np.testing.assert_allclose(found, -scipy.special.lambertw(3 * np.log(4)).real, rtol=1e-3)


def alone(make: Make) -> Any:
    def model() -> None:
        x = phx.sample("x", dist.Normal(0.0, 1.0))
        z = phx.sample("z", make(x))
        phx.sample("y", dist.Normal(z * x, 1.0), obs=0.7)

    return model, ()


def in_rows(make: Make) -> Any:
    def model() -> None:
        x = phx.sample("x", dist.Normal(0.0, 1.0))
        z = phx.scale(
            lambda: phx.sample("z", make(jnp.full(ROWS, x)).mask(jnp.array(MASK))), jnp.array([1.0, 0.5, 2.0])
        )()
        phx.sample("y", dist.Normal(z * x, 1.0), obs=SEEN)

    return model, (ROWS,)


def in_an_event(make: Make) -> Any:
    def model() -> None:
        x = phx.sample("x", dist.Normal(0.0, 1.0))
        z = phx.sample("z", make(jnp.full(ROWS, x)).to_event(1))
        phx.sample("y", dist.Normal(z.sum() * x, 1.0), obs=0.7)

    return model, (ROWS,)


def without_observations(make: Make) -> Any:
    def model() -> None:
        x = phx.sample("x", dist.Normal(0.0, 1.0))
        phx.scale(lambda: phx.sample("z", make(jnp.full(ROWS, x))), jnp.exp(x))()

    return model, (ROWS,)


@pytest.mark.slow
@pytest.mark.parametrize("place", [alone, in_rows, in_an_event, without_observations])
@pytest.mark.parametrize("prior", PRIORS)
def test_each_prior_in_a_target(prior, place):
    size, make = PRIORS[prior]
    model, shape = place(make)
    exact = log_sum(model, {"x": 0.4}, {"z": (size, shape)})
    np.testing.assert_allclose(density(model, 0.4), exact, rtol=1e-9)
