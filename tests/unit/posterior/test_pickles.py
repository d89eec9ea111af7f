"""Pickles and copies of every result: the arrays and records of the original, without its model and programs."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

import phalanx as phx
from phalanx.posterior.continuation import FromFile

X = np.linspace(-1, 1, 12, dtype=np.float32)
DATA = {"x": X, "y": 0.5 * X + np.sin(9 * X)}
SIZES: Any = {"num_warmup": 20, "num_samples": 30, "progress": False}


def line(x, y=None):
    slope = phx.sample("slope", dist.Normal(0.0, 1.0))
    phx.sample("y", dist.Normal(slope * x, 1.0), obs=y)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    def model(x, y=None):  # no pickle can name a function within a function
        line(x, y)

    kernel, folder = phx.rwmh(0.5), tmp_path_factory.mktemp("store")
    sampler = phx.compile(model, DATA, kernel=kernel, num_chains=2)
    posterior = sampler.run(seed=0, **SIZES)
    fit = phx.fit(model, phx.guides.mean_field(), DATA, num_steps=10, until=False, progress=False)
    return {
        "sampler": sampler,
        "posterior": posterior,
        "stored": sampler.run(seed=0, store=folder / "run.zarr", **SIZES),
        "loaded": phx.Posterior.load(posterior.save(folder / "run.npz")),
        "summary": posterior.summary(),
        "verdict": posterior.verdict(),
        "loo": posterior.loo(),
        "comparison": phx.compare({"a": posterior, "b": sampler.run(seed=1, **SIZES)}),
        "predictive": posterior.predictive({"x": X[:3]}),
        "record": posterior.record,
        "state": posterior.state,
        "fit": fit,
        "prediction": phx.ensembles.Prediction(np.array([[[0.9, 0.1]], [[0.5, 0.5]]])),
    }


@pytest.fixture(scope="module")
def of_sets():
    data = {"x": np.tile(X, 2), "y": np.tile(DATA["y"], 2), "g": np.repeat(["u", "v"], 12)}
    fits: Any = phx.fit(line, phx.guides.mean_field(), data, each="g", num_steps=10, progress=False)
    posteriors: Any = phx.mcmc(line, data, each="g", kernel=phx.rwmh(0.5), num_chains=2, **SIZES)
    fit = phx.fit(line, phx.guides.mean_field(), DATA, num_steps=10, until=False, progress=False)
    return {
        "reduced": phx.mcmc(line, DATA, keep=[], reducers={"moments": phx.reducers.moments()}, **SIZES),
        "draws of a fit": fit.posterior(20),
        "evidence": fit.evidence(num_draws=100),
        "covariance": fit.covariance(num_draws=8),
        "posteriors": posteriors,
        "one of many": posteriors.of("u"),
        "fits": fits,
        "one fit of many": fits.of("v"),
        "particles": phx.smc(line, DATA, num_particles=64, progress=False),
        "maximum": phx.maximize(line, DATA),
    }


NAMES = (
    "posterior", "stored", "loaded", "summary", "verdict", "loo", "comparison", "predictive", "record", "state", "fit",
    "prediction",
)  # fmt: skip
LIVE = ("target", "continuation", "pair", "arrays", "target_of", "fit_of", "draws_of")
COPIES = {"pickle": lambda result: pickle.loads(pickle.dumps(result)), "deepcopy": copy.deepcopy, "copy": copy.copy}


def assert_equal(one: Any, other: Any, where: str = "") -> None:
    """Compare results by their contents, without what belongs to a process."""
    assert type(one) is type(other), where
    if isinstance(other, pd.DataFrame):
        pd.testing.assert_frame_equal(pd.DataFrame(one), pd.DataFrame(other))
    elif isinstance(other, Mapping):
        assert list(one) == list(other), where
        for name in other:
            assert_equal(one[name], other[name], f"{where}[{name!r}]")
    elif isinstance(other, list | tuple):
        for number, (this, that) in enumerate(zip(one, other, strict=True)):
            assert_equal(this, that, f"{where}[{number}]")
    elif isinstance(other, np.ndarray | jax.Array) or hasattr(other, "pieces"):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other), where)
    elif hasattr(other, "__dataclass_fields__"):
        for name in other.__dataclass_fields__:
            if name not in LIVE:
                assert_equal(getattr(one, name), getattr(other, name), f"{where}.{name}")
    else:
        assert one == other or (one != one and other != other), where


def check_copy(result: Any, how: str) -> None:
    copied = COPIES[how](result)
    assert_equal(copied, result)
    if how == "pickle":
        assert repr(copied) == repr(result)
        assert b"test_pickles" not in pickle.dumps(result)  # a process without the model reads it


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", NAMES)
def test_every_result_has_copies_with_its_contents(made, name, how):
    assert set(made) == {"sampler", *NAMES}
    check_copy(made[name], how)


@pytest.mark.slow
@pytest.mark.parametrize("how", COPIES)
def test_results_of_many_data_sets_of_fits_and_of_particles_have_copies(of_sets, how):
    for result in of_sets.values():
        check_copy(result, how)


def test_the_names_of_entries_are_in_the_pickle_of_a_prediction(made):
    assert COPIES["pickle"](made["predictive"]).labels == made["predictive"].labels


def test_a_pickled_posterior_is_as_one_read_from_a_file(made):
    copied, posterior = COPIES["pickle"](made["posterior"]), made["posterior"]
    pd.testing.assert_frame_equal(pd.DataFrame(copied.summary()), pd.DataFrame(posterior.summary()))
    assert copied.target is None and isinstance(copied.continuation, FromFile)
    with pytest.raises(ValueError) as caught:
        copied.predictive({"x": X})
    assert str(caught.value) == (
        "predictive: a posterior that was read from a file or a pickle, or assembled by hand, has no model. Pass one: "
        "posterior.predictive(data, model=model)."
    )
    with pytest.raises(ValueError, match="^continue_run: this posterior was read from a file or a pickle, which holds"):
        copied.continue_run(5)
    model = posterior.target.program
    np.testing.assert_array_equal(copied.predictive({"x": X}, model=model)["y"], posterior.predictive({"x": X})["y"])


def test_a_pickled_fit_names_what_it_lacks(made):
    with pytest.raises(ValueError) as caught:
        COPIES["pickle"](made["fit"]).sample()
    assert str(caught.value) == (
        "This fit was read from a file or a pickle, which holds no model and no guide. Continue it, phx.fit(model, "
        "guide, data, init=fit, num_steps=0), to draw from it."
    )


@pytest.mark.parametrize("how", COPIES)
def test_a_copied_target_has_the_same_density(how):
    target, at = phx.Target(line, {**DATA, "x": pd.Series(X)}), {"slope": np.float32(0.3)}
    assert COPIES[how](target).log_density(at) == target.log_density(at)


def test_results_on_devices_say_how_to_reach_another_process(made):
    mesh = phx.make_mesh(chain=1, data=2, devices=jax.devices()[:2])
    ensemble = phx.ensemble(jax.random.normal, lambda w, batch: (w, {}), num_members=1)
    refusals = {
        phx.Target(line, {name: phx.shard(values, mesh) for name, values in DATA.items()}): (
            f"A phx.Target on a mesh of shape {dict(mesh.shape)} cannot be pickled: the devices belong to its "
            "process. Pickle the model and the data, and call phx.Target(model, data, mesh=...) there."
        ),
        ensemble: (
            "An ensemble cannot be pickled: its members are on the devices of its process. Write it with "
            "ensemble.save(path), and read it in another process into an ensemble of the same functions, "
            "ensemble.restore(path); ensemble.members and its predictions can be pickled."
        ),
    }
    for live, words in refusals.items():
        with pytest.raises(TypeError) as caught:
            pickle.dumps(live)
        assert str(caught.value) == words
    with pytest.raises(TypeError, match=r"^A sampler cannot be pickled: .* call phx\.compile there; its posteriors"):
        pickle.dumps(made["sampler"])
    assert copy.deepcopy(made["sampler"]).run(seed=0, **SIZES) is not None


@pytest.mark.slow
def test_results_pass_through_the_processes_and_files_of_joblib(made, of_sets, tmp_path):
    joblib = pytest.importorskip("joblib")
    results = [made[name] for name in NAMES] + [*of_sets.values(), phx.Target(line, DATA)]
    returned = joblib.Parallel(n_jobs=2)(joblib.delayed(copy.copy)(result) for result in results)
    joblib.dump(results, tmp_path / "results.joblib")
    for others in (returned, joblib.load(tmp_path / "results.joblib")):
        for result, other in zip(results[:-1], others[:-1], strict=True):
            assert_equal(other, result)
        at = {"slope": np.float32(0.3)}
        assert others[-1].log_density(at) == results[-1].log_density(at)


@pytest.mark.slow
def test_pickled_fits_of_many_data_sets_name_what_they_lack(of_sets):
    fits = COPIES["pickle"](of_sets["fits"])
    for use in (fits.sample, lambda: fits.of("u")):
        with pytest.raises(ValueError) as caught:
            use()
        assert str(caught.value) == (
            "Fits: this result was read from a file or a pickle, which holds no model and no guide. Take "
            "fits.of(...).posterior() or fits.sample() before it is pickled, or fit again."
        )


@pytest.mark.parametrize("how", ["deepcopy", "copy"])
def test_copies_within_a_process_have_the_model(made, how):
    posterior, fit = COPIES[how](made["posterior"]), COPIES[how](made["fit"])
    assert (posterior.draws is made["posterior"].draws) == (how == "copy")
    assert posterior.continue_run(5, progress=False).draws["slope"].shape == (2, 35)
    np.testing.assert_array_equal(fit.sample(n=5)["slope"], made["fit"].sample(n=5)["slope"])
