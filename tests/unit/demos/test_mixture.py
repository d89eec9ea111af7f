"""The mixture demo: a small run from the command line, and the exact answers it is held against."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

import phalanx as phx
from phalanx.demos import mixture
from phalanx.demos.mixture import LOC, SCALE, WEIGHT, log_density, model, model_as_written

WAYS = {"NumPy", "JAX, one loop", "Phalanx", "Phalanx, MixtureSameFamily"}


@pytest.mark.slow
def test_a_small_run(phalanx, tmp_path):
    status, out, err = phalanx("demo", "mixture", "--samples", "2e6", "--chains", "1000", "--out", "made")
    assert status == 0, err
    assert "2,000,000 samples in" in out and "million a second" in out and "R-hat over 1,000 chains" in out
    assert "draws per second" in err  # while it runs
    made = tmp_path / "made"
    pictures = {"histogram", "time_against_samples", "time_against_chains", "memory_against_samples"}
    assert {path.stem for path in made.glob("*.png")} == pictures
    headline = json.loads((made / "result.json").read_text())["headline"]
    assert headline["samples"] == 2_000_000
    assert set(headline["time_against_chains"]) == WAYS
    # chains of 2,000 short steps have seen a part of the mixture each: this is no test of the answer
    assert abs(headline["mean"] - headline["exact_mean"]) < 1.0


def test_every_spelling_is_the_same_density():
    x, at = np.linspace(-9.0, 9.0, 7, dtype=np.float32), {"x": np.float32(0.7)}
    terms = np.log(WEIGHT / SCALE) - 0.5 * ((x[:, None] - LOC) / SCALE) ** 2
    np.testing.assert_allclose(np.logaddexp.reduce(terms, axis=-1), log_density(x), rtol=1e-5)
    up_to = [float(phx.Target(made).log_density(at) - phx.Target(made).log_density({"x": np.float32(3.0)}))
             for made in (model, model_as_written)]  # fmt: skip
    assert up_to[0] == pytest.approx(up_to[1], abs=1e-5)


def test_exact_answers():
    x = np.linspace(-60.0, 60.0, 400_001)
    p, width = mixture.density(x), x[1] - x[0]
    mean, variance = mixture.exact_moments()
    assert p.sum() * width == pytest.approx(1.0, abs=1e-6)
    assert (p * x).sum() * width == pytest.approx(mean, abs=1e-6)
    assert (p * (x - mean) ** 2).sum() * width == pytest.approx(variance, abs=1e-4)
    for q in mixture.QUANTILES:
        assert p[x <= mixture.exact_quantile(q)].sum() * width == pytest.approx(q, abs=1e-4)
    heights = np.exp(np.asarray(mixture.log_density(x.astype(np.float32)), np.float64))
    np.testing.assert_allclose(heights / heights.max(), p / p.max(), atol=1e-5)


@pytest.mark.slow
def test_all_ways_sample_the_same_density(monkeypatch):
    monkeypatch.setattr(mixture, "STEP_SIZE", 3.0)  # long, so that short chains see the whole mixture
    ways = dict.fromkeys(sorted(WAYS), lambda chains, draws: (0.0, 0.0))
    ways |= {"NumPy": partial(mixture.time_numpy, 0), "JAX, one loop": partial(mixture.time_jax, 0)}
    assert set(mixture.time_by_chains(ways, 10_000)) == WAYS
    assert [size for size, *_ in mixture.time_by_chains(ways, 10**5)["NumPy"]] == [10, 100]
    assert mixture.time_by_samples(ways, 10**5) == {name: [] for name in WAYS}


@pytest.mark.slow
def test_a_long_run_gives_the_right_answer():
    posterior = phx.mcmc(
        mixture.model, kernel=phx.rwmh(step_size=3.0), num_chains=10_000, num_warmup=500, num_samples=2000, keep=[],
        reducers={"moments": phx.reducers.moments(), "ess": phx.reducers.ess(200)}, progress=False,
    )  # fmt: skip
    moments, ess = posterior.reduced["moments"]["x"], float(posterior.reduced["ess"]["x"])
    mean, variance = mixture.exact_moments()
    # five standard errors: a right sampler fails once in a million times
    assert abs(moments.mean - mean) < 5 * np.sqrt(variance / ess)
    assert abs(moments.variance - variance) < 5 * variance * np.sqrt(4 / ess)
