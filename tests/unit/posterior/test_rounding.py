"""Check of rounding: models whose log density loses its digits in float32, and models whose does not."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.scipy.special import gammaln

import phalanx as phx
from phalanx.diagnostics import Finding, judged
from phalanx.posterior import rounding

DRAWS = {"x": np.random.default_rng(0).normal(size=(4, 50)).astype(np.float32)}


def normal() -> Any:
    return phx.sample("x", dist.Normal(0.0, 1.0))


def shifted(far):
    phx.factor("f", (far - 0.5 * normal() ** 2) - far)


def log_gammas(k):
    rate = jnp.exp(1e-3 * normal()) * 1e7
    phx.factor("f", k * jnp.log(rate) - rate - gammaln(k + 1))


def constant():
    x = normal()
    phx.factor("f", gammaln(1e7 + x) - gammaln(1e7 - x))


def far(y):
    phx.sample("y", dist.Normal(5000.0 + normal(), 1.0), obs=y)


def offset(y):
    phx.factor("f", jnp.sum(y))
    normal()


def squares(y):
    x = normal()
    phx.factor("f", -0.5 * (jnp.sum(y**2) - 2 * x * jnp.sum(y) + len(y) * x**2))


def counts(k):
    phx.sample("k", dist.Poisson(1e6 * jnp.exp(1e-3 * normal())), obs=k)


def plain(y):
    phx.sample("y", dist.Normal(normal(), 1.0), obs=y)


ROUNDED = {
    "a large summand": (shifted, {"far": np.float32(1e8)}),
    "log-gammas": (log_gammas, {"k": np.array([1e7, 1.001e7], np.float32)}),
    "a constant": (constant, {}),
    "sums of squares": (squares, {"y": np.float32(1e4) + np.arange(100, dtype=np.float32)}),
}
EXACT = {
    "large counts": (counts, {"k": np.array([1_000_000, 1_001_000])}),
    "raw units": (far, {"y": np.array([5000.0, 5001.0], np.float32)}),
    "many rows": (plain, {"y": np.ones(20_000, np.float32)}),
    "a constant that is the same at all draws": (
        lambda y: (phx.factor("f", jnp.sum(y)), normal()),
        {"y": np.full(2, 1e9)},
    ),
}


def verdict_of(model, data, findings=(), draws=DRAWS):
    target = phx.Target(model, data)
    stats = {"log_density": np.zeros((4, 50))}
    return rounding.with_rounding(
        judged(findings, ["passed"]), target, draws, stats, partial(rounding.rounding_error, target, draws)
    )


@pytest.mark.parametrize("name", ROUNDED)
def test_rounding_is_found_in_runs_that_are_good_otherwise(name):
    verdict = verdict_of(*ROUNDED[name])
    (finding,) = verdict.findings
    assert verdict.grade == "not good" and verdict.headline == "Not good to use yet: rounding."
    assert finding.problem.startswith(
        "The log density is rounded: in float32 its differences between draws are off by up to "
    )
    assert finding.advice == (
        'numbers of 64 bits: jax.config.update("jax_enable_x64", True) before the first array is made, and the run '
        "again"
    )


@pytest.mark.parametrize("name", EXACT)
def test_models_that_keep_their_digits_are_good(name):
    assert verdict_of(*EXACT[name]) == judged([], ["passed"])


def test_rounding_comes_before_its_consequences():
    low = Finding("low acceptance", "Hardly a proposal is accepted.", "another parametrisation")
    kept = Finding("few draws", "There are 10 draws.", "a larger num_samples")
    first, second, third = verdict_of(*ROUNDED["log-gammas"], findings=(low, kept)).findings
    assert first.topic == "rounding" and third == kept
    assert second.advice == "numbers of 64 bits first, as above: rounding alone can cause this"


def test_a_run_without_large_numbers_is_checked_if_it_is_not_good(monkeypatch):
    asked = []
    monkeypatch.setattr(rounding, "rounding_error", lambda *_: asked.append(1) or 0.0)
    data = {"y": np.array([1.0, 2.0], np.float32)}
    assert verdict_of(plain, data).good and not asked
    low = Finding("low ESS", "Few.", "more draws")
    assert verdict_of(plain, data, [low]) == judged([low], ["passed"]) and asked


def test_the_verdict_states_why_rounding_was_not_checked(monkeypatch):
    model, data = ROUNDED["log-gammas"]
    start = "Rounding of the log density was not checked: "
    assert verdict_of(model, data, draws={}).passed == ("passed", f"{start}the draws of x are not kept.")
    monkeypatch.setattr(rounding, "DATA_BYTES", 4)
    assert verdict_of(model, data).passed == ("passed", f"{start}the data have more than 0 MiB.")
