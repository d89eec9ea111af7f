"""Scales and probabilities that are learned on the real line are refused before compiling, and nothing else is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from jax import lax
from numpyro.distributions import constraints
from tests.slow import with_slow

import phalanx as phx

Y = np.random.default_rng(0).normal(size=8).astype(np.float32)
GROUPS = np.arange(8) % 2
NORMAL, MEAN_FIELD = dist.Normal(0.0, 1.0), phx.guides.mean_field()


class Compiles(Exception):
    """The fit was about to compile."""


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch):
    def compile(*_, **__):
        raise Compiles

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile)


def plain(y):
    phx.sample("y", dist.Normal(phx.sample("m", NORMAL), 1.0), obs=y)


def guide_of(f, init: Any = 1.0, constraint: Any = constraints.real):
    def guide():
        phx.sample("m", dist.Normal(phx.param("loc", 0.0), f(phx.param("scale", init, constraint))))

    return guide


def model_of(f, prior: Any = NORMAL, of: Any = lambda v: dist.Normal(0.0, v)):
    def model(y):
        phx.sample("y", of(f(phx.sample("s", prior))), obs=y)

    return model


def likelihood_of(f, init=1.0, constraint: Any = constraints.real, of: Any = lambda v: dist.Normal(0.0, v)):
    def model(y):
        phx.sample("y", of(f(phx.param("s", init, constraint))), obs=y)

    return model


def same(v):
    return v


def hierarchy(y):
    m, tau = phx.sample("m", NORMAL), phx.sample("tau", NORMAL)
    phx.sample("y", dist.Normal(phx.sample("z", dist.Normal(m, tau).expand([2]))[GROUPS], 1.0), obs=y)


POSITIVE = np.abs(Y) / 10 + 0.1
GUIDES = {
    "itself": guide_of(same),
    "a multiple": guide_of(lambda s: 2 * s),
    "the negative": guide_of(lambda s: -s),
    "an element": guide_of(lambda s: s[0], np.ones(3)),
    "a leaf": guide_of(lambda s: s["a"], {"a": 1.0, "b": 2.0}),
    "made by a key": guide_of(same, lambda key: jnp.ones(())),
    "in a jitted function": guide_of(jax.jit(lambda s: s * 1.5)),
    "reshaped": guide_of(lambda s: s.reshape(1, 1).squeeze()),
    "real by element": guide_of(lambda s: s[0], np.ones(3), constraints.independent(constraints.real, 1)),
}
MODELS = {
    "scale": (model_of(same), Y, "its scale must be positive for a Normal"),
    "by group": (model_of(lambda s: s[GROUPS], NORMAL.expand([2])), Y, "its scale must be positive"),
    "rate": (model_of(same, of=dist.Exponential), POSITIVE, "its rate must be positive for a Exponential"),
    "rate of counts": (model_of(same, of=dist.Poisson), np.arange(8), "its rate must be zero or more for a Poisson"),
    "concentration": (model_of(same, of=lambda v: dist.Gamma(v, 1.0)), POSITIVE, "its concentration must be positive"),
    "rate of a gamma": (model_of(same, of=lambda v: dist.Gamma(2.0, v)), POSITIVE, "its rate must be positive"),
    "degrees": (model_of(same, of=dist.StudentT), Y, "its df must be positive for a StudentT"),
    "probability": (model_of(same, of=dist.Bernoulli), (Y > 0).astype(int), "its probs must be between 0 and 1"),
    "event": (model_of(same, of=lambda v: dist.Laplace(0.0, v).expand([8]).to_event(1)), Y, "its scale must be posit"),
    "wide prior": (model_of(same, dist.Cauchy(0.0, 1.0)), Y, "the variable 's', whose Cauchy has other values"),
    "hierarchy": (hierarchy, Y, "Variable 'z': its scale must be positive for a Normal, and is the variable 'tau'"),
}
TRANSFORMS = {
    "exp": jnp.exp,
    "softplus": jax.nn.softplus,
    "abs": jnp.abs,
    "square": lambda s: s**2,
    "product": lambda s: s * s,
    "maximum": lambda s: jnp.maximum(s, 1e-3),
    "clip": lambda s: jnp.clip(s, 1e-3, 9.0),
    "relu": lambda s: jax.nn.relu(s) + 1e-3,
    "shift": lambda s: 1 + 0.1 * s,
    "where": lambda s: jnp.where(s > 0, s, 1.0),
    "sigmoid": jax.nn.sigmoid,
    "norm": lambda s: jnp.linalg.norm(s[None]),
    "held": lambda s: jnp.exp(lax.stop_gradient(s)),
}
PRIORS = {
    "half": dist.HalfNormal(1.0),
    "log": dist.LogNormal(0.0, 1.0),
    "bounded": dist.Uniform(0.0, 5.0),
    "truncated": dist.TruncatedNormal(1.0, 1.0, low=0.0),
    "far from zero": dist.Normal(5.0, 0.3),
}
CONSTRAINTS = [constraints.positive, constraints.softplus_positive, constraints.greater_than(0.1)]


def refused(model, guide, message, y=Y, **options):
    with pytest.raises(ValueError, match=message):
        phx.fit(model, guide, {"y": y}, progress=False, **options)


def taken(model, guide, y=Y, **options):
    with pytest.raises(Compiles):
        phx.fit(model, guide, {"y": y}, progress=False, **options)


@pytest.mark.parametrize("guide", GUIDES.values(), ids=GUIDES)
def test_a_scale_of_a_guide_without_a_constraint_is_refused(guide):
    refused(
        plain, guide, "Variable 'm' of the guide guide: its scale must be .* 'scale', which has no constraint. Give"
    )


@pytest.mark.parametrize("model, y, message", with_slow(MODELS, {"hierarchy"}))
def test_a_latent_variable_on_the_real_line_is_refused(model, y, message):
    refused(model, MEAN_FIELD, message, y)


def test_a_parameter_of_the_model_is_refused():
    refused(likelihood_of(same), None, "Variable 'y': its scale .* the parameter 's'.*constraints.positive\\)")
    of_chance = likelihood_of(same, 0.5, of=dist.Bernoulli)
    refused(of_chance, None, "its probs .*constraints.unit_interval", (Y > 0).astype(int))


@pytest.mark.slow
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_transformed_values_are_taken(transform):
    taken(plain, guide_of(transform))
    taken(model_of(transform), MEAN_FIELD)
    taken(likelihood_of(transform), None)


@pytest.mark.parametrize("prior", with_slow(PRIORS, {*PRIORS} - {"truncated"}))
def test_variables_that_are_positive_are_taken(prior):
    taken(model_of(same, prior), MEAN_FIELD)


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=str)
def test_parameters_that_are_positive_are_taken(constraint):
    taken(plain, guide_of(same, 1.0, constraint))
    taken(likelihood_of(same, 1.0, constraint), None)


@pytest.mark.slow
def test_values_that_may_be_any_number_are_taken():
    taken(model_of(same, of=lambda v: dist.Normal(v, 1.0)), MEAN_FIELD)
    taken(model_of(same, of=lambda v: dist.Bernoulli(logits=v)), MEAN_FIELD, (Y > 0).astype(int))
    taken(plain, phx.substitute(guide_of(same), {"scale": 1.0}))
    taken(model_of(same), lambda: (phx.sample("s", dist.LogNormal(phx.param("loc", 0.0), 1.0)), None)[1])


FAST = {"rate": 100.0, "NumPy": np.float32(100.0), "adam": optax.adam(100.0), "rmsprop": optax.rmsprop(100.0)}
SLOW = {
    "rate": 1.0, "adam": optax.adam(1.0), "sgd": optax.sgd(100.0), "lbfgs": "lbfgs",
    "by parameter": optax.multi_transform({"a": optax.adam(0.1)}, {"m.loc": "a", "m.scale": "a"}),
}  # fmt: skip


@pytest.mark.parametrize("optimizer", FAST.values(), ids=FAST)
def test_a_rate_that_moves_every_parameter_too_far_is_refused(optimizer, monkeypatch):
    monkeypatch.undo()  # the first step of an optimiser is compiled
    refused(
        plain,
        MEAN_FIELD,
        "optimizer: each step .* by about (100|301.5) on the real line.*lower one",
        optimizer=optimizer,
    )


@pytest.mark.parametrize("optimizer", with_slow(SLOW, {"sgd"}))
def test_other_rates_are_taken(optimizer):
    taken(plain, MEAN_FIELD, optimizer=optimizer)
