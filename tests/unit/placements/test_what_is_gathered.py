"""Primitives of rows that libraries lower to, and what each meets: a rule of placement, or a gather.

Log densities of NumPyro's distributions, values and gradients; bijections onto their supports; layers of Flax NNX; an
ODE by diffrax; reductions of `jax.numpy`. Rows are independent in all but the last: none may send a message.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
import pytest
from flax import nnx
from tests.unit.distributions.test_supports import DISCRETE, EXAMPLES

from phalanx.distributions.bijections import bijection_onto
from phalanx.distributions.precise import precise
from phalanx.distributions.supports import entries_of_support, support_of
from phalanx.jaxprs.walking import all_equations
from phalanx.mesh.compatibility.numpyro_internals import unvalidated
from phalanx.mesh.row_sharding import GLOBAL, RowSharding
from phalanx.placements import DeviceRows
from phalanx.placements.interpreter import COLLECTIVES
from phalanx.placements.rules import RULES

ROWS = RowSharding(("data",), 6, 3)
ON_DEVICE = DeviceRows({"data": 2}, frozenset({ROWS}))

COUNTS = {
    "BernoulliLogits": (0.3,), "BernoulliProbs": (0.3,), "BetaBinomial": (2.0, 3.0, 5),
    "BetaNegativeBinomial": (2.0, 3.0, 5), "BinomialLogits": (0.3, 5), "BinomialProbs": (0.3, 5),
    "CategoricalLogits": (jnp.zeros(3),), "CategoricalProbs": (jnp.ones(3) / 3,),
    "DirichletMultinomial": (jnp.ones(3), 5), "DiscreteUniform": (0, 5), "GammaPoisson": (2.0, 3.0),
    "GeometricLogits": (0.3,), "GeometricProbs": (0.3,), "MultinomialLogits": (jnp.zeros(3), 5),
    "MultinomialProbs": (jnp.ones(3) / 3, 5), "NegativeBinomial2": (2.0, 3.0), "NegativeBinomialLogits": (5.0, 0.3),
    "NegativeBinomialProbs": (5.0, 0.3), "OrderedLogistic": (0.3, jnp.array([-1.0, 0.0, 1.0])), "Poisson": (2.0,),
    "ZeroInflatedLogits": (dist.Poisson(2.0), 0.3), "ZeroInflatedPoisson": (0.3, 2.0),
    "ZeroInflatedProbs": (dist.Poisson(2.0), 0.3),
}  # fmt: skip

SENDING = {"CirculantNormal": {"scatter-mul"}, "MatrixNormal": {"reshape"}}
"""Distributions whose log density sends messages although rows are independent, and the primitives that need them."""

WITHOUT_RULES = {"cond", "custom_jvp_call", "empty2", "iota", "jit", "platform_index", "scan", "scatter-mul"}
"""Primitives in these log densities without an entry in the table of rules: calls, loops and branches are followed, and
`scatter-mul` gathers."""


@pytest.fixture(autouse=True)
def ranks():
    """Allow ranks to be promoted: NumPyro does so."""
    with jax.numpy_rank_promotion("allow"):
        yield


def messages_and_primitives(f, *arguments):
    """Return the messages of value and gradient of a function of rows and other arguments, and its primitives."""
    inputs = tuple(ROWS if is_rows else GLOBAL for is_rows, _ in arguments)
    shapes = [jax.tree.map(lambda x, by_row=is_rows: local(x, by_row), argument) for is_rows, argument in arguments]
    found = ON_DEVICE.inspect(f, inputs, *shapes)
    program = jax.make_jaxpr(f)(*(argument for _, argument in arguments))
    return found.messages, {equation.primitive.name for equation in all_equations(program)}


def local(array, by_row):
    shape = jnp.shape(array)
    return jax.ShapeDtypeStruct((3, *shape[1:]) if by_row else shape, jnp.result_type(array))


def real_leaves(tree):
    leaves, structure = jax.tree.flatten(tree)
    is_real = [jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves]
    return leaves, structure, is_real


def density_of(name):
    """Return value and gradient of a log density of six rows, and its arguments."""
    parameters = {**EXAMPLES, **COUNTS}[name]
    kind = getattr(dist, name)
    leaves, structure, is_real = real_leaves(parameters)
    is_plain = not any(isinstance(parameter, dist.Distribution) for parameter in parameters)

    def made(some):
        following = iter(some)
        return kind(*structure.unflatten([next(following) if r else x for r, x in zip(is_real, leaves, strict=True)]))

    def log_density(some, y):
        with unvalidated():
            one = made(some) if is_plain else kind(*parameters)
            return jnp.sum(precise(one.expand((6,))).log_prob(y))

    one = kind(*parameters)
    y = one.expand((6,)).sample(jax.random.key(0)) if name != "LKJ" else jnp.stack([jnp.eye(3)] * 6)
    some = [jnp.asarray(leaf) for leaf, real in zip(leaves, is_real, strict=True) if real]
    return jax.value_and_grad(log_density), [(False, some), (True, y)]


QUICK = {"Beta", "CategoricalLogits", "CirculantNormal", "MultivariateNormal", "StudentT", "TruncatedNormal"}
NAMES = sorted({**EXAMPLES, **COUNTS}.keys() - {"ExpandedDistribution", "Independent"})  # they have rows of their own


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in NAMES])
def test_log_densities_of_independent_rows_send_nothing(name):
    value_and_grad, arguments = density_of(name)
    messages, primitives = messages_and_primitives(value_and_grad, *arguments)
    assert {message.primitive for message in messages} == SENDING.get(name, set())
    assert primitives - set(RULES) - COLLECTIVES <= WITHOUT_RULES


@pytest.mark.parametrize("name", [n for n in sorted(EXAMPLES) if n in ("Beta", "Dirichlet", "LKJCholesky", "Uniform")])
def test_bijections_of_independent_rows_send_nothing(name):
    onto = bijection_onto(entries_of_support(support_of(getattr(dist, name)(*EXAMPLES[name]).expand((6,)))))
    shape = onto.inverse_shape(getattr(dist, name)(*EXAMPLES[name]).expand((6,)).shape())

    def total(u):
        value = onto(u)
        return jnp.sum(onto.log_abs_det_jacobian(u, value)) + jnp.sum(value)

    messages, _ = messages_and_primitives(jax.value_and_grad(total), (True, jnp.zeros(shape)))
    assert not any(message.nbytes for message in messages)


class Network(nnx.Module):
    """Layers of several kinds over pixels."""

    def __init__(self, rngs):
        self.convolution = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.norm = nnx.LayerNorm(4, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs)
        self.dense = nnx.Linear(4, 3, rngs=rngs)
        self.cell = nnx.GRUCell(3, 3, rngs=rngs)

    def __call__(self, x):
        x = nnx.gelu(self.norm(self.convolution(x)))
        x = nnx.max_pool(x, (2, 2), (2, 2))
        x = self.attention(x.reshape(x.shape[0], -1, 4))
        x = jax.nn.log_softmax(self.dense(x.mean(1)))
        return self.cell(jnp.zeros_like(x), x)[1]


def test_layers_of_networks_send_nothing():
    graph, weights = nnx.split(Network(nnx.Rngs(0)))

    def loss(weights, x):
        return jnp.sum(nnx.merge(graph, weights)(x) ** 2)

    messages, _ = messages_and_primitives(
        jax.value_and_grad(loss), (False, nnx.to_pure_dict(weights)), (True, jnp.ones((6, 8, 8, 1)))
    )
    assert messages == []


def test_a_differential_equation_for_each_row_sends_nothing():
    diffrax = pytest.importorskip("diffrax")

    def loss(rate, start):
        def solve(start):
            term = diffrax.ODETerm(lambda t, y, args: -rate * y)
            adjoint = diffrax.ForwardMode()
            solution = diffrax.diffeqsolve(term, diffrax.Euler(), 0.0, 1.0, 0.25, start, adjoint=adjoint, max_steps=8)
            return solution.ys[0]

        return jnp.sum(jax.vmap(solve)(start) ** 2)

    messages, _ = messages_and_primitives(lambda *a: loss(*a), (False, jnp.array(0.5)), (True, jnp.ones(6)))
    assert {message.collective for message in messages} <= {"all-reduce"}  # a loop ends for all rows at once


REDUCTIONS = {
    "sum": 0, "mean": 0, "prod": 1, "max": 1, "min": 1, "all": 1, "any": 1, "argmax": 2, "argmin": 2, "var": 1,
    "std": 2, "ptp": 2, "nansum": 0, "nanmax": 2, "count_nonzero": 0, "cumsum": 1, "cumprod": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_rows_exchange_a_number_for_each_device(name):
    found, _ = messages_and_primitives(lambda x: getattr(jnp, name)(x), (True, jnp.arange(1.0, 7.0)))
    sent = [message for message in found if message.nbytes]
    assert len(sent) <= REDUCTIONS[name]
    assert sum(message.nbytes for message in sent) <= 16 * max(1, len(sent))


def test_all_discrete_distributions_have_an_example():
    assert set(COUNTS) == DISCRETE
