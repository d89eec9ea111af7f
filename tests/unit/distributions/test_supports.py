"""Supports: mass and quantiles of unconstrained densities against draws, for mixtures, transforms, all of NumPyro."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints, transforms

import phalanx as phx
from phalanx.distributions.bijections import bijection_onto
from phalanx.distributions.supports import entries_of_support, support_of
from phalanx.programs.unconstrained import run_unconstrained
from phalanx.programs.validity import find_invalid


@pytest.fixture(autouse=True)
def ranks():
    """Allow ranks to be promoted: NumPyro's mixtures do so."""
    with jax.numpy_rank_promotion("allow"):
        yield


GRID = jnp.linspace(-40.0, 40.0, 20_001)
QUANTILES = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)
DRAWS = 10_000


def two(first, second, support=None):
    mixing = dist.Categorical(jnp.array([1 / 3, 2 / 3]))
    return dist.MixtureGeneral(mixing, [first, second], support=support)


def affine(base, loc, scale, **kwargs):
    return dist.TransformedDistribution(base, transforms.AffineTransform(loc, scale, **kwargs))


def computed(value):
    """Return a number that exists only within a trace."""
    return jnp.where(jnp.zeros(()) > -1.0, value, 0.0)


NUMBERS = {
    "two intervals": lambda: two(dist.Uniform(-1, 0), dist.Uniform(0, 1)),
    "a gap": lambda: two(dist.Uniform(0, 1), dist.Uniform(2, 4)),
    "a line and a half": lambda: two(dist.Normal(0.0, 1.0), dist.Gamma(3.0, 2.0), constraints.real),
    "declared too narrow": lambda: two(dist.Normal(0.0, 1.0), dist.HalfNormal(3.0), constraints.positive),
    "nested": lambda: two(
        two(dist.Uniform(0, 1), dist.Uniform(1, 3)), dist.Uniform(-2, 0), constraints.interval(-2, 3)
    ),
    "truncated": lambda: two(
        dist.TruncatedNormal(0, 1, low=-1.0, high=0.5), dist.TruncatedNormal(0, 1, low=0.0, high=2.0)
    ),
    "both sides": lambda: two(
        dist.TruncatedNormal(0, 1, low=1.0), dist.TruncatedNormal(0, 1, high=-1.0), constraints.real
    ),
    "transforms": lambda: two(affine(dist.HalfNormal(1.0), 2.0, 1.0), dist.Normal(0.0, 1.0), constraints.real),
    "masked": lambda: two(dist.Uniform(0, 1).mask(True), dist.Uniform(1, 3), constraints.interval(0, 3)),
    "betas": lambda: two(
        dist.Beta(2.0, 2.0), affine(dist.Beta(2.0, 3.0), 0.0, 2.0, domain=constraints.unit_interval),
        constraints.interval(0, 2),
    ),
    "computed bounds": lambda: two(dist.Uniform(computed(-1.0), 0), dist.Uniform(0, computed(1.0))),
    "one family": lambda: dist.MixtureSameFamily(
        dist.Categorical(jnp.array([0.4, 0.6])), affine(dist.Exponential(jnp.ones(2)), jnp.array([-1.0, 1.0]), 1.0)
    ),
    "an affine half": lambda: affine(dist.HalfNormal(1.0), 1.0, -2.0),
    "an affine beta": lambda: affine(dist.Beta(0.5, 3.0), 1.0, -2.0),
    "a computed scale": lambda: affine(dist.Beta(2.0, 3.0), 1.0, computed(-2.0), domain=constraints.unit_interval),
    "exp of an interval": lambda: dist.TransformedDistribution(dist.Uniform(-1.0, 2.0), transforms.ExpTransform()),
    "power of a beta": lambda: dist.TransformedDistribution(dist.Beta(2.0, 2.0), transforms.PowerTransform(-1.0)),
    "affine after exp": lambda: dist.TransformedDistribution(
        dist.Normal(0.0, 1.0), [transforms.ExpTransform(), transforms.AffineTransform(2.0, 3.0)]
    ),
    "folded": lambda: dist.FoldedDistribution(dist.Uniform(-1.0, 2.0)),
    "no lower bound": lambda: dist.TruncatedNormal(0.0, 1.0, low=-jnp.inf, high=1.0),
    "perhaps a bound": lambda: dist.TruncatedNormal(0.0, 1.0, low=computed(0.5), high=jnp.inf),
}  # fmt: skip
"""Distributions of numbers, made within a trace."""


