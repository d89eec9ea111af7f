"""NaN and infinite numbers in data: refused before compiling, with the way on, where they reach the log density."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.density.finite_data import check_finite_data, locate
from phalanx.inputs.arguments import split_arguments

X = np.arange(12.0, dtype=np.float32).reshape(6, 2)
Y = np.array([1.0, 2.0, 4.0, 3.0, 2.0, 1.0], np.float32)
MEAN_FIELD = phx.guides.mean_field()


def regression(x, y):
    slope = phx.sample("slope", dist.Normal(0.0, 1.0).expand([2]))
    phx.sample("y", dist.Normal(x @ slope, 1.0), obs=y)


def damaged(array, *where, value=np.nan):
    array = np.array(array)
    for index in where:
        array[index] = value
    return array


def check(program, data, **options):
    check_finite_data(program, split_arguments(program, data), ("data", "model"), **options)


@pytest.fixture
def nothing_is_compiled(monkeypatch):
    """Blocks of runs and steps of fits are not compiled."""

    def refuse(*args, **kwargs):
        raise AssertionError("compiled before the data were refused")

    monkeypatch.setattr("phalanx.run.build.compile_blocks", refuse)
    monkeypatch.setattr("phalanx.learning.compiled.Compiler.__call__", refuse)


CALLS = {
    "mcmc": lambda data: phx.mcmc(regression, data, progress=False),
    "stream": lambda data: next(phx.stream(regression, data, progress=False)),
    "compile": lambda data: phx.compile(regression, data),
    "fit": lambda data: phx.fit(regression, MEAN_FIELD, data, progress=False),
    "batches": lambda data: phx.fit(regression, MEAN_FIELD, data, batch_size=2, progress=False),
    "maximize": lambda data: phx.maximize(regression, data),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"x": X, "y": damaged(Y, 3, 5)}, r"data: y has 2 NaN values \(the first: y\[3\]\)\. .*variable 'y'"),
        ({"x": damaged(X, (4, 1), value=np.inf), "y": Y}, r"data: x has 1 infinite value \(the first: x\[4, 1\]\)"),
    ],
)
def test_every_call_refuses_before_it_compiles(call, data, words, nothing_is_compiled):
    with pytest.raises(ValueError, match=words) as refused:
        CALLS[call](data)
    assert all(word in str(refused.value) for word in ("Drop such rows", "mask", "impute"))


def test_rows_on_devices_are_located_and_not_gathered(mesh_of, nothing_is_compiled):
    data = phx.shard({"x": damaged(X, (4, 1)), "y": Y}, mesh_of(1, 4))  # 6 rows over 4 devices: the last is padded
    with pytest.raises(ValueError, match=r"x has 1 NaN value \(the first: x\[4, 1\]\)"):
        phx.mcmc(regression, data, progress=False)
    data = phx.shard({"x": X, "y": damaged(Y, 5)}, mesh_of(1, 4))  # the padding repeats it
    with pytest.raises(ValueError, match=r"y has 1 NaN value \(the first: y\[5\]\)"):
        phx.fit(regression, MEAN_FIELD, data, progress=False)


def counts(y):
    phx.sample("y", dist.Poisson(phx.sample("rate", dist.Gamma(1.0, 1.0))), obs=y)


def flags(y):
    logits = phx.sample("logits", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Bernoulli(logits=logits), obs=y * 0.0)


def cut(y):
    rate = phx.sample("rate", dist.HalfNormal(1.0))
    phx.sample("y", dist.Geometric(logits=rate), obs=jnp.round(y))


def added(y):
    mean = phx.sample("mean", dist.Normal(0.0, 1.0))
    phx.factor("likelihood", -0.5 * jnp.sum(jnp.square(y - mean)))


def scale(y):
    phx.sample("z", dist.Normal(phx.sample("mean", dist.Normal(0.0, 1.0)), y), obs=jnp.ones(jnp.shape(y)))


def bounds(y):
    phx.sample("z", dist.Uniform(0.0, y), obs=jnp.full(y.shape, 0.5))
    phx.sample("mean", dist.Normal(0.0, 1.0))


def hidden(y):
    """The value of what is left out is hidden; its derivative is not."""
    scale = phx.sample("scale", dist.HalfNormal(1.0))
    phx.factor("likelihood", jnp.sum(jnp.where(jnp.isnan(y), 0.0, -jnp.square(y * scale))))


@pytest.mark.parametrize("program", [counts, flags, cut, added, scale, bounds])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_wherever_they_go(program, bad):
    with pytest.raises(ValueError, match=r"data: y has 1 (NaN|infinite) value \(the first: y\[2\]\)"):
        check(program, {"y": damaged(Y, 2, value=bad)})


def test_a_single_number():
    with pytest.raises(ValueError, match=r"data: y is nan\..*Give a finite number"):
        check(scale, {"y": float("nan")})


def test_a_gradient_that_is_hidden():
    data = {"y": damaged(Y, 2)}
    with pytest.raises(ValueError, match=r"its gradient is not: jnp\.where selects a value"):
        check(hidden, data)
    check(hidden, data, gradient=False)


def masked(y):
    mean = phx.sample("mean", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(mean, 1.0).mask(~jnp.isnan(y)), obs=jnp.nan_to_num(y))


def imputed(y):
    mean = phx.sample("mean", dist.Normal(0.0, 1.0))
    missing = phx.sample("missing", dist.Normal(mean, 1.0).expand(y.shape))
    phx.sample("y", dist.Normal(mean, 1.0), obs=jnp.where(jnp.isnan(y), missing, y))


def unused(y):
    phx.sample("mean", dist.Normal(0.0, 1.0))


def limits(y):
    low = phx.sample("mean", dist.Normal(0.0, 1.0))
    phx.sample("z", dist.TruncatedNormal(low, 1.0, high=jnp.where(jnp.isnan(y), 9.0, y)), obs=jnp.full(y.shape, 0.3))


def broken(y):
    """Not finite whatever the data: nothing to be said of them here."""
    phx.factor("wall", phx.sample("mean", dist.Normal(0.0, 1.0)) * jnp.inf * jnp.nansum(y))


@pytest.mark.parametrize(
    ("program", "value"),
    [(masked, np.nan), (imputed, np.nan), (unused, np.nan), (unused, np.inf), (limits, np.inf), (broken, np.nan)],
)
def test_nan_that_the_model_replaces_is_left_alone(program, value):
    check(program, {"y": damaged(Y, 2, value=value)})


def test_masked_data_are_sampled():
    posterior = phx.mcmc(
        masked, {"y": damaged(Y, 2)}, kernel=phx.rwmh(0.5), num_warmup=2, num_samples=2, progress=False
    )
    assert np.isfinite(posterior.draws["mean"]).all()


def test_other_data_of_a_compiled_sampler():
    sampler = phx.compile(regression, {"x": X, "y": Y}, kernel=phx.rwmh(0.1))
    with pytest.raises(ValueError, match=re.escape("data: x has 1 NaN value (the first: x[4, 1])")):
        sampler.run(0, {"x": damaged(X, (4, 1)), "y": Y})


def test_only_the_argument_at_fault_is_named():
    def both(x, note, y):
        regression(jnp.asarray(x) + 0.0 * jnp.nan_to_num(note)[:, None], y)

    data = {"x": damaged(X, (4, 1)), "note": damaged(Y, 0), "y": Y}
    with pytest.raises(ValueError, match=r"data: x has 1"):
        check(both, data)


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray, lambda a: jax.device_put(a, jax.devices()[3])])
def test_first_bad_entry_is_located(kind):
    found = locate(kind(damaged(damaged(X, (3, 1), (5, 0)), (4, 0), value=-np.inf)))
    assert (found.nans, found.infinities, found.index) == (2, 1, (3, 1)) and np.isnan(found.value)
