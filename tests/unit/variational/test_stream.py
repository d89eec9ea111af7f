"""Batches that come one after the other: gradients are those of all rows, and what ends early is kept."""

from __future__ import annotations

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.distributions import constraints
from tests.slow import with_slow

import phalanx as phx
from phalanx.variational.guides.guide_and_model import for_steps
from phalanx.variational.methods.step import Steps

ROWS, SIZE = 48, 6
RANDOM = np.random.default_rng(2)
DATA = {"x": RANDOM.normal(size=(ROWS, 2)).astype(np.float32), "y": RANDOM.normal(size=ROWS).astype(np.float32)}
SHORT = {"num_steps": 8, "until": False, "progress": False}


def model(x, y):
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([2]))
    scale = phx.sample("scale", dist.LogNormal(0.0, 0.5))
    phx.sample("y", dist.Normal(x @ w, scale), obs=y)
    phx.factor("count", -0.01 * y.shape[0] * scale)


def guide():
    loc = phx.param("loc", np.zeros(2))
    phx.sample("w", dist.Normal(loc, phx.param("width", 0.3, constraints.positive)))
    phx.sample("scale", dist.LogNormal(phx.param("level", 0.1), 0.2))


def batches(size=SIZE, data=DATA):
    rows = len(data["y"])
    return [{name: array[i : i + size] for name, array in data.items()} for i in range(0, rows, size)]


@pytest.mark.slow
def test_the_gradient_is_that_of_all_rows():
    """With the same draws, the mean over the batches of an epoch is the gradient of all rows, but for rounding."""
    part = phx.fit(model, guide, batches(), num_rows=ROWS, **SHORT)
    whole = phx.fit(model, guide, DATA, **SHORT)
    assert part.pair is not None
    names, free, key = part.pair.problem.arguments.names, part.free, random.key(3)
    assert free is not None

    def gradient_of(fit):
        steps = Steps(for_steps(fit.pair), phx.guides.elbo(), None, 4)
        return jax.jit(lambda arrays: steps.gradient(free, key, arrays)[0])

    gradient = gradient_of(part)
    found = [gradient(tuple(batch[name] for name in names)) for batch in batches()]
    expected = gradient_of(whole)(whole.arrays)
    for name, value in expected.items():
        np.testing.assert_allclose(np.mean([g[name] for g in found], 0), value, rtol=1e-3, atol=1e-3)


def test_every_batch_is_seen_once_and_one_program_is_compiled():
    seen = []

    def loader():
        for number, batch in enumerate(batches()):
            seen.append(number)
            yield batch

    phx.fit(model, guide, batches(), num_rows=ROWS, **SHORT)
    fit = phx.fit(model, guide, loader(), num_rows=ROWS, seed=1, **SHORT)
    assert seen == list(range(8)) and fit.steps == 8 and fit.timing.compilations == 0


@pytest.mark.slow
def test_a_list_begins_anew_and_an_iterator_ends_the_fit(capsys):
    assert phx.fit(model, guide, batches(), num_rows=ROWS, **{**SHORT, "num_steps": 20}).steps == 20
    fit = phx.fit(model, guide, iter(batches()), num_rows=ROWS)
    assert fit.steps == 8 and not fit.settled and "The data ended after 8 steps" in fit.unsettled
    assert "The data ended: returning what was learned in 8" in capsys.readouterr().err
    assert np.isfinite(fit.params["loc"]).all() and len(fit.losses.elbo) == 8


def test_a_ragged_batch_is_left_out_with_a_word(capsys):
    given = batches(data={name: array[: ROWS - 3] for name, array in DATA.items()})
    fit = phx.fit(model, guide, given, num_rows=ROWS, num_steps=8, until=False)
    assert fit.steps == 8 and fit.failed == 0
    assert capsys.readouterr().err.count("Batch 8 has fewer rows than the first") == 1


def other(batch, **changes):
    return {**batch, **changes}


BAD = {
    "columns": (lambda b: other(b, x=np.zeros((SIZE, 3), np.float32)), r"batch 3 x is float32 \(6, 3\), and in the fi"),
    "more": (lambda b: {name: np.tile(a, (2, 1)[: a.ndim]) for name, a in b.items()}, "must have the same arrays"),
    "names": (lambda b: {"x": b["x"]}, "y"),
    "none": (lambda b: 3, "data must be a dict"),
}