def cdf_errors(makers):
    """Return, by name, the mass of unconstrained densities and the largest error of the quantiles of draws."""

    def program():
        for name, make in makers.items():
            phx.sample(name, make())

    @jax.jit
    @jax.vmap
    def at(u):
        run = run_unconstrained(program, {name: u for name in makers}, {})
        terms = run.terms()
        return {name: (run.variables[name].value, sum(terms[name, part] for part in PARTS)) for name in makers}

    found = {}
    for name, (x, log_density) in jax.device_get(at(GRID)).items():
        weights = np.exp(np.nan_to_num(log_density.astype(float), nan=-np.inf)) * float(GRID[1] - GRID[0])
        draws = np.sort(np.asarray(jax.jit(lambda key, m=makers[name]: m().sample(key, (DRAWS,)))(jax.random.key(1))))
        errors = [weights[x <= draws[int(q * DRAWS)]].sum() - q for q in QUANTILES]
        found[name] = weights.sum(), np.max(np.abs(errors))
    return found


PARTS = "density", "jacobian"


@pytest.mark.slow
def test_densities_of_mixtures_and_transforms_have_the_quantiles_of_draws():
    for name, (mass, error) in cdf_errors(NUMBERS).items():
        assert abs(mass - 1) < 5e-3, name
        assert error < 0.025, name  # five standard errors of a quantile's level, for 10,000 draws


def test_a_mixture_with_angles_is_on_the_circle_if_nothing_lies_outside():
    angles, circle, line = dist.VonMises(3.0, 2.0), constraints.circular, constraints.real
    noise, narrow, wide = dist.Uniform(-np.pi, np.pi), dist.Uniform(-1.0, 1.0), dist.Normal(0.0, 1.0)
    for first, second, support in [(angles, noise, circle), (noise, angles, circle), (narrow, angles, circle)]:
        assert bijection_onto(support_of(two(first, second, support))).inverse_shape(()) == (2,)
    assert bijection_onto(support_of(two(angles, wide, line))).inverse_shape(()) == ()
    assert bijection_onto(support_of(two(noise, noise))).inverse_shape(()) == ()
    outside = phx.log_joint(lambda: phx.sample("x", two(narrow, angles, circle)))({"x": 2.0})
    np.testing.assert_allclose(outside, angles.log_prob(2.0) + np.log(2 / 3), rtol=1e-6)


def test_rows_may_lack_a_bound():
    low, high = np.array([-np.inf, 0.0, -np.inf, 0.0]), np.array([np.inf, np.inf, 1.0, 1.0])
    onto = bijection_onto(support_of(dist.TruncatedNormal(np.zeros(4), 1.0, low=low, high=high)))
    u = jnp.array([[-1.0], [0.5], [3.0]]) * jnp.ones(4)
    x = jnp.asarray(onto(u))
    assert (x >= low).all() and (x <= high).all()
    np.testing.assert_allclose(onto.inv(x), u, atol=1e-5)
    slopes = jax.vmap(jax.grad(lambda u: jnp.sum(onto(u))))(u)
    np.testing.assert_allclose(onto.log_abs_det_jacobian(u, x), jnp.log(jnp.abs(slopes)), atol=1e-5)


def test_an_affine_simplex_sums_to_its_scale():
    distribution = affine(dist.Dirichlet(jnp.ones(7)), 0.0, 7.0)
    target = phx.Target(lambda: phx.sample("x", distribution))
    x = target.constrain({"x": jnp.arange(6.0)})["x"]
    assert x.shape == (7,)
    np.testing.assert_allclose(x.sum(), 7.0, rtol=1e-6)
    alone = phx.Target(lambda: phx.sample("x", dist.Dirichlet(jnp.ones(7))))
    position = {"x": jnp.arange(6.0)}
    np.testing.assert_allclose(target.log_density(position), alone.log_density(position), rtol=1e-5)


