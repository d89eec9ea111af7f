"""Models in many styles, one name each: what runs on one device must run on every mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import lax

import phalanx as phx

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 2)).astype(np.float32)
Y = (X @ [0.5, -1.0] + RNG.normal(size=16)).astype(np.float32)
COUNTS = RNG.poisson(2.0, size=16)
LABELS = RNG.integers(0, 3, size=16).astype(np.uint8)


class Case(NamedTuple):
    """A model, its data, whether it keeps rows apart (then padded rows can be left out), and NumPyro promotes ranks."""

    model: Callable[..., Any]
    data: dict[str, Any]
    rows_apart: bool = True
    promotes: bool = False


CASES: dict[str, Case] = {}


def case(called: str, /, *, rows_apart: bool = True, promotes: bool = False, **data: Any):
    def add(model):
        CASES[called] = Case(model, data or {"x": X, "y": Y}, rows_apart, promotes)
        return model

    return add


def weights():
    return phx.sample("w", dist.Normal(0.0, 1.0).expand([2]))


@case("regression with unused variables and data", x=X, y=Y, unused=X, constant=np.float32(0.3), name="a string")
def regression(x, y, unused, constant, name):
    phx.sample("unused", dist.Gamma(2.0, 1.0))
    spread = phx.sample("spread", dist.HalfNormal(1.0))
    phx.sample("y", dist.Normal(x @ weights() + constant, spread), obs=y)


@case("scan over columns, from zeros")
def scan_from_zeros(x, y):
    steps = (x * weights()[None]).T
    mean, path = lax.scan(lambda h, column: (jnp.tanh(h + column), h), jnp.zeros(x.shape[0]), steps)
    phx.sample("y", dist.Normal(mean + path.sum(0), 1.0), obs=y)


@case("scan over rows, from a constant", rows_apart=False)
def scan_over_rows(x, y):
    w = weights()
    total, _ = lax.scan(lambda t, row: (t - (row[1] - row[0] @ w) ** 2, None), 0.0, (x, y))
    phx.factor("y", total)


@case("fori_loop from 0.", rows_apart=False)
def fori_loop_from_zero(x, y):
    w = weights()
    phx.factor("global", lax.fori_loop(0, 2, lambda i, t: t - jnp.abs(w[i]) ** 3, 0.0))
    phx.factor("y", lax.fori_loop(0, x.shape[0], lambda i, t: t + jnp.cos(y[i] - x[i] @ w), 0.0))


@case("while_loop, as long as a device's rows need")
def while_loop(x, y):
    small = lax.while_loop(lambda v: jnp.any(jnp.abs(v) > 0.5), lambda v: jnp.where(jnp.abs(v) > 0.5, v / 2, v), x)
    w = weights()
    bounded = lax.while_loop(lambda v: v > 1.0, lambda v: v / 2, lax.stop_gradient(w[0]))
    phx.sample("y", dist.Normal(small @ w + bounded, 1.0), obs=y)


@case("cond with a constant branch")
def cond(x, y):
    w = weights()
    mean = lax.cond(w[0] > 0, lambda: x @ w, lambda: jnp.zeros(x.shape[0]))
    phx.factor("global", lax.cond(w[1] > 0, lambda: -w[1], lambda: 0.0))
    phx.sample("y", dist.Normal(mean, 1.0), obs=y)


@jax.jit
def helper(x, w):
    return x @ w, -jnp.sum(w**4)


@case("jitted helper with a local and a global output")
def jitted(x, y):
    mean, penalty = helper(x, weights())
    phx.factor("penalty", penalty)
    phx.sample("y", dist.Normal(mean, 1.0), obs=y)


@jax.custom_jvp
def softplus(x):
    return jnp.log1p(jnp.exp(x))


softplus.defjvp(lambda primals, tangents: (softplus(*primals), jax.nn.sigmoid(primals[0]) * tangents[0]))


@case("custom derivatives and remat")
def custom(x, y):
    w = weights()
    mean = jax.checkpoint(lambda w: softplus(x @ w))(w)
    phx.factor("penalty", -jnp.sum(softplus(w)))
    phx.sample("y", dist.Normal(mean, 1.0), obs=y)


@case("integer data", x=X, counts=COUNTS, labels=LABELS)
def integers(x, counts, labels):
    effects = phx.sample("effects", dist.Normal(0.0, 1.0).expand([3]))
    phx.sample("labels", dist.CategoricalLogits(effects), obs=labels)
    phx.sample("counts", dist.Poisson(jnp.exp(x @ weights() + effects[labels])), obs=counts)


@case("the user's own pmean", rows_apart=False)
def own_pmean(x, y):
    centred = x - lax.pmean(x.mean(0), "data")[None]
    phx.sample("y", dist.Normal(centred @ weights(), 1.0), obs=y)


@case("the user's own psum of everything", rows_apart=False)
def own_psum(x, y):
    total = lax.psum(-0.5 * jnp.sum((y - x @ weights()) ** 2), "data")
    phx.factor("y", total)


@case("a nonlinear function of the user's own psum", rows_apart=False)
def function_of_psum(x, y):
    w = weights()
    phx.factor("f", jnp.tanh(lax.psum(jnp.sum(x @ w), "data")))
    phx.sample("y", dist.Normal(x @ w, 1.0), obs=y)


@case("the user's own pmean, in a scan", rows_apart=False)
def pmean_in_scan(x, y):
    w = weights()

    def step(level, column):
        level = level + lax.pmean(jnp.mean(column), "data") * w[0]
        return level, level

    _, levels = lax.scan(step, 0.0, x.T)
    phx.sample("y", dist.Normal(x @ levels, 1.0), obs=y)


@case("the user's own pmean of parameters", rows_apart=False)
def pmean_of_parameters(x, y):
    w = lax.pmean(weights(), "data")
    phx.sample("y", dist.Normal(x @ w, 1.0), obs=y)


@case("the user's own gather", rows_apart=False)
def own_gather(x, y):
    w = weights()
    phx.factor("f", jax.nn.logsumexp(lax.all_gather(x @ w, "data", tiled=True)))
    phx.sample("y", dist.Normal(x @ w, 1.0), obs=y)


@case("a term that sees only the number of rows", rows_apart=False)
def only_shapes(x, y):
    spread = phx.sample("spread", dist.HalfNormal(1.0))
    phx.factor("normaliser", -x.shape[0] * jnp.log(spread))
    phx.factor("rows", -0.5 * ((y - x @ weights()) / spread) ** 2)


@case("terms of one row each that see no data")
def zeros_of_rows(x, y):
    w = weights()
    phx.factor("zeros", jnp.zeros(x.shape[0]))
    phx.factor("rows", jnp.full(x.shape[0], -jnp.sum(w**2)))
    phx.sample("y", dist.Normal(x @ w, 1.0), obs=y)


@case("means over the rows that are equal anyway")
def equal_means(x, y):
    w = weights()
    phx.factor("mean", jnp.mean(jnp.full(x.shape[0], w[0])))
    phx.sample("y", dist.Normal(x @ w, 1.0), obs=y)


@case("an improper log density")
def improper(x, y):
    w = phx.sample("w", dist.ImproperUniform(dist.constraints.real, (2,), ()))
    level = phx.sample("level", dist.ImproperUniform(dist.constraints.positive, (), ()))
    phx.factor("y", -jnp.abs(y - x @ w) / level - jnp.log(level))


@case("deterministic values, local and global")
def deterministics(x, y):
    w = phx.deterministic("doubled", 2 * weights())
    mean = phx.deterministic("mean", x @ w)
    phx.sample("y", dist.Normal(mean, 1.0), obs=y)


@case("to_event over columns")
def event_of_columns(x, y):
    rows = phx.sample("rows", dist.Normal(0.0, 1.0).expand([x.shape[0], 2]).to_event(1))
    phx.sample("x", dist.Normal(rows * weights()[None], 1.0).to_event(1), obs=x)


@case("to_event over rows")
def event_of_rows(x, y):
    rows = phx.sample("rows", dist.Normal(0.0, 1.0).expand([x.shape[0]]).to_event(1))
    phx.sample("y", dist.Normal(rows + x @ weights(), 1.0).to_event(1), obs=y)


@case("a latent per row, declared")
def declared(x, y):
    rows = phx.sample("rows", dist.Normal(weights()[0], 1.0).expand([x.shape[0]]), axis="data")
    phx.sample("y", dist.Normal(rows, 1.0), obs=y)


@case("a latent per row, by its shape")
def by_shape(x, y):
    rows = phx.sample("rows", dist.Gamma(2.0, 1.0).expand([y.shape[0]]))
    phx.sample("y", dist.Normal(x @ weights(), rows), obs=y)


@case("a latent per row by dependence, and one that depends on it")
def by_dependence(x, y):
    first = phx.sample("first", dist.Normal(x @ weights(), 1.0))
    second = phx.sample("second", dist.LogNormal(first, 0.5))
    phx.sample("y", dist.Normal(first, second), obs=y)


@case("supports that depend on other variables, local and global")
def dependent_supports(x, y):
    top = phx.sample("top", dist.HalfNormal(3.0))
    below = phx.sample("below", dist.Uniform(0.0, top))
    tops = phx.sample("tops", dist.HalfNormal(1.0).expand([x.shape[0]]))
    rows = phx.sample("rows", dist.Uniform(-tops, tops + below))
    phx.sample("y", dist.Normal(rows, top), obs=y)


@case("local supports under a global variable")
def global_support(x, y):
    top = phx.sample("top", dist.HalfNormal(3.0))
    rows = phx.sample("rows", dist.Uniform(0.0, top).expand([x.shape[0]]))
    phx.sample("y", dist.Normal(rows, 1.0), obs=y)


@case("mixtures", promotes=True)
def mixture(x, y):
    shares = phx.sample("shares", dist.Dirichlet(jnp.ones(2)))
    means = phx.sample("means", dist.Normal(0.0, 2.0).expand([2]))
    phx.sample("y", dist.MixtureSameFamily(dist.Categorical(shares), dist.Normal(means, 1.0)), obs=y)


@case("simplices per row", promotes=True, labels=LABELS)
def simplices(labels):
    strength = phx.sample("strength", dist.HalfNormal(2.0))
    rows = phx.sample("rows", dist.Dirichlet(jnp.full(3, strength)).expand([labels.shape[0]]))
    phx.sample("labels", dist.CategoricalProbs(rows), obs=labels)


@case("multivariate normals per row", promotes=True)
def multivariate(x, y):
    covariance = jnp.array([[1.0, 0.3], [0.3, 0.5]])
    rows = phx.sample("rows", dist.MultivariateNormal(weights(), covariance).expand([x.shape[0]]))
    phx.sample("x", dist.MultivariateNormal(rows, covariance), obs=x)


@case("lkj and an ordered vector, global", promotes=True)
def correlation(x, y):
    factor = phx.sample("factor", dist.LKJCholesky(2, 1.5))
    phx.sample("cuts", dist.ImproperUniform(dist.constraints.ordered_vector, (), (3,)))
    phx.sample("x", dist.MultivariateNormal(weights(), scale_tril=factor), obs=x)


def scaled_by_half(x, y):
    by_dependence(x, y)


CASES["scaled"] = Case(phx.scale(scaled_by_half, 0.5), {"x": X, "y": Y})
CASES["conditioned"] = Case(phx.condition(by_shape, {"w": jnp.array([0.3, -0.2])}), {"x": X, "y": Y})
CASES["under an intervention"] = Case(phx.do(by_dependence, {"w": jnp.array([0.3, -0.2])}), {"x": X, "y": Y})


def numpyro_model(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("n", x.shape[0]):
        rows = numpyro.sample("rows", dist.Normal(0.0, 1.0))
        mean = numpyro.deterministic("mean", rows + x @ w)
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    numpyro.factor("penalty", -jnp.sum(w**4))


CASES["numpyro plates"] = Case(phx.from_numpyro(numpyro_model), {"x": X, "y": Y})


def row_terms(position, x, y):
    return -jnp.abs(y - x @ position["w"]) * position["s"] ** 2


START = {"w": np.zeros(2), "s": np.ones(())}
CASES["a log density, by row"] = Case(phx.from_logdensity(row_terms, START), {"x": X, "y": Y})
CASES["a log density, a scalar"] = Case(
    phx.from_logdensity(lambda p, x, y: row_terms(p, x, y).sum(), START), {"x": X, "y": Y}, rows_apart=False
)


@case("nested data", batch={"x": X, "more": (Y, [COUNTS])}, settings=("a", None, 3, 0.5))
def nested(batch, settings):
    y, [counts] = batch["more"]
    rate = jnp.exp(batch["x"] @ weights())
    phx.sample("counts", dist.Poisson(rate * settings[3] + settings[2]), obs=counts)
    phx.sample("y", dist.Normal(jnp.log(rate), 1.0), obs=y)
