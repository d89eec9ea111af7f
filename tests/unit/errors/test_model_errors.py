"""What a wrong model is told: its file and line, the variable, and what to write instead."""

from __future__ import annotations

import inspect
import math
import random
import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.special

import phalanx as phx
from phalanx.errors.model_errors import ModelError
from phalanx.programs.unconstrained import run_unconstrained

X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
GROUP = np.arange(20) % 4
KEPT = []

ARRAY = r"jnp\.where\(condition, a, b\), or jax\.lax\.cond"
SIZE = r"Sizes must be known .* compute it outside of the model"


class Own(Exception):
    pass


def latent():
    return phx.sample("s", dist.Normal(0.0, 1.0))


def helper(value):
    return 1.0 if value > 0 else 2.0  # reported


def branch():
    s = latent()
    if s > 0:  # reported
        phx.factor("f", s)


def derived():
    s = latent()
    rate = jnp.exp(s) * 2
    total, one = rate + 1, 3
    return 1.0 if total > one else 2.0  # reported


def in_a_helper():
    helper(latent())


def loop():
    s = latent()
    while s < 3:  # reported
        s = s + 1


def both():
    s = latent()
    return jnp.where(s > 0 and s < 1, 1.0, 2.0)  # reported


def negated():
    s = latent()
    return not s  # reported


def asserted():
    s = latent()
    assert s > 0  # reported


def largest():
    s = latent()
    return max(s, 0.0)  # reported


def member():
    s = latent()
    return s in [1.0, 2.0]  # reported


def numpys_log():
    s = latent()
    return np.log(s)  # reported


def numpys_dot():
    s = latent()
    return np.dot(X, s * jnp.ones(3))  # reported


def math_exp():
    s = latent()
    return math.exp(s)  # reported


def scipys():
    s = latent()
    return scipy.special.expit(s)  # reported


def integer():
    s = latent()
    return int(s)  # reported


def real():
    s = latent()
    return float(s)  # reported


def truth():
    s = latent()
    return bool(s)  # reported


def item():
    s = latent()
    return s.item()  # reported


def numpyros():
    s = numpyro.sample("s", dist.Normal(0.0, 1.0))
    return 1.0 if s > 0 else 2.0  # reported  # pyright: ignore[reportOperatorIssue]


def jax_levels(group):
    latent()
    return jnp.unique(group)  # reported


def masked(x):
    s = latent()
    return x[x[:, 0] > s]  # reported


def nonzero(x):
    s = latent()
    return jnp.nonzero(x > s)  # reported


def assigned():
    s = latent()
    values = np.zeros(3)
    values[0] = s  # reported


def written():
    s = latent()
    return f"{s:.3f}"  # reported


def added(x):
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([5]))
    return x + w  # reported


def multiplied(x):
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([4]))
    return x @ w  # reported


def of_two_shapes():
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([4]))
    return dist.Normal(w, jnp.ones(3))  # reported


def joined(x):
    s = latent()
    return jnp.concatenate([x, s * jnp.ones(3)])  # reported


def reshaped(x):
    latent()
    return x.reshape(7, 7)  # reported


def unpacked():
    a, b = phx.sample("s", dist.Normal(0.0, 1.0).expand([3]))  # reported
    return a + b


def nothing():
    s = latent()
    return s + None  # reported  # pyright: ignore[reportOperatorIssue]