def test_observed_values_may_be_of_any_component():
    y = np.array([-0.5, 0.5, 1.0], np.float32)
    log_joint = phx.log_joint(
        lambda y: phx.sample("y", two(dist.Uniform(-1, 0), dist.Uniform(0, 1)).expand([3]), obs=y)
    )
    np.testing.assert_allclose(log_joint({}, y), np.log([1 / 3, 2 / 3, 2 / 3]).sum(), rtol=1e-5)
    assert np.isneginf(log_joint({}, np.array([-0.5, 0.5, 1.5], np.float32)))
    counts = two(dist.Binomial(5, 0.5), dist.Binomial(10, 0.5))
    at_seven = phx.log_joint(lambda: phx.sample("n", counts, obs=7))({})
    np.testing.assert_allclose(at_seven, np.log(2 / 3) + dist.Binomial(10, 0.5).log_prob(7), rtol=1e-5)


def test_a_point_and_a_density_are_observed_but_not_sampled():
    def hurdle(y):
        gate = phx.sample("gate", dist.Beta(1.0, 1.0))
        mixing = dist.Categorical(probs=jnp.stack([gate, 1 - gate]))
        parts = [dist.Delta(0.0), dist.LogNormal(0.0, 1.0)]
        phx.sample("y", dist.MixtureGeneral(mixing, parts, support=constraints.nonnegative).expand([2]), obs=y)

    y, gate = np.array([0.0, 1.5], np.float32), 0.3
    expected = np.log(gate) + np.log1p(-gate) + dist.LogNormal(0.0, 1.0).log_prob(1.5)
    np.testing.assert_allclose(phx.log_joint(hurdle)({"gate": gate}, y), expected, rtol=1e-5)
    gradient = jax.grad(lambda g: phx.log_joint(hurdle)({"gate": g}, y))(gate)
    np.testing.assert_allclose(gradient, 1 / gate - 1 / (1 - gate), rtol=1e-4)
    hurdles = dist.HurdleProbs(dist.LogNormal(0.0, 1.0), gate), dist.HurdleLogNormal(gate, 0.0, 1.0)
    for distribution in hurdles:
        log_joint = phx.log_joint(lambda d=distribution: phx.sample("y", d.expand([2]), obs=y))
        np.testing.assert_allclose(log_joint({}), expected, rtol=1e-5)
        with pytest.raises(ValueError, match="mixture of a point at zero and LogNormal: at single points it has"):
            phx.Target(lambda d=distribution: phx.sample("x", d))
    latent = two(dist.Delta(0.0), dist.LogNormal(0.0, 1.0), constraints.nonnegative)
    with pytest.raises(ValueError) as caught:
        phx.Target(lambda: phx.sample("x", latent))
    assert str(caught.value).split(" (In ")[0].startswith(
        "Variable 'x': no bijection is known from the real line onto the support of MixtureGeneral: it is a mixture of "
        "Delta and LogNormal: at single points it has probability, and elsewhere a density. Sample the component, "
        "phx.sample('x_component', dist.Categorical(p)), and each component's value under a name of its own, choose "
        "one by jnp.where, and sum the component out with phx.marginalize(model); or observe 'x' with obs=."
    )  # fmt: skip


def test_bounds_and_values_that_are_computed_from_latents_bound_these():
    y = np.linspace(0.1, 2.0, 20).astype(np.float32)

    def largest(y):
        top = phx.sample("top", dist.Pareto(0.5, 1.0))
        phx.sample("y", dist.Uniform(0.0, top), obs=y)

    def shifted(y):
        shift = phx.sample("shift", dist.Normal(0.0, 1.0))
        phx.sample("y", dist.Exponential(1.0), obs=y - shift)

    for model, inside, outside in [(largest, {"top": 2.5}, {"top": 1.5}), (shifted, {"shift": 0.05}, {"shift": 0.2})]:
        target = phx.Target(model, {"y": y})
        assert np.isfinite(target.log_density(target.unconstrain(inside)))
        assert np.isneginf(target.log_density(target.unconstrain(outside)))
        assert not find_invalid(model, target.arguments, target.mesh, target.arguments.arrays)


