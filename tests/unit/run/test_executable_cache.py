"""What is compiled is found again only for the same model, kernel, reducers and settings."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import replace
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.inputs.arguments import split_arguments
from phalanx.kernels import hmc
from phalanx.kernels.protocol.whole_draw import WholeDraws
from phalanx.programs.traced_program import TracedProgram
from phalanx.reducers.reductions import Reductions
from phalanx.run.compile.executable_cache import key_of, settings

STEP, LIMIT = 0.1, 0.0
QUICK: dict[str, Any] = {"kernel": phx.rwmh(0.5), "num_chains": 2, "num_warmup": 1, "num_samples": 4, "progress": False}


def model(y):
    x = phx.sample("x", dist.Normal(0.0, 1.0))
    phx.deterministic("twice", 2 * x)
    phx.sample("y", dist.Normal(x, 1.0), obs=y)


def key(kernel=None, reducers=None):
    arguments, mesh = split_arguments(model, {"y": np.ones(3)}), phx.make_mesh(chain=1)
    whole = TracedProgram.of_whole(model, arguments, {"data": 1, "model": 1})
    return key_of(whole, kernel or phx.nuts(), Reductions.of(reducers or {}, ["x"]), mesh, arguments)


def the_limit(values):
    return (values["x"] > LIMIT).astype(jnp.float32)


State = namedtuple("State", "sum")


def add_limit(state, draw, where):
    return State(state.sum + jnp.where(where, draw + LIMIT, 0))


own = phx.reducers.Reducer(
    "own()", lambda draw: State(jnp.zeros_like(draw)), add_limit, lambda a, b: State(a.sum + b.sum), lambda s: s.sum
)


def scaled(fn):
    return lambda values: fn(values) * LIMIT


REDUCERS = {
    "a function that reads a global": phx.reduce(the_limit, phx.reducers.moments()),
    "a function of a function": phx.reduce(scaled(lambda values: values["x"]), phx.reducers.moments()),
    "a function of a deterministic value": phx.reduce(lambda v: v["twice"] + LIMIT, phx.reducers.moments()),
    "a reducer of one's own": own,
    "a reducer of one's own, thinned": phx.reducers.thinned(own, 2),
    "a reducer of one's own of a function": phx.reduce(lambda v: v["x"], own),
}


@pytest.mark.parametrize("case", REDUCERS)
def test_values_that_reducers_read_are_in_the_key(case, monkeypatch):
    before = key(reducers={"r": REDUCERS[case]})
    assert before == key(reducers={"r": REDUCERS[case]}) != key()
    monkeypatch.setitem(globals(), "LIMIT", 1.0)
    assert before != key(reducers={"r": REDUCERS[case]})


def test_reducers_of_ours_are_told_by_their_values():
    quantiles, moments = phx.reducers.quantiles, phx.reducers.moments
    assert key(reducers={"r": quantiles([0.1])}) == key(reducers={"r": quantiles([0.1])})
    assert key(reducers={"r": quantiles([0.1])}) != key(reducers={"r": quantiles([0.2])})
    assert key(reducers={"r": moments()}) != key(reducers={"s": moments()})
    assert key(reducers={"r": phx.reducers.histogram([0, 1])}) != key(reducers={"r": phx.reducers.histogram([0, 2])})


def test_a_function_made_anew_that_reads_the_same_is_the_same():
    def made():
        return {"r": phx.reduce(lambda values: values["x"] ** 2, phx.reducers.moments())}

    assert key(reducers=made()) == key(reducers=made())
    assert key(phx.from_blackjax(lambda f: blackjax.mala(f, 0.1))) == key(
        phx.from_blackjax(lambda f: blackjax.mala(f, 0.1))
    )


def test_values_that_kernels_read_are_in_the_key(monkeypatch):
    kernel = phx.from_blackjax(lambda f: blackjax.mala(f, STEP))
    before = key(kernel)
    assert before == key(kernel) != key(phx.from_blackjax(lambda f: blackjax.hmc(f, STEP, jnp.ones(1), 3)))
    monkeypatch.setitem(globals(), "STEP", 0.2)
    assert before != key(kernel)


def test_values_that_kernels_of_users_read_are_in_the_key(monkeypatch):
    def draw(key, at, target, tuning):
        return hmc.draw(key, at, target, tuning._replace(step_size=tuning.step_size * STEP))

    kernel = replace(phx.hmc(3), machine=WholeDraws(draw))
    before = key(kernel)
    assert before == key(kernel) != key(phx.hmc(3))
    monkeypatch.setitem(globals(), "STEP", 0.2)
    assert before != key(kernel)


def test_kernels_of_ours_are_told_by_their_values():
    assert key(phx.nuts()) == key(phx.nuts()) != key(phx.nuts(max_depth=5))
    assert key(phx.hmc(3)) == key(phx.hmc(4)) != key(phx.chees()), "hyperparameters are arguments"


def test_programs_that_call_the_host_are_never_found():
    def host(values):
        return jax.pure_callback(lambda v: np.asarray(v), values["x"], values["x"], vmap_method="sequential")

    assert key(reducers={"r": phx.reduce(host, phx.reducers.moments())}) is None


@pytest.mark.parametrize(
    "name, value",
    [
        ("jax_threefry_partitionable", not jax.config.jax_threefry_partitionable),  # pyright: ignore[reportAttributeAccessIssue]
        ("jax_default_prng_impl", "rbg"),
        ("jax_enable_checks", not jax.config.jax_enable_checks),  # pyright: ignore[reportAttributeAccessIssue]
        ("jax_debug_nans", True),
        ("jax_numpy_rank_promotion", "allow"),
        ("jax_default_matmul_precision", "bfloat16"),
    ],
)
def test_settings_of_jax_are_in_the_key(name, value):
    old, before = getattr(jax.config, name), settings()
    jax.config.update(name, value)
    try:
        assert settings() != before
    finally:
        jax.config.update(name, old)
    assert settings() == before


def test_settings_of_jax_within_a_block_are_in_the_key():
    before = settings()
    with jax.default_matmul_precision("bfloat16"):
        assert settings() != before


def test_a_second_call_is_of_what_is_read_then():
    reads = {"row": 0, "limit": 0.0}
    columns = [np.zeros(20, np.float32), np.full(20, 7.0, np.float32)]

    def model(columns):
        x = phx.sample("x", dist.Normal(0.0, 10.0))
        phx.sample("y", dist.Normal(x, 1.0), obs=columns[reads["row"]])

    above = phx.reduce(lambda v: (v["x"] > reads["limit"]).astype(jnp.float32), phx.reducers.moments())
    found = []
    for reads["row"], reads["limit"] in [(0, -99.0), (0, -99.0), (1, -99.0), (1, 99.0)]:
        posterior = phx.mcmc(model, {"columns": columns}, **{**QUICK, "num_samples": 200}, reducers={"above": above})
        high = posterior.draws["x"][:, 100:].mean() > 3.5
        found.append((bool(high), float(posterior.reduced["above"].mean), posterior.timing.compilations > 0))
    assert found == [(False, 1, True), (False, 1, False), (True, 1, True), (True, 0, True)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, pytest.param(np.int64, marks=pytest.mark.slow), np.float32])
def test_a_second_call_is_of_what_is_in_an_array_then(dtype):
    offset, y = np.zeros(5, dtype), np.arange(5.0)

    def shifted(y):
        phx.sample("y", dist.Normal(phx.sample("x", dist.Normal(0.0, 1.0)) + offset, 1.0), obs=y)

    for offset[:], expected in [(0, 10 / 6), (3, -5 / 6)]:
        kept = phx.mcmc(shifted, {"y": y}, **{**QUICK, "num_samples": 4000})
        assert kept.draws["x"][:, 100:].mean() == pytest.approx(expected, abs=0.3)
        assert phx.maximize(shifted, {"y": y}).values["x"] == pytest.approx(expected, abs=1e-3)
        fit = phx.fit(shifted, phx.guides.full_rank(), {"y": y}, optimizer="lbfgs", progress=False)
        assert fit.params["loc"] == pytest.approx(expected, abs=1e-2)


def test_functions_on_the_host_are_those_of_the_call():
    def named(name):
        def finalize(state):
            return name

        return {"r": replace(phx.reducers.moments(), name="own", finalize=finalize)}

    def of(name):
        def model(y):
            phx.sample("y", dist.Normal(phx.sample("x", dist.Normal(0.0, 1.0)), 1.0), obs=y)

        model.__name__ = name
        return phx.mcmc(model, {"y": np.ones(3)}, **QUICK, reducers=named(name))

    first, second = of("first"), of("second")
    assert second.timing.compilations == 0
    assert (first.reduced["r"]["x"], second.reduced["r"]["x"], second.record.model) == ("first", "second", "second")
