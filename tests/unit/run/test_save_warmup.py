"""Draws of warm-up that are kept: those that the chains made, wherever they are written and however a run is lost."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

import phalanx as phx
from phalanx.run.device import blocks as module

Y = np.array([1.0, 2.0, 4.0], np.float32)
SIZES = {"num_warmup": 60, "num_samples": 40, "seed": 5, "progress": False, "save_warmup": True}
FIXED = {
    "nuts": phx.nuts(step_size=0.4),
    "hmc": phx.hmc(num_steps=3, step_size=0.2),
    "rwmh": phx.rwmh(step_size=0.5),
    "sgld": phx.sgld(0.01, 2),
}


def model(y):
    mean = phx.sample("mean", dist.Normal(0.0, 5.0).expand([2]))
    scale = phx.sample("scale", dist.HalfNormal(2.0))
    phx.deterministic("part/level", mean.sum() + scale)
    phx.sample("y", dist.Normal(mean.sum(), scale), obs=y)


def run(num_chains=4, kernel=None, keep=None, **options):
    sampler = phx.compile(model, {"y": Y}, kernel=kernel, keep=keep, mesh=phx.make_mesh(chain=2), num_chains=num_chains)
    block_length = sampler.executables.block_length
    block_length.learn(1, 0.04)  # blocks of some ten ticks, all of them
    block_length.learn = lambda ticks, seconds: None
    return sampler.run(**{**SIZES, **options})


def arrays_of(posterior):
    """Return the draws of warm-up, those after it, and the statistics of both."""
    parts = ("warmup_draws", "warmup_stats", "draws", "stats")
    return {(of, name): np.asarray(v) for of in parts for name, v in getattr(posterior, of).items()}


def assert_equal(one, other):
    one, other = arrays_of(one), arrays_of(other)
    assert set(one) == set(other)
    for key in one:
        assert one[key].dtype == other[key].dtype, key
        np.testing.assert_array_equal(one[key], other[key], err_msg=str(key))


@pytest.fixture(scope="module")
def whole():
    return run()


def test_by_default_they_are_discarded_and_keeping_them_changes_no_draw(whole):
    discarded = run(save_warmup=False)
    assert not discarded.warmup_draws and not discarded.warmup_stats
    for name, values in discarded.draws.items():
        np.testing.assert_array_equal(values, whole.draws[name])
    shapes = {name: values.shape for name, values in whole.warmup_draws.items()}
    assert shapes == {"mean": (4, 60, 2), "scale": (4, 60), "part/level": (4, 60)}
    assert {name: v.dtype for name, v in whole.warmup_stats.items()} == {n: v.dtype for n, v in whole.stats.items()}
    assert all(values.shape == (4, 60) for values in whole.warmup_stats.values())


@pytest.mark.slow
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kernel=st.sampled_from(list(FIXED)), num_chains=st.sampled_from([2, 6]), num_warmup=st.integers(1, 70),
    num_samples=st.integers(1, 30), keep=st.sampled_from([None, ["scale"]]), room=st.sampled_from([8, 512]),
)  # fmt: skip
def test_without_tuners_warm_up_and_draws_are_those_of_one_run(
    monkeypatch, kernel, num_chains, num_warmup, num_samples, keep, room
):
    monkeypatch.setattr(module, "BLOCK_DRAWS", room)  # a round may be made in parts
    sizes = {
        "num_chains": num_chains,
        "kernel": dataclasses.replace(FIXED[kernel], tuners=()),
        "keep": keep,
        "num_samples": num_samples,
    }
    warmed = run(num_warmup=num_warmup, **sizes)
    plain = run(**{**sizes, "num_warmup": 0, "num_samples": num_warmup + num_samples, "save_warmup": False})
    for of in ("draws", "stats"):
        before, after, both = getattr(warmed, f"warmup_{of}"), getattr(warmed, of), getattr(plain, of)
        assert set(before) == set(after) == set(both)
        for name, values in both.items():
            np.testing.assert_array_equal(np.concatenate([before[name], after[name]], axis=1), values, err_msg=name)


def test_step_sizes_are_those_of_the_rounds(whole):
    rounds, steps = whole.warmup, whole.warmup_stats["step_size"]
    assert (steps == steps[0]).all() and len(np.unique(steps)) > 5
    begins = [0, *rounds["iteration"][:-1]]
    for begin, end, step in zip(begins, rounds["iteration"], rounds["step_size"], strict=True):
        assert (steps[0, begin:end] == np.float32(step)).all()  # none in a round of a search for a step size


@pytest.mark.slow
def test_partially_centred_positions_are_kept_on_the_scale_of_the_model():
    y = np.array([28, 8, -3, 7, -1, 1, 18, 12], np.float32)

    def schools(y):
        mean = phx.sample("mean", dist.Normal(0.0, 5.0))
        spread = phx.sample("log_spread", dist.Normal(0.0, 1.0))
        theta = phx.sample("theta", dist.Normal(mean, np.e**spread).expand([8]).to_event(1))
        phx.sample("y", dist.Normal(theta, 10.0).to_event(1), obs=y)

    kernel = phx.nuts(centring="auto")
    posterior = phx.mcmc(
        schools, {"y": y}, kernel=kernel, num_warmup=200, save_warmup=True, num_samples=20, progress=False
    )
    assert posterior.record.centring
    mean, spread, theta = (posterior.warmup_draws[name].astype(float) for name in ("mean", "log_spread", "theta"))
    expected = stats.norm.logpdf(mean, 0, 5) + stats.norm.logpdf(spread)
    expected += stats.norm.logpdf(theta, mean[..., None], np.exp(spread)[..., None]).sum(-1)
    expected += stats.norm.logpdf(y, theta, 10.0).sum(-1)
    found = posterior.warmup_stats["log_density"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-2)


def test_files_and_longer_runs_have_them(whole, tmp_path):
    assert_equal(phx.Posterior.load(whole.save(tmp_path / "run.npz")), whole)
    longer = whole.continue_run(10, progress=False)
    np.testing.assert_array_equal(longer.warmup_draws["mean"], whole.warmup_draws["mean"])
    np.testing.assert_array_equal(longer.warmup_stats["energy"], whole.warmup_stats["energy"])


def test_stores_have_them_in_arvizs_groups(whole, tmp_path):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    made = run(store=tmp_path / "run.zarr")
    assert_equal(made, whole)
    assert_equal(phx.open(tmp_path / "run.zarr"), whole)
    tree = xarray.open_datatree(tmp_path / "run.zarr", engine="zarr", consolidated=False)
    assert {"warmup_posterior", "warmup_sample_stats"} <= set(tree.children)
    np.testing.assert_array_equal(tree["warmup_posterior/mean"].values, whole.warmup_draws["mean"])
    assert tree["warmup_sample_stats/lp"].dims == ("chain", "draw")
    again = phx.open(tmp_path / "run.zarr").save(tmp_path / "run.npz")
    assert_equal(phx.Posterior.load(again), whole)


def test_arvizs_container_has_them(whole):
    pytest.importorskip("arviz")
    data = whole.to_arviz(log_likelihood=False, predictive=False, prior=False)
    assert data.warmup_posterior["mean"].dims == ("chain", "draw", "mean_dim_0")
    np.testing.assert_array_equal(data.warmup_sample_stats["lp"].values, whole.warmup_stats["log_density"])
    assert data.posterior.sizes["draw"] == 40 and data.warmup_posterior.sizes["draw"] == 60


class Lost(Exception):
    pass


@pytest.mark.parametrize("stored", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_that_is_lost_again_and_again_ends_with_the_same(whole, tmp_path, stored):
    if stored:
        pytest.importorskip("zarr")
    options: dict[str, Any] = {"checkpoint": phx.checkpoint(tmp_path / "saves", seconds=0.0)}
    options |= {"store": tmp_path / "run.zarr"} if stored else {}
    lost, ended = 0, None
    for after in (1, 4, 9, 2, 6, 30, 1000):
        left = [after]

        def count(report, left=left):
            left[0] -= 1
            if not left[0]:
                raise Lost

        try:
            ended = run(on_block=count, **options)
            break
        except Lost:
            lost += 1
    assert lost >= 4
    assert_equal(ended, whole)
    assert_equal(phx.open(tmp_path / ("run.zarr" if stored else "saves")), whole)


def test_a_checkpoint_writes_them_once(whole, tmp_path):
    policy = phx.checkpoint(tmp_path / "saves", seconds=0.0, every=10)
    assert_equal(run(checkpoint=policy), whole)
    (file,) = policy.folder.glob("warmup-*.npz")
    manifests = [path for path in policy.folder.glob("save-*-at-*.json") if file.name in path.read_text()]
    assert len(manifests) >= 3 and file.stat().st_size > whole.warmup_draws["mean"].nbytes
    for manifest in manifests:
        found = phx.Posterior.load(manifest)
        np.testing.assert_array_equal(found.warmup_draws["mean"], whole.warmup_draws["mean"])
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(ValueError, match="damaged"):
        phx.Posterior.load(policy.folder)


def test_a_report_in_warm_up_is_not_changed_by_what_follows():
    reports = []

    def keep(report):
        if report.phase == "warm-up" and report.done >= 20 and not reports:
            reports.append(report.so_far())

    run(on_block=keep)
    before = {name: values.copy() for name, values in reports[0].state.warmed.draws.items()}
    assert 0 < before["mean"].shape[1] < 60
    ended = reports[0].continue_run(40, progress=False)
    for name, values in before.items():
        np.testing.assert_array_equal(reports[0].state.warmed.draws[name], values)
        np.testing.assert_array_equal(ended.warmup_draws[name][:, : values.shape[1]], values)


def test_a_checkpoint_without_them_is_another_run(tmp_path):
    run(save_warmup=False, checkpoint=tmp_path / "saves")
    with pytest.raises(ValueError, match="save_warmup is False there, and True here"):
        run(checkpoint=tmp_path / "saves")


def test_options_that_keep_no_warmup_are_refused_by_name():
    with pytest.raises(ValueError, match=r"save_warmup: keep=\[\] stores no draws"):
        phx.mcmc(model, {"y": Y}, keep=[], reducers={"m": phx.reducers.moments()}, save_warmup=True)
    with pytest.raises(TypeError, match="save_warmup must be True or False; got 100"):
        phx.mcmc(model, {"y": Y}, save_warmup=100)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="save_warmup"):
        phx.mcmc(model, {"y": np.stack([Y, Y])}, each={"y": 0}, save_warmup=True)
    assert run(num_warmup=0).warmup_draws == {}
    with pytest.raises(ValueError, match=r"save_warmup: keep=\[\] stores no draws"):
        phx.compile(model, {"y": Y}, keep=[]).run(save_warmup=True)