# -- all of NumPyro ----------------------------------------------------------------------------------------------------

EYE, ONES = jnp.eye(2), jnp.ones(2)
EXAMPLES = {
    "AsymmetricLaplace": (0.0, 1.0, 2.0), "AsymmetricLaplaceQuantile": (0.0, 1.0, 0.3), "Beta": (2.0, 3.0),
    "BetaProportion": (0.3, 5.0), "CAR": (jnp.zeros(2), 0.5, 1.0, jnp.array([[0.0, 1.0], [1.0, 0.0]])),
    "Cauchy": (0.0, 1.0), "Chi2": (3.0,), "Dagum": (2.0, 1.0, 2.0), "Dirichlet": (jnp.array([1.0, 2.0, 3.0]),),
    "DoublyTruncatedPowerLaw": (-2.0, 1.0, 3.0), "Exponential": (2.0,), "Gamma": (2.0, 3.0),
    "GaussianRandomWalk": (1.0, 3), "Gompertz": (1.0, 2.0), "Gumbel": (0.0, 1.0), "HalfCauchy": (1.0,),
    "HalfNormal": (2.0,), "InverseGamma": (3.0, 2.0), "Kumaraswamy": (2.0, 3.0), "LKJ": (3, 2.0),
    "LKJCholesky": (3, 2.0), "Laplace": (0.0, 1.0), "Levy": (0.0, 1.0), "LogNormal": (0.0, 1.0),
    "LogUniform": (1.0, 3.0), "Logistic": (0.0, 1.0),
    "LowRankMultivariateNormal": (jnp.zeros(2), jnp.ones((2, 1)), ONES),
    "LowerTruncatedPowerLaw": (-2.5, 1.0), "MatrixNormal": (jnp.zeros((2, 2)), EYE, EYE),
    "MultivariateNormal": (jnp.zeros(2), EYE), "MultivariateStudentT": (4.0, jnp.zeros(2), EYE), "Normal": (0.0, 1.0),
    "Pareto": (2.0, 3.0), "RelaxedBernoulli": (0.5, 0.4), "RelaxedBernoulliLogits": (0.5, 0.4),
    "SineBivariateVonMises": (0.0, 0.0, 2.0, 2.0, 0.5), "SoftLaplace": (0.0, 1.0), "StudentT": (4.0, 0.0, 1.0),
    "TruncatedCauchy": (0.0, 1.0), "TruncatedNormal": (0.0, 1.0), "Uniform": (-1.0, 2.0),
    "VonMises": (0.0, 2.0), "Weibull": (2.0, 1.5), "Wishart": (4.0, EYE), "WishartCholesky": (4.0, EYE),
    "ZeroSumNormal": (1.0, (3,)), "CirculantNormal": (jnp.zeros(4), jnp.array([2.0, 0.5, 0.2, 0.5])),
    "InverseWishart": (5.0, EYE), "InverseWishartCholesky": (5.0, EYE),
    "LeftTruncatedGamma": (dist.Gamma(2.0, 1.0), 0.5),
    "RightTruncatedGamma": (dist.Gamma(2.0, 1.0), 3.0), "TwoSidedTruncatedGamma": (dist.Gamma(2.0, 1.0), 0.5, 3.0),
    "LeftTruncatedDistribution": (dist.Normal(0.0, 1.0), 0.5), "TruncatedPolyaGamma": (),
    "RightTruncatedDistribution": (dist.Normal(0.0, 1.0), 0.5), "FoldedDistribution": (dist.Normal(1.0, 2.0),),
    "TwoSidedTruncatedDistribution": (dist.Normal(0.0, 1.0), -1.0, 2.0),
    "ExpandedDistribution": (dist.Gamma(2.0, 1.0), (3,)), "Independent": (dist.Gamma(2.0, jnp.ones(3)), 1),
    "MaskedDistribution": (dist.Gamma(2.0, 1.0), True), "GaussianStateSpace": (3, EYE, EYE),
    "TransformedDistribution": (dist.Gamma(2.0, 1.0), transforms.AffineTransform(1.0, 2.0)),
    "SineSkewed": (dist.SineBivariateVonMises(0.0, 0.0, 2.0, 2.0, 0.5), jnp.array([0.3, 0.2])),
    "MixtureSameFamily": (dist.Categorical(ONES / 2), dist.Gamma(jnp.array([1.0, 4.0]), 1.0)),
    "MixtureGeneral": (dist.Categorical(ONES / 2), [dist.Uniform(0.0, 1.0), dist.Uniform(1.0, 3.0)]),
}  # fmt: skip
"""Parameters of NumPyro's continuous distributions."""

