"""Runs that store no draw: the reducers say what the draws would have said, however lanes are cut into tiles."""

from __future__ import annotations

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.run.device.tiles import tile_of

R = phx.reducers


def model():
    phx.sample("x", dist.Normal(1.0, 2.0).expand([2]))
    phx.deterministic("sum", phx.sample("scale", dist.HalfNormal(1.0)) + 1.0)


KERNELS = {"nuts": phx.nuts(), "hmc": phx.hmc(4, step_size=0.5), "rwmh": phx.rwmh(0.8), "rwmh tuned": phx.rwmh()}
SIZES = {"num_chains": 8, "num_warmup": 50, "num_samples": 120, "progress": False}


@pytest.mark.slow
@pytest.mark.parametrize("name", [n if n == "nuts" else pytest.param(n, marks=pytest.mark.slow) for n in KERNELS])
@pytest.mark.parametrize("thin", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_reduced_is_what_stored_draws_say(name, thin):
    # one device: an equal warm-up then makes equal draws, stored or not
    reducers = {"m": R.moments(), "c": R.covariance(), "s": phx.reduce(lambda v: v["sum"], R.extremes())}
    options = {**SIZES, "kernel": KERNELS[name], "thin": thin, "mesh": phx.make_mesh(devices=jax.devices()[:1])}
    stored = phx.mcmc(model, reducers=reducers, keep=["x", "scale"], **options)
    x = stored.draws["x"].astype(np.float64)
    found = stored.reduced["m"]["x"]
    assert found.count == 8 * (120 // thin)
    np.testing.assert_allclose(found.mean, x.mean((0, 1)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.variance, x.var((0, 1), ddof=1), rtol=1e-5)
    np.testing.assert_allclose(stored.reduced["c"]["x"].covariance, np.cov(x.reshape(-1, 2).T), rtol=1e-4, atol=1e-5)
    assert stored.reduced["s"].most == stored.draws["scale"].max() + np.float32(1)

    reduced = phx.mcmc(model, reducers=reducers, keep=[], **options)
    assert reduced.draws == {} and reduced.stats == {}
    rate = reduced.record.acceptance_rate
    assert reduced.record.reduced_draws == 120 // thin and rate is not None and 0 < rate <= 1
    for a, b in zip(jax.tree.leaves(reduced.reduced), jax.tree.leaves(stored.reduced), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel", [pytest.param(phx.nuts(), marks=pytest.mark.slow), phx.rwmh(0.8)], ids=["nuts", "rwmh"]
)
def test_tiles_change_nothing(kernel, monkeypatch):
    reducers, one, found = {"m": R.moments(), "r": R.rhat()}, phx.make_mesh(devices=jax.devices()[:1]), []
    for tile in ("", "1", "3"):
        monkeypatch.setenv("PHALANX_TILE", tile)
        run = phx.mcmc(model, keep=[], reducers=reducers, kernel=kernel, mesh=one, **SIZES)
        assert run.timing.compilations
        found.append(run.reduced)
    for other in found[1:]:
        for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "chains, data", [pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((2, 4), (1, 1), (4, 1), (8, 1))]
)
def test_reduced_is_the_same_on_any_mesh(chains, data):
    mesh = phx.make_mesh(chain=chains, data=data, devices=jax.devices()[: chains * data])
    reduced = [
        phx.mcmc(model, keep=[], reducers={"m": R.moments()}, kernel=phx.rwmh(0.8), mesh=m, **SIZES).reduced["m"]["x"]
        for m in (mesh, phx.make_mesh(devices=jax.devices()[:1]))
    ]
    np.testing.assert_allclose(reduced[0].mean, reduced[1].mean, rtol=1e-4, atol=1e-5)
    assert reduced[0].count == reduced[1].count == 960


@pytest.mark.slow
def test_stretches_add_up(monkeypatch):
    whole = phx.mcmc(model, keep=[], reducers={"m": R.moments()}, kernel=phx.rwmh(0.8), **SIZES).reduced["m"]["x"]
    monkeypatch.setattr("phalanx.run.host.reducer_state.MOST_DRAWS", 7)
    parts = phx.mcmc(model, keep=[], reducers={"m": R.moments()}, kernel=phx.rwmh(0.8), **SIZES).reduced["m"]["x"]
    assert parts.count == whole.count
    np.testing.assert_allclose(parts.mean, whole.mean, rtol=1e-5)
    np.testing.assert_allclose(parts.variance, whole.variance, rtol=1e-5)


@pytest.mark.slow
def test_a_second_run_compiles_nothing():
    for compilations in (3, 0):
        run = phx.mcmc(
            model, keep=[], reducers={"m": R.moments(), "q": R.quantiles([0.5])}, kernel=phx.rwmh(0.8), **SIZES
        )
        assert run.timing.compilations == compilations


def test_seconds_end_a_run():
    run = phx.mcmc(
        model, keep=[], reducers={"m": R.moments()}, kernel=phx.rwmh(0.8), until=phx.until(seconds=0.3),
        **{**SIZES, "num_samples": 10**9},
    )  # fmt: skip
    assert 0 < run.reduced["m"]["x"].count < 8 * 10**9
    assert run.record.reduced_draws * 8 == run.reduced["m"]["x"].count


def test_a_run_that_goes_on_measures_a_draw_before_it_chooses_a_round():
    """Its state was saved between two rounds; no time has been measured since."""
    parts = []
    phx.mcmc(
        model, keep=[], reducers={"m": R.moments()}, kernel=phx.rwmh(0.8), **SIZES,
        on_block=lambda report: parts.append(report.so_far()),  # pyright: ignore[reportOptionalCall]
    )  # fmt: skip
    between = next(part for part in parts if part.state.sinks is None and part.state.goal > 1)
    further = between.continue_run(10**6, until=phx.until(seconds=1e-9))
    assert further.record.reduced_draws == between.record.reduced_draws + 1


def funnel():
    width = phx.sample("width", dist.Normal(0.0, 1.0))
    phx.sample("x", dist.Normal(0.0, jax.numpy.exp(width / 2)).expand([3]))


SHORT = {
    "kernel": phx.nuts(step_size=0.1), "num_chains": 256, "num_warmup": 0, "num_samples": 10**6, "progress": False,
    "reducers": {"m": R.moments()}, "init": "prior",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("keep", [[], ["width"]], ids=["reduced", "stored"])
def test_chains_in_short_trajectories_weigh_no_more_at_a_deadline(keep):
    # the prior is the posterior: chains begin with exact draws
    run = phx.mcmc(funnel, keep=keep, until=phx.until(seconds=0.3), **SHORT)
    found = run.reduced["m"]["width"]
    assert found.count == 256 * (run.num_draws if keep else run.record.reduced_draws)
    assert abs(found.mean) < 5 / np.sqrt(256)  # as many starts: one in a million suites fails
    assert not run.record.findings


@pytest.mark.slow
def test_reducers_of_an_interrupted_run_have_the_draws_of_every_chain(monkeypatch):
    def interrupt(self, report):
        if report.phase == "sampling" and report.done >= 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("phalanx.run.progress.display.Silent.show", interrupt)
    monkeypatch.setattr("phalanx.run.compile.block_length.BlockLength.ticks", 8)
    run = phx.mcmc(funnel, **{**SHORT, "num_samples": 1000, "num_chains": 8})
    assert run.state.stored.ahead > 0  # draws of chains with short trajectories, which would bias results
    assert run.reduced["m"]["width"].count == 8 * run.num_draws
    assert not run.record.findings


def test_an_interrupt_returns_what_is_known(monkeypatch):
    calls = []

    def interrupt(self, report):
        calls.append(report)
        if len([r for r in calls if r.phase == "sampling"]) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("phalanx.run.progress.display.Silent.show", interrupt)
    run = phx.mcmc(model, keep=[], reducers={"m": R.moments()}, kernel=phx.rwmh(0.8), **{**SIZES, "num_samples": 10**7})
    assert run.record.interrupted and 0 < run.reduced["m"]["x"].count < 8 * 10**7
    assert run.reduced["m"]["x"].count == 8 * run.record.reduced_draws


@pytest.mark.parametrize(
    "reducers, error, words",
    [
        ({"m": "moments"}, TypeError, "must be a reducer"),
        (["moments"], TypeError, "must be a dict"),
        ({"m": phx.reduce(lambda v: v["y"], R.moments())}, ValueError, "no variable 'y'"),
    ],
)
def test_other_objects_than_reducers_are_refused(reducers, error, words):
    with pytest.raises(error, match=words):
        phx.mcmc(model, keep=[], reducers=reducers, **SIZES)


def test_r_hat_of_draws_that_are_not_stored_is_no_condition():
    with pytest.raises(ValueError, match="keep=\\[\\] stores none"):
        phx.mcmc(model, keep=[], until=phx.until(r_hat=1.01), **SIZES)


def test_tiles_fill_a_cache_and_nearly_divide_the_lanes():
    assert tile_of(10_000, 2048) == 2000
    assert tile_of(9973, 2048) == 1995  # prime: the last of five is filled up by two lanes
    assert tile_of(4, 2048) == 4


@pytest.mark.parametrize("tile", [pytest.param("2", marks=pytest.mark.slow), "3"])
def test_a_state_that_all_lanes_share_is_counted_once_in_tiles(tile, monkeypatch):
    monkeypatch.setenv("PHALANX_TILE", tile)
    reducers = {"h": R.histogram(np.linspace(-4.0, 4.0, 5)), "m": R.moments()}
    one = phx.make_mesh(devices=jax.devices()[:1])
    run = phx.mcmc(model, keep=[], reducers=reducers, kernel=phx.rwmh(0.8), mesh=one, **SIZES)
    found = run.reduced["h"]["x"]
    assert np.all(found.counts.sum(-1) + found.below + found.above == run.reduced["m"]["x"].count)


def test_tiles_of_no_lanes_or_too_many_are_refused(monkeypatch):
    one = phx.make_mesh(devices=jax.devices()[:1])
    for tile in ("9", "0", "2.0"):
        monkeypatch.setenv("PHALANX_TILE", tile)
        with pytest.raises(ValueError, match="PHALANX_TILE: a tile must have from 1 to 8 lanes, as a device has, got"):
            phx.mcmc(model, keep=[], reducers={"m": R.moments()}, mesh=one, **SIZES)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [phx.rwmh(0.8), pytest.param(phx.nuts(step_size=0.4), marks=pytest.mark.slow)])
def test_stored_draws_are_the_same_in_tiles(kernel, monkeypatch):
    # in warm-up draws are recorded in tiles, too; few iterations, so that rounding does not send trajectories apart
    sizes = {**SIZES, "num_warmup": 5, "num_samples": 12, "thin": 3, "mesh": phx.make_mesh(devices=jax.devices()[:2])}
    monkeypatch.setenv("PHALANX_TILE", "4")
    whole = phx.mcmc(model, kernel=kernel, **sizes)
    monkeypatch.setenv("PHALANX_TILE", "3")  # copies of a lane fill the second tile
    tiled = phx.mcmc(model, kernel=kernel, **sizes)
    for name, stat in whole.stats.items():
        np.testing.assert_allclose(tiled.stats[name], stat, rtol=1e-3, atol=1e-3)
    for name, draws in whole.draws.items():
        np.testing.assert_allclose(tiled.draws[name], draws, rtol=1e-3, atol=1e-3)


def test_a_saved_run_has_what_was_reduced(tmp_path):
    run = phx.mcmc(model, keep=[], reducers={"m": R.moments()}, kernel=phx.rwmh(0.8), **SIZES)
    run.save(tmp_path / "run.npz")
    again = phx.Posterior.load(tmp_path / "run.npz")
    assert again.reduced["m"]["x"].count == run.reduced["m"]["x"].count
    assert again.record == run.record


def test_results_that_need_draws_say_so():
    run = phx.mcmc(model, keep=[], reducers={"m": R.moments()}, kernel=phx.rwmh(0.8), **SIZES)
    assert repr(run).startswith("Posterior(8 chains x 120 draws of variables reduced by m; 0 divergences")
    with pytest.raises(ValueError, match="keep"):
        run.summary()
    assert "phx.reducers.rhat() and phx.reducers.ess()" in run.verdict().findings[0].advice


@pytest.mark.slow
def test_a_reducer_that_fails_takes_no_draw_with_it():
    def fail(state):
        raise RuntimeError("no result")

    moments = R.moments()
    mine = R.Reducer("mine()", moments.init, moments.update, moments.merge, fail)
    run = phx.mcmc(model, reducers={"mine": mine, "m": R.moments()}, kernel=phx.rwmh(0.8), **SIZES)
    assert run.draws["x"].shape[:2] == (8, 120) and run.reduced["m"]["x"].count == 960
    assert run.reduced["mine"].reason == "finalizing, RuntimeError: no result"
    assert R.moments().finalize(run.reduced["mine"].state["x"]).count == 960
    assert "reducers['mine'] failed" in str(run.verdict())


@pytest.mark.slow
def test_groups_of_chains_that_started_apart_are_refused():
    asked = {"keep": [], "reducers": {"r": R.rhat(superchains=2)}, "kernel": phx.rwmh(0.8), **SIZES}
    with pytest.raises(ValueError, match=r"these chains start separately.*init=phx\.superchains\(2\)"):
        phx.mcmc(model, **asked)
    with pytest.raises(ValueError, match="these chains start in 4 groups"):
        phx.mcmc(model, init=phx.superchains(4), **asked)
    assert np.isfinite(phx.mcmc(model, init=phx.superchains(2), **asked).reduced["r"]["x"]).all()


@pytest.mark.slow
def test_a_run_that_stores_no_draw_ends_with_a_verdict():
    asked = {"r": R.rhat(), "e": R.ess()}
    run = phx.mcmc(model, keep=[], reducers=asked, kernel=phx.rwmh(0.8), **SIZES)
    assert not run.verdict().good and {"low ESS", "high R-hat"} & {f.topic for f in run.verdict().findings}
    assert run.record.diagnostics == {"r": "r_hat", "e": "ess"}
