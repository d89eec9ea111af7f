"""Simulation-based calibration of what infers: right answers pass, wrong ones are named, nothing is compiled twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

import phalanx as phx


def model(x, y):
    mean = phx.sample("mean", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(mean * x, 1.0), obs=y)


X = np.arange(1.0, 4.0, dtype=np.float32)
DATA = {"x": X, "y": np.zeros(3, np.float32)}


class Drawn:
    """Draws of the conjugate posterior, scaled about its mean."""

    def __init__(self, y, seed, scale=1.0):
        precision = 1.0 + (X**2).sum()
        noise = np.random.default_rng(seed).normal(size=(2, 40))
        self.draws = {"mean": (X * y).sum() / precision + scale * noise / np.sqrt(precision)}


def exact(data, seed):
    return Drawn(data["y"], seed)


@pytest.mark.parametrize("scale, good", [(1.0, True), (0.5, False)])
def test_exact_draws_pass_and_narrow_ones_do_not(scale, good):
    seen = []

    def infer(data, seed):
        np.testing.assert_array_equal(data["x"], X)
        return Drawn(data["y"], seed, scale)

    found = phx.calibrate(model, infer, DATA, num_simulations=200, on_simulation=seen.append)
    assert found.verdict().good == good and seen == list(range(1, 201))
    assert found.ranks["mean"].shape == (200,) and found.ranks["mean"].max() <= 63
    again = phx.calibrate(model, infer, DATA, num_simulations=20)
    np.testing.assert_array_equal(found.ranks["mean"][:20], again.ranks["mean"])


@pytest.mark.slow
def test_a_fit_compiles_once():
    compilations = []

    def infer(data, seed):
        fit = phx.fit(model, phx.guides.laplace(), data, seed=seed, progress=False)
        compilations.append(fit.timing.compilations)
        return fit

    found = phx.calibrate(model, infer, DATA, num_simulations=6)
    assert found.num_simulations == 6 and not any(compilations[1:])


def test_each_fit_is_drawn_from_with_a_seed_of_its_own():
    """With one seed for all, the ranks of different simulations depend on one another."""
    seeds = []

    class Fitted:
        def sample(self, seed, n):
            raise NotImplementedError

        def posterior(self, n, *, seed):
            seeds.append(seed)
            return SimpleNamespace(draws={"mean": np.random.default_rng(seed).normal(size=(1, n))})

    phx.calibrate(model, lambda data, seed: Fitted(), DATA, num_simulations=3, num_draws=5)
    assert len(set(seeds)) == 3


@pytest.mark.parametrize(
    "infer, data, options, kind, words",
    [
        (lambda data, seed: 3, DATA, {}, TypeError, "infer must give a posterior or a fit; got int"),
        (3, DATA, {}, TypeError, "infer must be a function; got int"),
        (exact, DATA, {"num_draws": 81}, ValueError, "80 draws, and num_draws=81"),
        (exact, DATA, {"num_simulations": 0}, ValueError, "num_simulations must be"),
        (lambda data, seed: None, {"x": X, "y": None}, {}, TypeError, "got NoneType"),
    ],
)  # fmt: skip
def test_models_that_cannot_be_calibrated_are_refused(infer, data, options, kind, words):
    with pytest.raises(kind, match=words):
        phx.calibrate(model, infer, data, **{"num_simulations": 3, **options})


def test_data_may_be_a_table():
    table = pd.DataFrame(DATA)
    found = phx.calibrate(model, exact, data=table, num_simulations=20, num_draws=19)
    assert str(found) == str(phx.calibrate(model, exact, data=DATA, num_simulations=20, num_draws=19))


def test_data_that_no_variable_is_named_after_are_refused():
    def other(target):
        phx.sample("y", dist.Normal(phx.sample("mean", dist.Normal(0.0, 1.0)), 1.0), obs=target)

    with pytest.raises(ValueError, match="none of the data .'target'. has the name of a variable"):
        phx.calibrate(other, lambda data, seed: None, {"target": np.zeros(3)})


def test_draws_of_nothing_that_is_simulated_are_refused():
    class Other:
        draws: ClassVar = {"else": np.zeros((1, 100))}

    with pytest.raises(ValueError, match="hold 'else', and the model simulates other variables"):
        phx.calibrate(model, lambda data, seed: Other(), DATA, num_simulations=2)


def test_draws_of_another_shape_are_refused():
    class Other:
        draws: ClassVar = {"mean": np.zeros((1, 100, 2))}

    with pytest.raises(ValueError, match=r"the draws of 'mean' have shape \(2,\), and the model simulates \(\)"):
        phx.calibrate(model, lambda data, seed: Other(), DATA, num_simulations=2)


def test_elements_have_the_names_of_the_posterior():
    def two(y):
        w = phx.sample("w", dist.Normal(0.0, 1.0).expand([2]))
        phx.sample("y", dist.Normal(w.sum(), 1.0), obs=y)

    draws = {"w": np.random.default_rng(0).normal(size=(1, 63, 2))}
    named = SimpleNamespace(draws=draws, record=SimpleNamespace(labels={"w": (("east", "west"),)}))
    found = phx.calibrate(two, lambda data, seed: named, {"y": np.float32(0.0)}, num_simulations=3)
    assert list(found.summary().index) == ["w[east]", "w[west]"]