OTHERS = {
    "Distribution", "Delta", "Unit", "ImproperUniform", "EulerMaruyama",  # without draws, a density or parameters
    "GaussianCopula", "GaussianCopulaBeta",  # quantiles need TensorFlow Probability
    "ProjectedNormal",  # on a sphere, which no vector space is in bijection with
    "IntervalCensoredDistribution", "LeftCensoredDistribution", "RightCensoredDistribution",  # of observations alone
    "HurdleGamma", "HurdleLogNormal", "HurdleLogits", "HurdlePoisson", "HurdleProbs",  # zero, and other numbers
}  # fmt: skip
"""Names of distributions that have no example, for a reason."""

DISCRETE = {
    "BernoulliLogits", "BernoulliProbs", "BetaBinomial", "BetaNegativeBinomial", "BinomialLogits", "BinomialProbs",
    "CategoricalLogits", "CategoricalProbs", "DirichletMultinomial", "DiscreteUniform", "GammaPoisson",
    "GeometricLogits", "GeometricProbs", "MultinomialLogits", "MultinomialProbs", "NegativeBinomial2",
    "NegativeBinomialLogits", "NegativeBinomialProbs", "OrderedLogistic", "Poisson", "ZeroInflatedLogits",
    "ZeroInflatedPoisson", "ZeroInflatedProbs",
}  # fmt: skip
"""Names of distributions of whole numbers, which have no position."""


def continuous():
    """Return NumPyro's distributions that need no others, are continuous and can be drawn from, by name."""
    found = {}
    for name in dist.__all__:
        if name in EXAMPLES:
            found[name] = lambda name=name: getattr(dist, name)(*EXAMPLES[name])
    return found


def test_all_continuous_distributions_have_an_example():
    kinds = {name: getattr(dist, name) for name in dist.__all__ if inspect.isclass(getattr(dist, name))}
    names = {name for name, kind in kinds.items() if issubclass(kind, dist.Distribution)}
    assert names - set(EXAMPLES) <= OTHERS | DISCRETE


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(continuous()))
def test_every_draw_has_a_position_and_numbers_have_the_quantiles_of_draws(name):
    distribution = continuous()[name]()
    draws = jnp.asarray(distribution.sample(jax.random.key(0), (DRAWS,)))
    onto = bijection_onto(entries_of_support(support_of(distribution)))
    position = jnp.asarray(onto.inv(draws))
    again = jnp.asarray(onto(position))
    known = jnp.isfinite(position).reshape(DRAWS, -1).all(-1)
    assert known.mean() > 0.999  # a few draws round to a bound
    back, there = (np.asarray(x, float).reshape(DRAWS, -1)[np.asarray(known)] for x in (again, draws))
    np.testing.assert_allclose(back, there, rtol=5e-3, atol=5e-3)
    if name != "VonMises" and distribution.batch_shape == distribution.event_shape == ():
        ((mass, error),) = cdf_errors({"x": lambda: distribution}).values()
        assert abs(mass - 1) < (0.02 if name in ("Cauchy", "TruncatedCauchy") else 5e-3)  # the grid ends at 40
        assert error < 0.025
