"""Models as NumPyro's users write them. `sample` is `numpyro.sample`, or `phx.sample` where the two are one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.contrib.control_flow import cond, scan
from numpyro.distributions import constraints
from numpyro.infer.reparam import CircularReparam, LocScaleReparam, TransformReparam

import phalanx as phx

Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], np.float32) / 10
X = np.linspace(-1.0, 1.0, 8, dtype=np.float32)
MASK = np.array([True, True, False, True, False, True, True, True])

language: dict[str, Callable[..., Any]] = {"sample": numpyro.sample}


def sample(name, distribution, obs=None):
    return language["sample"](name, distribution, obs=obs)


def mixed(name, distribution, obs=None) -> Any:
    """Every other name is ours."""
    return (phx.sample if sum(map(ord, name)) % 2 else numpyro.sample)(name, distribution, obs=obs)


def eight_schools():
    mu, tau = sample("mu", dist.Normal(0, 5)), sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("J", 8):
        theta = sample("theta", dist.Normal(mu, tau))
        sample("y", dist.Normal(theta, 1.0), obs=Y)


def reparameterised():
    with handlers.reparam(config={"theta": LocScaleReparam(0), "scale": TransformReparam()}):
        mu = sample("mu", dist.Normal(0, 5))
        scale = sample("scale", dist.TransformedDistribution(dist.Normal(0, 1), dist.transforms.ExpTransform()))
        with numpyro.plate("J", 8):
            theta = sample("theta", dist.Normal(mu, scale))
            with handlers.mask(mask=MASK):
                sample("y", dist.Normal(theta, 1.0), obs=Y)


def nested_plates():
    inner, outer = numpyro.plate("inner", 8, dim=-1), numpyro.plate("outer", 3, dim=-2)
    with outer:
        a = sample("a", dist.Normal(0, 1))
    with inner:
        b = sample("b", dist.Gamma(2.0, 1.0))
    with inner, outer:
        c = sample("c", dist.Normal(a, b))
        sample("y", dist.Normal(c, 1.0), obs=jnp.broadcast_to(Y, (3, 8)))
        sample("scalar", dist.Normal(c, 1.0), obs=0.5)


def vectors_in_plates():
    with numpyro.plate("rows", 4):
        p = sample("p", dist.Dirichlet(jnp.ones(3)))
        w = sample("w", dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)))
        sample("n", dist.Multinomial(5, p), obs=jnp.array([[1, 2, 2]] * 4))
    sample("y", dist.Normal(w.sum(), 1.0), obs=Y)


def shapes():
    w = numpyro.sample("w", dist.Normal(0.0, 1.0), sample_shape=(3, 2))
    with numpyro.plate("p", 3):
        v = numpyro.sample("v", dist.HalfNormal(1.0), sample_shape=(3,))
    sample("y", dist.Normal(jnp.sum(w) + jnp.sum(v), 1.0), obs=Y)


def masks():
    mu = sample("mu", dist.Normal(0, 1))
    with handlers.mask(mask=MASK), numpyro.plate("N", 8):
        sample("y", dist.Normal(mu, 1.0), obs=Y)
        numpyro.factor("f", mu * X)
        phx.factor("g", mu * X)
    with numpyro.plate("M", 8), handlers.mask(mask=jnp.asarray(MASK)):
        z = sample("z", dist.Normal(0.0, 1.0))
    with handlers.mask(mask=False):
        sample("not", dist.Normal(z, 1.0), obs=Y)


def scales():
    mu = sample("mu", dist.Normal(0, 1))
    with handlers.scale(scale=2.0), handlers.scale(scale=1.5):
        sample("y", dist.Normal(mu, 1.0), obs=Y)
        phx.factor("f", -(mu**2))
    with handlers.scale(scale=jnp.arange(1.0, 9.0)):
        sample("z", dist.Normal(mu, 1.0), obs=Y)
    phx.scale(lambda: sample("u", dist.Normal(mu, 1.0), obs=Y), 3.0)()


def scoped():
    def part(loc):
        x = sample("x", dist.Normal(loc, 1.0))
        numpyro.deterministic("twice", 2 * x)
        with numpyro.plate("N", 2):
            return sample("v", dist.Normal(x, 1.0)).sum()

    a = handlers.scope(part, prefix="a")(0.0)
    with handlers.scope(prefix="b"), handlers.scope(prefix="c", divider="_"):
        b = part(a)
    sample("y", dist.Normal(a + b, 1.0), obs=Y)  # pyright: ignore[reportOperatorIssue]


def conditioned():
    def part():
        a, b, c = (sample(name, dist.Normal(0.0, 1.0)) for name in "abc")
        sample("y", dist.Normal(a + b + c, 1.0), obs=Y)

    handlers.condition(part, {"a": jnp.array(0.7), "y": jnp.asarray(Y)})()


def hidden():
    mu = sample("mu", dist.Normal(0.0, 1.0))
    with handlers.seed(rng_seed=1), handlers.block(hide=["u"]):
        u = sample("u", dist.Normal(0.0, 1.0))
        sample("y", dist.Normal(mu + u, 1.0), obs=Y)


def lifted():
    def part():
        a = numpyro.param("a", 1.0)
        sample("y", dist.Normal(a, 1.0), obs=Y)

    handlers.lift(part, prior={"a": dist.Normal(0.0, 2.0)})()


def imputed():
    mu = sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mu, 1.0).expand([8]), obs=jnp.asarray(Y), obs_mask=jnp.asarray(MASK))


def autoregression():
    a, s = sample("a", dist.Normal(0, 1)), sample("s", dist.HalfNormal(1))

    def step(before, now):
        sample("y", dist.Normal(a * before, s), obs=now)
        return now, None

    scan(step, 0.0, jnp.asarray(Y))


def branches():
    a = sample("a", dist.Normal(0, 1))

    def branch(sign):
        return lambda _: sample("y", dist.Normal(sign * a, 1.0), obs=jnp.asarray(0.4))

    cond(a > 0, branch(1.0), branch(-1.0), None)


def gaussian_process():
    k, s = sample("k", dist.LogNormal(0.0, 1.0)), sample("s", dist.LogNormal(0.0, 1.0))
    distance = (X[:, None] - X[None]) ** 2
    cov = k * jnp.exp(-distance) + (s + 1e-3) * jnp.eye(8)
    sample("y", dist.MultivariateNormal(jnp.zeros(8), covariance_matrix=cov), obs=Y)


def horseshoe():
    tau = sample("tau", dist.HalfCauchy(1.0))
    lam = sample("lam", dist.HalfCauchy(jnp.ones(3)))
    beta = sample("beta", dist.Normal(0.0, lam * tau))
    with numpyro.plate("N", 8):
        sample("y", dist.Normal(X * beta.sum(), 1.0), obs=Y)


def correlated():
    chol = sample("chol", dist.LKJCholesky(3, 1.5))
    theta = sample("theta", dist.HalfCauchy(jnp.ones(3)))
    with numpyro.plate("N", 4):
        sample("y", dist.MultivariateNormal(0.0, scale_tril=theta[:, None] * chol), obs=Y[:4, None] * jnp.ones((1, 3)))


def mixture():
    w = sample("w", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("k", 2):
        mu = sample("mu", dist.Normal(0, 2))
    with numpyro.plate("N", 8):
        sample("y", dist.MixtureSameFamily(dist.Categorical(w), dist.Normal(mu, 1.0)), obs=Y)


def zero_inflated():
    gate, rate = sample("gate", dist.Beta(1.0, 1.0)), sample("rate", dist.Exponential(1.0))
    with numpyro.plate("N", 8):
        sample("y", dist.ZeroInflatedPoisson(gate, rate), obs=jnp.array([0, 0, 1, 3, 0, 2, 0, 0]))
        sample("n", dist.DirichletMultinomial(jnp.array([1.0, rate]), 3), obs=jnp.array([[1, 2]] * 8))


def censored():
    rate = sample("rate", dist.Exponential(1.0))
    seen = np.array([1, 1, 0, 1, 0, 1, 1, 0], bool)
    with numpyro.plate("N", 8):
        with handlers.mask(mask=seen):
            sample("y", dist.Exponential(rate), obs=jnp.abs(Y))
        with handlers.mask(mask=~seen):
            numpyro.factor("survived", -rate * jnp.abs(Y))


def improper():
    a = sample("a", dist.ImproperUniform(constraints.positive, (), ()))
    b = sample("b", dist.ImproperUniform(constraints.real, (2,), (3,)))
    sample("y", dist.Normal(a + b.sum(), 1.0), obs=Y)


def ordered():
    cuts = sample("cuts", dist.TransformedDistribution(dist.Normal(0, 1).expand([3]).to_event(1),
                                                       dist.transforms.OrderedTransform()))  # fmt: skip
    sample("y", dist.OrderedLogistic(jnp.asarray(X), cuts), obs=jnp.array([0, 1, 2, 3, 0, 1, 2, 3]))


def circular():
    with handlers.reparam(config={"angle": CircularReparam()}):
        angle = sample("angle", dist.VonMises(0.0, 2.0))
    sample("y", dist.Normal(jnp.sin(angle), 1.0), obs=Y)


def stacked():
    with numpyro.plate_stack("plates", [2, 3]):
        z = sample("z", dist.Normal(0.0, 1.0))
        with numpyro.plate("third", 2, dim=-3):
            sample("y", dist.Normal(z, 1.0), obs=0.1)
    numpyro.deterministic("sum", z.sum())


def configured():
    with handlers.infer_config(config_fn=lambda site: {"mine": 1}), handlers.trace() as inside:
        a = sample("a", dist.Normal(0.0, 1.0))
    assert list(inside) == ["a"] and inside["a"]["value"] is not None and inside["a"]["infer"]["mine"] == 1
    sample("y", dist.Normal(a, 1.0), obs=Y)


def intervened():
    def part():
        a = sample("a", dist.Normal(0.0, 1.0))
        b = sample("b", dist.Normal(a, 1.0))
        sample("y", dist.Normal(b, 1.0), obs=Y)

    handlers.do(part, {"b": jnp.array(0.5)})()


MODELS = [
    eight_schools, reparameterised, nested_plates, vectors_in_plates, shapes, masks, scales, scoped, conditioned,
    hidden, lifted, imputed, autoregression, branches, gaussian_process, horseshoe, correlated, mixture, zero_inflated,
    censored, improper, ordered, circular, stacked, configured, intervened,
]  # fmt: skip


def random_values(model, seed):
    """Unconstrained and constrained values of the latent variables, by NumPyro."""
    from numpyro.infer.util import initialize_model

    found = initialize_model(jax.random.key(seed), model, dynamic_args=False)
    return found.param_info.z, found.postprocess_fn(found.param_info.z)