WRONG = [
    (branch, "'s > 0' cannot be computed.*variable 's'", ARRAY),
    (derived, "'total > one' .*variable 's'", ARRAY),
    (in_a_helper, "'value > 0' .*variable 's'", ARRAY),
    (loop, "variable 's'", "jax.lax.while_loop"),
    (both, "variable 's'", "Use &, | and ~"),
    (negated, "variable 's'", "Use &, | and ~"),
    (asserted, "variable 's'", "distribution's support"),
    (largest, "variable 's'", "jnp.maximum"),
    (member, "variable 's'", ARRAY),
    (numpys_log, "variable 's'", r"Use jnp\.log instead of np\.log"),
    (numpys_dot, "variable 's'", r"Use jnp\.dot instead of np\.dot"),
    (math_exp, "variable 's'", r"Use jnp\.exp instead of math\.exp"),
    (scipys, "variable 's'", r"Use jax\.scipy\.special\.expit"),
    (integer, "variable 's'", r"\.astype\(int\)"),
    (real, "variable 's'", r"\.astype\(float\)"),
    (truth, "variable 's'", ARRAY),
    (item, "variable 's'", "jax.numpy"),
    (numpyros, "variable 's'", ARRAY),
    (jax_levels, "argument 'group'", SIZE),
    (masked, "variable 's'", r"jnp\.where\(mask"),
    (nonzero, "variable 's'", SIZE),
    (assigned, r"setting an array element", r"a\.at\[index\]\.set"),
    (written, "format string passed to array", "jax.debug.print"),
    (added, r"x has shape \(20, 3\), w has shape \(5,\)", r"x\[:, None\] adds a dimension.*'w'"),
    (multiplied, r"x has shape \(20, 3\), w has shape \(4,\)", "The last variable sampled: 'w'"),
    (of_two_shapes, r"w has shape \(4,\)", "Dimensions must be equal"),
    (joined, r"x has shape \(20, 3\), s has shape \(\)", "Dimensions must be equal"),
    (reshaped, r"x has shape \(20, 3\)", "The last variable sampled: 's'"),
    (unpacked, "too many values to unpack", "'s'"),
    (nothing, "'array' and 'NoneType'", "'s'"),
]


def data_of(model):
    return {name: {"x": X, "group": GROUP}[name] for name in inspect.signature(model).parameters}


def reported_line(function):
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if "# reported" in line)


@pytest.mark.parametrize("model, what, remedy", WRONG, ids=lambda value: getattr(value, "__name__", ""))
def test_the_line_the_variable_and_the_remedy_are_named(model, what, remedy):
    line = reported_line(helper if model is in_a_helper else model)
    with pytest.raises(ModelError) as caught:
        phx.Target(phx.from_numpyro(model) if model is numpyros else model, data_of(model))
    message = str(caught.value)
    assert message.startswith(f"{model.__name__}, line {line} of {__file__}: ")
    assert re.search(what, message) and re.search(remedy, message), message
    assert "Tracer" not in message and caught.value.__cause__ is not None
    assert isinstance(caught.value, TypeError) and isinstance(caught.value, ValueError)


def raises_its_own():
    latent()
    raise Own("mine")  # reported


def asks_its_own_dict():
    latent()
    return {}["nope"]  # reported


def divides_by_zero():
    latent()
    return 1 / 0  # reported


def refuses():
    latent()
    raise ValueError("my own words")  # reported


@pytest.mark.parametrize(
    "model, kind, words",
    [
        (raises_its_own, Own, "mine"),
        (asks_its_own_dict, KeyError, "'nope'"),
        (divides_by_zero, ZeroDivisionError, "division by zero"),
        (refuses, ValueError, "my own words"),
    ],
)
def test_the_users_own_exceptions_stay_and_tell_where(model, kind, words):
    with pytest.raises(kind) as caught:
        phx.Target(model)
    assert type(caught.value) is kind and str(caught.value) == words
    note = f"In {model.__name__}, line {reported_line(model)} of {__file__}, after the variable 's'."
    assert note in caught.value.__notes__


def keeps():
    KEPT.append(latent())
    return KEPT[0] + 1.0


def within_scan():
    jax.lax.scan(lambda c, _: (c + phx.sample("e", dist.Normal(0.0, 1.0)), None), 0.0, None, length=3)


def within_jit():
    jax.jit(lambda: phx.sample("e", dist.Normal(0.0, 1.0)))()


def within_cond():
    s = latent()
    jax.lax.cond(s > 0, lambda: phx.sample("e", dist.Normal(0.0, 1.0)), lambda: 0.0)


@pytest.mark.parametrize("model", [keeps, within_scan, within_jit, within_cond])
def test_values_that_outlive_their_trace_are_refused(model):
    KEPT.clear()
    with pytest.raises((TypeError, ValueError), match="earlier call|that JAX transforms within the program"):
        for _ in range(2):
            phx.Target(model)


def test_values_of_a_trace_of_the_users_own_are_no_leak():
    def density(scale):
        target = phx.Target(lambda: phx.sample("x", dist.Normal(0.0, scale)))
        return run_unconstrained(target.program, None, {}).terms()["x", "density"]

    assert jax.jit(density)(2.0) == pytest.approx(dist.Normal(0.0, 2.0).log_prob(0.0))


