"""What a program reads from outside of its arguments is told by its trace, however it is read."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import random
import time
import types
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from flax import nnx
from jax import lax
from jax.core import Tracer
from jax.experimental import io_callback
from numpyro.infer.reparam import CircularReparam, LocScaleReparam

import phalanx as phx
from phalanx.inputs.arguments import split_arguments
from phalanx.programs.closure_key import captured, check_function
from phalanx.programs.traced_program import TracedProgram
from phalanx.run.compile.lru_cache import LRUCache
from phalanx.variational import problem


def traced(model, fill=1.0):
    arguments = split_arguments(model, {"x": np.full((4, 2), fill, np.float32)})
    return TracedProgram.of_whole(model, arguments, {"data": 2, "model": 1})


def digest(model, fill=1.0):
    return captured(traced(model, fill))


def program(f, keep=lambda a, b: None):
    """A model whose log density has the term `f(a, b, x)`."""

    def model(x):
        a, b = phx.sample("a", dist.Normal(0.0, 1.0)), phx.sample("b", dist.Normal(0.0, 1.0))
        phx.factor("f", f(a, b, x))
        keep(a, b)

    return model


# -- however it is read: each gives a model, and what changes what it reads --------------------------------------

A_GLOBAL = 0
MODULE: Any = types.ModuleType("settings")


class OfAClass:
    limit = 1.0


def a_global():
    global A_GLOBAL
    A_GLOBAL = 0

    def change():
        global A_GLOBAL
        A_GLOBAL = 1

    return program(lambda a, b, x: a * x[A_GLOBAL, 0]), change


def a_closure():
    limit = 1.0

    def change():
        nonlocal limit
        limit = 2.0

    return program(lambda a, b, x: a * limit), change


def a_default():
    def f(a, b, x, limit=1.0):
        return a * limit

    return program(f), lambda: setattr(f, "__defaults__", (2.0,))


def a_module():
    MODULE.limit = 1.0
    return program(lambda a, b, x: a * MODULE.limit), lambda: setattr(MODULE, "limit", 2.0)


def a_class():
    OfAClass.limit = 1.0
    return program(lambda a, b, x: a * OfAClass().limit), lambda: setattr(OfAClass, "limit", 2.0)


def an_object():
    held = types.SimpleNamespace(limit=1.0)
    return program(lambda a, b, x: a * held.limit), lambda: setattr(held, "limit", 2.0)


def a_method():
    class Model:
        limit = 1.0

        def __call__(self, x):
            phx.factor("f", phx.sample("a", dist.Normal(0.0, 1.0)) * self.limit)

    model = Model()
    return model, lambda: setattr(model, "limit", 2.0)


def a_list():
    limits = [1.0]
    return program(lambda a, b, x: a * limits[0]), lambda: limits.__setitem__(0, 2.0)


def a_dict():
    limits = {"a": 1.0}
    return program(lambda a, b, x: a * limits["a"]), lambda: limits.update(a=2.0)


def an_array_in_place():
    w = np.ones(100, np.float32)
    return program(lambda a, b, x: jnp.sum(a * w)), lambda: w.__setitem__(99, 2.0)


def an_array_in_a_jitted_helper():
    w = np.ones(2, np.float32)
    helper = jax.jit(lambda x: x @ w)
    return program(lambda a, b, x: a * helper(x)), lambda: w.__setitem__(1, 2.0)


def a_new_jitted_helper():
    held = [jax.jit(lambda x: x @ np.ones(2, np.float32))]

    def change():
        held[0] = jax.jit(lambda x: x @ np.full(2, 2, np.float32))

    return program(lambda a, b, x: a * held[0](x)), change


def a_partial():
    model = partial(lambda x, scale: phx.factor("f", scale * phx.sample("a", dist.Normal(0.0, 1.0))), scale=1.0)
    return model, lambda: model.keywords.update(scale=2.0)


def the_environment():
    os.environ["PHALANX_TEST_LIMIT"] = "1"

    def change():
        os.environ["PHALANX_TEST_LIMIT"] = "2"

    return program(lambda a, b, x: a * float(os.environ["PHALANX_TEST_LIMIT"])), change


def a_file(tmp_path):
    (tmp_path / "limit").write_text("1")
    return program(lambda a, b, x: a * float((tmp_path / "limit").read_text())), lambda: (
        tmp_path / "limit"
    ).write_text("2")


def random_numbers():
    return program(lambda a, b, x: a * np.random.default_rng().normal()), lambda: None


# -- whatever it changes: each is a function of a flag -----------------------------------------------------------


def rule(slope):
    @jax.custom_jvp
    def f(a):
        return a * 2

    f.defjvp(lambda primals, tangents: (f(*primals), slope * tangents[0]))
    return f


def backward(slope):
    @jax.custom_vjp
    def f(a):
        return a * 2

    f.defvjp(lambda a: (a * 2, None), lambda _, g: (slope * g,))
    return f


def improper(low, a):
    phx.sample("c", dist.ImproperUniform(dist.constraints.greater_than(low), (), ()))


BY_FLAG = {
    "the order of a difference": lambda on: program(lambda a, b, x: a - b if on else b - a),
    "the order of a difference, of vectors": lambda on: program(lambda a, b, x: (a - b) * x if on else (b - a) * x),
    "which variable": lambda on: program(lambda a, b, x: a * 2 if on else b * 2),
    "which row": lambda on: program(lambda a, b, x: a * x[int(on)]),
    "the order of terms": lambda on: program(lambda a, b, x: a + b + 1 if on else a + (b + 1)),
    "the sign of a zero": lambda on: program(lambda a, b, x: a * (0.0 if on else -0.0)),
    "a NaN": lambda on: program(lambda a, b, x: jnp.where(a > 0, jnp.nan if on else jnp.inf, b)),
    "a power": lambda on: program(lambda a, b, x: a ** (2 if on else 3)),
    "a type": lambda on: program(lambda a, b, x: a.astype(jnp.float16 if on else jnp.bfloat16).astype(jnp.float32)),
    "a constant of another type": lambda on: program(
        lambda a, b, x: jnp.sum(a * np.arange(40, dtype=np.int16 if on else np.int32))
    ),
    "bfloat16": lambda on: program(lambda a, b, x: a * jnp.full(70, 1.0 + on, jnp.bfloat16).sum()),
    "the length of a scan": lambda on: program(
        lambda a, b, x: jax.lax.scan(lambda c, _: (c * b, None), a, None, length=3 + on)[0]
    ),
    "a scan's constant": lambda on: program(
        lambda a, b, x: jax.lax.scan(lambda c, y: (c * b + y, None), a, np.arange(50.0, dtype=np.float32) + on)[0]
    ),
    "the body of a scan": lambda on: program(
        lambda a, b, x: jax.lax.scan(lambda c, _: (c - b if on else b - c, None), a, None, length=3)[0]
    ),
    "a loop": lambda on: program(lambda a, b, x: jax.lax.fori_loop(0, 3, lambda _, c: c - b if on else b - c, a)),
    "a branch": lambda on: program(
        lambda a, b, x: jax.lax.cond(a > 0, lambda: a - b if on else b - a, lambda: jnp.float32(0))
    ),
    "the order of branches": lambda on: program(
        lambda a, b, x: jax.lax.cond(a > 0, *(lambda: a, lambda: b)[:: 1 if on else -1])
    ),
    "a jitted helper": lambda on: program(lambda a, b, x: jax.jit(lambda a, b: a - b if on else b - a)(a, b)),
    "what is given to a helper": lambda on: program(
        lambda a, b, x: jax.jit(lambda a, b: a - b)(*(a, b)[:: 1 if on else -1])
    ),
    "a checkpoint": lambda on: program(lambda a, b, x: jax.checkpoint(lambda a: jnp.sin(a) * (1.0 + on))(a)),
    "a rule of derivatives": lambda on: program(lambda a, b, x: rule(2.0 + on)(a)),
    "a rule of derivatives backward": lambda on: program(lambda a, b, x: backward(2.0 + on)(a)),
    "a rule within a scan": lambda on: program(
        lambda a, b, x: jax.lax.scan(lambda c, _: (rule(2.0 + on)(c), None), a, None, length=2)[0]
    ),
    "a key": lambda on: program(lambda a, b, x: a * jax.random.normal(jax.random.key(int(on)))),
    "a kind of key": lambda on: program(
        lambda a, b, x: a * jax.random.normal(jax.random.key(0, impl="rbg" if on else "threefry2x32"))
    ),
    "an array of keys": (
        lambda on: (
            (lambda k: program(lambda a, b, x: a * jax.random.normal(k[0])))(jax.random.split(jax.random.key(0)))
            if on
            else (lambda k: program(lambda a, b, x: a * jax.random.normal(k[0])))(jax.random.split(jax.random.key(1)))
        )
    ),
    "a deterministic value": lambda on: program(
        lambda a, b, x: a, lambda a, b: phx.deterministic("d", a - b if on else b - a)
    ),
    "the name of a deterministic value": lambda on: program(
        lambda a, b, x: a, lambda a, b: phx.deterministic("d" if on else "e", a)
    ),
    "the name of a variable": lambda on: program(
        lambda a, b, x: a, lambda a, b: phx.sample("d" if on else "e", dist.Normal(0.0, 1.0))
    ),
    "a support that no density shows": lambda on: program(lambda a, b, x: a, lambda a, b: improper(2.0 + on, a)),
    "the support of what is observed": lambda on: program(
        lambda a, b, x: a, lambda a, b: phx.sample("y", dist.Uniform(float(on), 1.0 + on), obs=np.float32(0.5))
    ),
    "latent or observed": lambda on: program(
        lambda a, b, x: a, lambda a, b: phx.sample("y", dist.Normal(0.0, 1.0), obs=np.float32(0.0) if on else None)
    ),
    "an axis that is declared": lambda on: program(
        lambda a, b, x: a,
        lambda a, b: phx.sample("w", dist.Normal(0.0, 1.0).expand([4]), axis="data" if on else None),
    ),
    "a scale": lambda on: (lambda f: phx.scale(f, 2.0) if on else f)(program(lambda a, b, x: a)),
    "a condition": lambda on: phx.condition(program(lambda a, b, x: a), {"b": 1.0 + on}),
    "where a log density starts": lambda on: phx.from_logdensity(lambda z, x: -(z**2), np.float32(on)),
    "a model of NumPyro's": lambda on: phx.from_numpyro(lambda x: numpyro.sample("a", dist.Normal(0.0, 1.0 + on))),
}

WAYS = [
    a_global, a_closure, a_default, a_module, a_class, an_object, a_method, a_list, a_dict, an_array_in_place,
    an_array_in_a_jitted_helper, a_new_jitted_helper, a_partial, the_environment, a_file,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_values_that_a_model_reads_are_in_its_key(way, tmp_path):
    model, change = way(tmp_path) if way is a_file else way()
    before, again = digest(model), digest(model, fill=0.0)
    change()
    assert before is not None
    assert before == again
    assert before != digest(model)


READS = [
    lambda w, a: a * w[1],
    lambda w, a: jnp.sum(a + w),
    lambda w, a: jnp.asarray(w) @ jnp.ones(2) * a,
    lambda w, a: jnp.take(jnp.array(w), jnp.argmax(a) + 1) * a,
    lambda w, a: lax.scan(lambda c, _: (c + jnp.sum(c * w), None), a, None, length=2)[0],
    lambda w, a: jax.jit(lambda a: jnp.sum(a * w))(a),
    lambda w, a: jnp.sum(dist.Normal(w, 2.0).log_prob(a)),
]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.uint64, np.float32, np.int32])
def test_an_array_that_is_changed_in_place_is_read_anew_while_traces_of_it_are_kept(dtype, read):
    w = np.ones(2, dtype)
    model = program(lambda a, b, x: read(w, a))
    kept = traced(model)
    before = captured(kept)
    w[1] = 3
    assert digest(model) != before


def test_an_array_that_is_read_twice_is_one_constant():
    w = np.ones(2)
    assert len(jax.make_jaxpr(lambda a: a * w + w)(1.0).consts) == 1


@pytest.mark.parametrize("case", BY_FLAG)
def test_values_that_a_model_computes_are_in_its_key(case):
    on, off = BY_FLAG[case](True), BY_FLAG[case](False)
    assert digest(on) == digest(on) != digest(off)
    assert digest(BY_FLAG[case](True)) == digest(on), "a function made anew that is traced alike"


def test_random_numbers_of_numpys_are_new_in_every_trace():
    model, _ = random_numbers()
    assert digest(model) != digest(model)


def test_rows_of_a_block_are_told():
    def of(block):
        def model(x):
            a = phx.sample("a", dist.Normal(0.0, 1.0))
            phx.factor("f", phx.blocked(lambda x: x[:, 0] * a, x, block=block))

        return digest(model)

    assert of(2) == of(2) != of(4)


def test_jitted_helpers_keep_what_jax_keeps():
    w = [np.ones(2, np.float32)]
    helper = jax.jit(lambda x: x @ w[0])
    model = program(lambda a, b, x: a * helper(x))
    before = digest(model)
    w[0] = np.full(2, 2, np.float32)
    assert digest(model) == before


@pytest.mark.parametrize(
    "f",
    [
        lambda a: jax.pure_callback(lambda v: v, a, a),
        lambda a: io_callback(lambda v: v, a, a),
    ],
    ids=["pure_callback", "io_callback"],
)
def test_models_that_call_the_host_have_no_key(f):
    assert digest(program(lambda a, b, x: f(a))) is None


def test_arrays_spread_over_devices_are_told_by_their_contents():
    mesh = phx.make_mesh(chain=1, data=2, devices=jax.devices()[:2])

    def of(*rows):
        rows = phx.shard(np.array(rows, np.float32), mesh)
        return digest(program(lambda a, b, x: jnp.sum(a * rows)))

    assert of(1, 2) == of(1, 2) != of(1, 3)


def test_without_a_gradient_rules_of_derivatives_count_for_nothing():
    def of(slope):
        arguments = split_arguments(model := program(lambda a, b, x: rule(slope)(a)), {"x": np.ones((4, 2))})
        return captured(TracedProgram.of_whole(model, arguments, {"data": 2}), differentiated=False)

    assert of(2.0) == of(3.0)


COUNT = itertools.count()


@pytest.mark.parametrize("other", [np.random.default_rng(0).normal, random.random, lambda: next(COUNT)])
def test_a_model_with_other_constants_in_each_trace_is_refused_by_line(other):
    def model():
        mean = phx.sample("mean", dist.Normal(0.0, 1.0))
        phx.sample("y", dist.Normal(mean + other(), 1.0), obs=0.0)

    line = model.__code__.co_firstlineno + 2
    with pytest.raises(ValueError) as caught:
        phx.Target(model)
    assert str(caught.value) == (
        f"The model model is another one each time it runs, by line {line} of {__file__}: it computes with other "
        f"constants. Remove random numbers of NumPy or Python, counters and clocks from it: pass them as data, or "
        f"sample them with phx.sample."
    )


@jax.custom_jvp
def softplus(v):
    return jnp.log1p(jnp.exp(v))


softplus.defjvp(lambda primals, tangents: (softplus(*primals), tangents[0] * jax.nn.sigmoid(primals[0])))


@functools.lru_cache
def table(size):
    return np.linspace(0.0, 1.0, size, dtype=np.float32)


KEPT: dict[str, np.ndarray] = {}
WEIGHTS = jnp.arange(3.0)
PRIOR = dist.MultivariateNormal(jnp.zeros(3), precision_matrix=2.0 * jnp.eye(3))


def kept(v):
    if "grid" not in KEPT:
        KEPT["grid"] = np.linspace(0.0, 1.0, 3, dtype=np.float32)
        return v * jnp.asarray(KEPT["grid"])
    return KEPT["grid"] * v


class Layer:
    """A callable object, another one at each trace."""

    def __call__(self, v):
        return jnp.tanh(v * WEIGHTS)


def network(v):
    return nnx.Sequential(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), jax.nn.relu, nnx.Linear(2, 1, rngs=nnx.Rngs(1)))(v)


def reparameterized(v):
    config = {"shift": LocScaleReparam(0.0), "angle": CircularReparam()}
    with numpyro.handlers.reparam(config=config):
        return v + numpyro.sample("shift", dist.Normal(0.0, 2.0)) + numpyro.sample("angle", dist.VonMises(0.0, 2.0))


FUNCTIONS = {
    "a derivative of one's own": softplus,
    "a cached table": lambda v: v * table(3),
    "a cache that the first call fills": kept,
    "a jitted closure": lambda v: jax.jit(lambda u: u * WEIGHTS)(v),
    "a partial": lambda v: jax.jit(functools.partial(jnp.multiply, 2.0))(v),
    "a jitted object": lambda v: jax.jit(Layer())(v),
    "a mapped object": lambda v: jax.vmap(lambda u: Layer()(u))(v[None]),
    "a scan": lambda v: lax.scan(lambda c, t: (c * t, c @ WEIGHTS), v, jnp.arange(3.0))[1],
    "a branch": lambda v: lax.cond(v[0] > 0, lambda u: u * WEIGHTS, lambda u: u + WEIGHTS, v),
    "a loop": lambda v: lax.fori_loop(0, 3, lambda _, u: u * 0.5, v),
    "a checkpoint": lambda v: jax.checkpoint(
        jnp.sin, policy=jax.checkpoint_policies.save_only_these_names("u")
    )(v),
    "a callback": lambda v: jax.pure_callback(lambda u: u, v, v),
    "a reduction": lambda v: lax.reduce(v, 0.0, lambda one, other: one + other, (0,)),
    "a linear solve": lambda v: lax.custom_linear_solve(lambda u: 2.0 * u, v, lambda f, u: u / 2.0, symmetric=True),
    "a Cholesky factor": lambda v: jnp.linalg.cholesky(20.0 * jnp.eye(3) + jnp.outer(v, v)),
    "a random key": lambda v: v * jax.random.normal(jax.random.key(3), (3,)),
    "a shared distribution": PRIOR.log_prob,
    "a validated distribution": lambda v: dist.Normal(0.0, 1.0, validate_args=True).log_prob(v),
    "a set of words": lambda v: sum(v[0] * len(word) for word in {"a", "bb", "ccc"}),
    "a network": network,
    "a loss": lambda v: optax.softmax_cross_entropy_with_integer_labels(v, jnp.array(1)),
    "reparameterizations": reparameterized,
}  # fmt: skip


def of_vector(f):
    def model():
        phx.factor("f", jnp.sum(f(phx.sample("a", dist.Normal(jnp.zeros(3), 1.0).to_event(1)))))

    return model


@pytest.mark.parametrize("f", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_function_is_never_refused(f):
    KEPT.clear()
    model = of_vector(f)
    whole = TracedProgram.of_whole(model, split_arguments(model, {}), {})
    check_function(whole)
    check_function(whole)  # its caches are full


RANDOM = np.random.default_rng(0)
CALLS: list[int] = []
OTHERS = {
    "beside a callback": lambda v: jax.pure_callback(lambda u: u, v, v) * RANDOM.normal(),
    "beside a reduction": lambda v: lax.reduce(v, 0.0, lambda one, other: one + other, (0,)) * RANDOM.normal(),
    "in a checkpoint": lambda v: jax.checkpoint(
        lambda u: jnp.sin(u * RANDOM.normal()), policy=jax.checkpoint_policies.save_only_these_names("u")
    )(v),
    "in a scan": lambda v: lax.scan(lambda c, t: (c * RANDOM.normal(), t), v, jnp.arange(3.0))[0],
    "in a branch": lambda v: lax.cond(v[0] > 0, lambda u: u * RANDOM.normal(), lambda u: u, v),
    "an exponent": lambda v: v ** next(COUNT),
    "a slice": lambda v: jnp.arange(1e4)[next(COUNT) :][:3] * v,
    "a seed": lambda v: v * jax.random.normal(jax.random.key(next(COUNT)), (3,)),
    "a clock": lambda v: v * (time.perf_counter() % 1.0),
    "a permutation": lambda v: v * RANDOM.permutation(1000)[:3],
    "more operations": lambda v: (CALLS.append(1), sum(v[0] * 0.5 for _ in CALLS))[1],
    "an alternation": lambda v: jnp.sin(v) if next(COUNT) % 2 else jnp.cos(v),
}  # fmt: skip


@pytest.mark.parametrize("f", OTHERS.values(), ids=OTHERS)
def test_other_constants_are_refused_wherever_they_are(f):
    with pytest.raises(ValueError, match=f"is another one each time it runs, by line \\d+ of {__file__}"):
        phx.Target(of_vector(f))


def prior():
    phx.sample("a", dist.Normal(RANDOM.normal(), 1.0))


def support():
    phx.sample("a", dist.Uniform(0.0, 1.0 + RANDOM.uniform()))


def scaled():
    with numpyro.handlers.scale(scale=RANDOM.uniform()):
        phx.sample("a", dist.Normal(0.0, 1.0))


def observed():
    phx.sample("y", dist.Normal(phx.sample("b", dist.Normal(0.0, 1.0)), 1.0), obs=RANDOM.normal())


def masked():
    b = phx.sample("b", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(b, 1.0).expand([9]).mask(RANDOM.uniform(size=9) > 0.5), obs=np.zeros(9))


def computed():
    phx.sample("b", dist.Normal(0.0, 1.0))
    phx.deterministic("y", RANDOM.normal())


@pytest.mark.parametrize("model", [prior, support, scaled, observed, masked, computed])
def test_other_constants_of_a_distribution_are_refused_by_variable(model):
    name = "a" if model in (prior, support, scaled) else "y"
    with pytest.raises(ValueError, match=f"is another one each time it runs, by the variable '{name}': it computes"):
        phx.Target(model)


@pytest.mark.parametrize(
    "call",
    [
        lambda model: phx.fit(model, phx.guides.mean_field(), num_steps=2, progress=False),
        phx.maximize,
        lambda model: phx.smc(model, num_particles=16, progress=False),
        lambda model: phx.importance(model, phx.guides.mean_field()),
    ],
)
def test_every_method_refuses_a_model_with_other_constants_in_each_trace(call):
    def model():
        mean = phx.sample("mean", dist.Normal(0.0, 1.0))
        phx.sample("y", dist.Normal(mean + next(COUNT), 1.0), obs=0.0)

    line = model.__code__.co_firstlineno + 2
    with pytest.raises(ValueError, match=f"is another one each time it runs, by line {line} of"):
        call(model)


def test_parameters_may_begin_at_random_values_and_a_model_is_traced_again_once(monkeypatch):
    traces = []
    monkeypatch.setattr(problem, "check_function", lambda whole: traces.append(check_function(whole)))
    monkeypatch.setattr(problem, "CHECKED", LRUCache(2))
    arguments = split_arguments(started, {})
    for _ in range(2):
        problem.Problem(started, arguments, phx.make_mesh(1)).check_function()
    problem.Problem(centred, arguments, phx.make_mesh(1)).check_function()
    problem.Problem(centred, arguments, phx.make_mesh(1)).check_function()
    assert len(traces) == 3  # values at which a parameter begins make another trace


def started():
    scale = phx.param("scale", np.random.default_rng().uniform(1.0, 2.0), dist.constraints.positive)
    phx.sample("y", dist.Normal(phx.sample("mean", dist.Normal(0.0, 1.0)), scale), obs=0.0)


def centred():
    phx.sample("mean", dist.Normal(0.0, 1.0))


def test_nothing_that_outlives_a_trace_keeps_its_tracers():
    def model(x, y=None):
        scale = phx.sample("scale", dist.HalfNormal(1.0))
        bounded = phx.sample("bounded", dist.Uniform(0.0, scale))
        shift = dist.transforms.AffineTransform(bounded, scale)
        moved = phx.sample("moved", dist.TransformedDistribution(dist.Normal(bounded, scale), shift))
        phx.sample("vector", dist.MultivariateNormal(bounded * jnp.ones(2), scale * jnp.eye(2)))
        phx.deterministic("double", 2.0 * bounded)
        phx.sample("y", dist.Normal(moved * x, 1.0).mask(x > 0), obs=y)

    arguments = split_arguments(model, {"x": np.ones(4), "y": np.ones(4)})
    gc.collect()
    before = [value for value in gc.get_objects() if isinstance(value, Tracer)]  # of other tests
    fit = problem.Problem(model, arguments, phx.make_mesh(1))
    assert list(fit.whole.checks)
    gc.collect()
    known = {*map(id, before)}
    assert not [value for value in gc.get_objects() if isinstance(value, Tracer) and id(value) not in known]