@pytest.mark.parametrize("change, message", with_slow(BAD, {"more", "names"}))
def test_a_batch_unlike_the_first_ends_the_fit_which_keeps_what_it_has(change, message):
    given = batches()
    given[2] = change(given[2])
    with pytest.raises(phx.FitError, match=message) as raised:
        phx.fit(model, guide, given, num_rows=ROWS, **SHORT)
    assert raised.value.fit.steps == 2 and "after 2 steps the next batch failed" in str(raised.value)


def test_a_reader_that_fails_is_told_of():
    def loader():
        yield from batches()[:3]
        raise OSError("the disk is gone")

    with pytest.raises(phx.FitError, match="after 3 steps the next batch failed: the disk is gone") as raised:
        phx.fit(model, guide, loader(), num_rows=ROWS, **SHORT)
    assert len(raised.value.fit.losses.elbo) == 3 and np.isfinite(raised.value.fit.params["loc"]).all()


@pytest.mark.slow
def test_results_that_need_all_rows_are_refused_and_others_are_there(tmp_path):
    fit = phx.fit(model, guide, batches(), num_rows=ROWS, **SHORT)
    for call in (fit.evidence, fit.covariance):
        with pytest.raises(ValueError, match="came in batches, which are not kept"):
            call()
    assert next(finding.topic for finding in fit.verdict().findings) == "not weighted"
    posterior = fit.posterior(50)
    assert posterior.draws["w"].shape == (1, 50, 2) and "w" in str(posterior.summary())
    assert not posterior.verdict().good and fit.sample(seed=0, n=5)["scale"].shape == (5,)
    assert phx.Fit.load(fit.save(tmp_path / "fit.npz")).verdict() == fit.verdict()


def local(x, y):
    z = phx.sample("z", dist.Normal(0.0, 1.0).expand([len(y)]))
    phx.sample("y", dist.Normal(x[:, 0] + z, 0.5), obs=y)


REFUSED = {
    "rows": ((model, guide, batches()), {}, TypeError, "pass the number of rows of all together, num_rows="),
    "all there": ((model, guide, DATA), {"num_rows": ROWS}, ValueError, "num_rows=48 .* these are all there"),
    "few": ((model, guide, batches()), {"num_rows": 5}, ValueError, "num_rows=5 is less than the 6 rows"),
    "none": ((model, guide, iter([])), {"num_rows": 5}, ValueError, "there is no first batch"),
    "size": ((model, guide, batches()), {"num_rows": ROWS, "batch_size": 2}, ValueError, "these come in batches"),
    "lbfgs": ((model, guide, batches()), {"num_rows": ROWS, "optimizer": "lbfgs"}, ValueError, "num_rows: optimizer="),
    "solved": ((model, phx.guides.laplace(), batches()), {"num_rows": ROWS}, ValueError, "num_rows: the guide laplace"),
    "local": ((local, phx.guides.mean_field(), batches()), {"num_rows": ROWS}, ValueError, "num_rows: variable 'z'"),
}


@pytest.mark.parametrize(
    "arguments, options, kind, message",
    [pytest.param(*case, id=name, marks=pytest.mark.slow if name == "local" else []) for name, case in REFUSED.items()],
)
def test_models_that_need_all_rows_are_refused(arguments, options, kind, message):
    with pytest.raises(kind, match=message):
        phx.fit(*arguments, progress=False, **options)


@pytest.mark.slow
def test_a_fit_of_a_stream_is_one_of_all_rows():
    rows = {"x": np.tile(DATA["x"], (20, 1)), "y": np.tile(DATA["y"], 20)}
    options = {"num_steps": 3000, "until": False, "progress": False}
    whole = phx.fit(model, phx.guides.mean_field(), rows, **options)

    def drawn():
        rng = np.random.default_rng(0)
        while True:
            chosen = rng.integers(0, len(rows["y"]), 96)
            yield {name: array[chosen] for name, array in rows.items()}

    part = phx.fit(model, phx.guides.mean_field(), drawn(), num_rows=len(rows["y"]), optimizer=0.02, **options)
    scale = whole.params["w.scale"]
    np.testing.assert_allclose((part.params["w.loc"] - whole.params["w.loc"]) / scale, 0.0, atol=0.5)
    np.testing.assert_allclose(part.params["w.scale"], scale, rtol=0.2)
    assert np.isnan(part.losses.error).all()