def renames():
    KEPT.append(1)
    phx.sample(f"a{len(KEPT)}", dist.Normal(0.0, 1.0))


def resizes():
    phx.sample("b", dist.Normal(0.0, 1.0).expand([random.randrange(1, 10**6) % 997 + 1]))


def forgets():
    KEPT.append(1)
    s = latent()
    if len(KEPT) < 2:
        phx.sample("y", dist.Normal(s, 1.0), obs=1.0)


@pytest.mark.parametrize("model", [renames, resizes, forgets])
def test_a_model_that_changes_between_traces_is_refused(model):
    KEPT.clear()
    with pytest.raises(ValueError, match="The model is not the same each time it runs: .*'(a[23]|b|y)'"):
        target = phx.Target(model)
        target.log_density({latent.name: jnp.zeros(latent.unconstrained_shape) for latent in target.sites.latents})


def test_complex_deterministic_values_are_refused():
    with pytest.raises(ValueError, match=r"deterministic value 'z' is complex \(complex64\).*jnp\.real"):
        phx.Target(lambda: phx.deterministic("z", latent() * 1j))


def test_functions_of_draws_and_log_densities_are_told_of_alike():
    from tests.unit.report.posteriors import make_posterior

    with pytest.raises(ModelError, match="the argument 'b' has no value yet.*jnp.where"):
        make_posterior(2, 3).predict(lambda draw: 1.0 if draw["b"] > 0 else 2.0)
    with pytest.raises(ModelError, match="the variable 'x' has no value yet.*jnp.where"):
        phx.Target(phx.from_logdensity(lambda x: -(x**2) if x > 0 else -x, jnp.zeros(())))
    fold = phx.reduce(lambda draw: np.log(draw["s"]), phx.reducers.moments())
    with pytest.raises(ModelError, match="the argument 's' has no value yet.*jnp.log instead"):
        phx.mcmc(latent, keep=[], reducers={"fold": fold}, progress=False)
    begin = phx.ensemble(lambda key: jnp.zeros(()), lambda state, batch: 1.0 if state > 0 else state, 2)
    with pytest.raises(ModelError, match="the argument 'state' has no value yet.*jnp.where"):
        list(begin.train(np.zeros((4, 1), np.float32), batch_size=2))


def root(s):
    return jax.lax.while_loop(lambda r: jnp.abs(r * r - s) > 0.01 * s, lambda r: 0.5 * (r + s / r), s)  # reported


def of_unknown_length():
    phx.factor("f", -root(jnp.exp(latent())))


def of_a_number_of_steps():
    s = latent()
    phx.factor("f", jax.lax.fori_loop(0, (s * 0).astype(int) + 3, lambda _, r: 0.5 * (r + s), s))  # reported


def of_the_host():
    s = latent()
    phx.factor("f", jax.pure_callback(np.sin, jax.typeof(s), s, vmap_method="expand_dims"))  # reported


SHORT = {"num_chains": 2, "num_warmup": 3, "num_samples": 3, "progress": False}
CALLS = {
    "chains": lambda model: phx.mcmc(model, **SHORT),
    "fit": lambda model: phx.fit(model, phx.guides.mean_field(), num_steps=3, progress=False),
    "maximum": phx.maximize,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("model", [of_unknown_length, of_a_number_of_steps, of_the_host])
def test_a_density_without_a_gradient_is_reported_with_its_line_and_what_to_do(model, call):
    function = root if model is of_unknown_length else model
    lines, first = inspect.getsourcelines(function)
    line = first + next(i for i, text in enumerate(lines) if "# reported" in text)
    steps = "Make a fixed number of steps, with jax.lax.scan.*" if model is not of_the_host else ""
    advice = r"derivative with jax.custom_vjp.* or use a kernel that needs no gradient, such as phx.rwmh\(\)"
    with pytest.raises(ModelError, match=f"line {line} of .*{steps}{advice}"):
        call(model)


def test_a_density_without_a_gradient_runs_with_a_kernel_that_needs_none():
    assert phx.mcmc(of_unknown_length, kernel=phx.rwmh(), **SHORT).draws["s"].shape == (2, 3)
