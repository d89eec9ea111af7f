"""A run is a value: going on with it gives the draws of one longer run, bit for bit."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from contextlib import nullcontext
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from tests.apart import compiled_in, of_a_run

import phalanx as phx
from phalanx.run.checks import RUN_ARGUMENTS
from phalanx.run.sampler import Sampler

Y = np.array([1.0, 2.0, 4.0], np.float32)
SIZES = {"num_chains": 4, "num_warmup": 60, "progress": False}
KERNELS = {
    "nuts": phx.nuts(),
    "hmc": phx.hmc(num_steps=3),
    "rwmh": phx.rwmh(step_size=0.5),
    "chees": phx.chees(),
    "mams": phx.mams(),
    "laps": phx.laps(),
    "sgld": phx.sgld(0.01, 2),
    "sghmc": phx.sghmc(0.1, 2, num_steps=3),
    "blackjax": phx.from_blackjax(lambda f: blackjax.mala(f, 0.1)),
}


def model(y):
    mean = phx.sample("mean", dist.Normal(0.0, 5.0).expand([2]))
    scale = phx.sample("scale", dist.HalfNormal(2.0))
    phx.sample("y", dist.Normal(mean.sum(), scale), obs=y)


def same(a, b):
    assert a.draws.keys() == b.draws.keys()
    for name in a.draws:
        np.testing.assert_array_equal(a.draws[name], b.draws[name], err_msg=name)
    for name in a.stats:
        np.testing.assert_array_equal(a.stats[name], b.stats[name], err_msg=name)


@pytest.mark.parametrize(
    ("name", "thin"),
    [(n, t) for n in KERNELS for t in (1, 3)],
)
@pytest.mark.slow
def test_two_halves_are_one_run(name, thin):
    sizes = {**SIZES, "kernel": KERNELS[name], "thin": thin}
    whole = phx.mcmc(model, {"y": Y}, num_samples=90, **sizes)
    half = phx.mcmc(model, {"y": Y}, num_samples=30, **sizes)
    both = half.continue_run(60)
    same(both, whole)
    same(half.continue_run(60), whole)  # the first half is what it was
    assert both.record.num_samples == 90
    assert half.num_draws == 30 // thin
    same(half.continue_run(30).continue_run(30), whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nuts", "sgld"])
def test_from_a_file_in_another_sampler(name, tmp_path):
    sizes = {**SIZES, "kernel": KERNELS[name]}
    whole = phx.mcmc(model, {"y": Y}, num_samples=80, **sizes)
    phx.mcmc(model, {"y": Y}, num_samples=30, **sizes).save(tmp_path / "half.npz")
    half = phx.Posterior.load(tmp_path / "half.npz")
    with pytest.raises(ValueError, match=r"phx\.compile\(model, data"):
        half.continue_run(50)
    is_of_minibatches = name == "sgld"  # compares no log densities: it has estimates only
    unchecked = "was not checked that the posterior is of this model.*, since phx.sgld"
    said = pytest.warns(UserWarning, match=unchecked) if is_of_minibatches else nullcontext()
    with said:
        same(phx.compile(model, {"y": Y}, **compiled_in(sizes)).continue_run(half, 50), whole)


@pytest.mark.parametrize(
    "kernel", [phx.nuts(), pytest.param(phx.chees(), marks=pytest.mark.slow)], ids=["nuts", "chees"]
)
@pytest.mark.slow
def test_on_another_number_of_devices(kernel, tmp_path):
    one, four = (phx.make_mesh(chain=n, devices=phx.make_mesh().devices.flat[:n]) for n in (1, 4))
    half = phx.mcmc(model, {"y": Y}, kernel=kernel, num_samples=30, mesh=one, **SIZES)
    half.save(tmp_path / "half.npz")
    sampler = phx.compile(model, {"y": Y}, kernel=kernel, mesh=four, **compiled_in(SIZES))
    gone_on = sampler.continue_run(phx.Posterior.load(tmp_path / "half.npz"), 10)
    whole = phx.mcmc(model, {"y": Y}, kernel=kernel, num_samples=40, mesh=one, **SIZES)
    for name in whole.draws:
        np.testing.assert_allclose(gone_on.draws[name], whole.draws[name], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_sharded_rows_and_their_padding(tmp_path):
    def rows(y):
        scale = phx.sample("scale", dist.HalfNormal(1.0))
        level = phx.sample("level", dist.Normal(0.0, scale).expand(y.shape))
        phx.sample("y", dist.Normal(level, 1.0), obs=y)

    y = np.arange(7.0, dtype=np.float32)
    mesh = phx.make_mesh(chain=2, data=2)
    data = phx.shard({"y": y}, mesh)
    sizes = {**SIZES, "kernel": phx.hmc(3), "thin": 2}
    whole = phx.mcmc(rows, data, num_samples=50, **sizes)
    half = phx.mcmc(rows, data, num_samples=20, **sizes)
    assert half.state.chains.lanes.at.position["level"].shape == (4, 7)
    assert half.state.tuning.metric.variance["level"].shape == (7,)
    same(half.continue_run(30), whole)
    same(half.continue_run(10).continue_run(20), whole)  # the first part is what it was


@pytest.mark.slow
def test_correlations_of_variables_that_are_sharded_elsewhere_are_refused():
    def rows(y):
        level = phx.sample("level", dist.Normal(0.0, phx.sample("scale", dist.HalfNormal(1.0))).expand(y.shape))
        phx.sample("y", dist.Normal(level, 1.0), obs=y)

    one, two = (phx.make_mesh(chain=1, data=n) for n in (1, 2))
    y = np.arange(4.0, dtype=np.float32)
    sizes = {"num_chains": 2, "num_warmup": 10, "progress": False}
    half = phx.mcmc(rows, phx.shard({"y": y}, two), num_samples=5, **sizes)
    sampler = phx.compile(rows, {"y": y}, mesh=one, **compiled_in(sizes))
    words = "on the mesh .*'data': 2.* of the 1 coordinates .* and on the mesh .*'data': 1.* 5 are not"
    with pytest.raises(ValueError, match=words):
        sampler.continue_run(half, 5)


@pytest.mark.slow
def test_reducers_go_on():
    of_the_same = {**SIZES, "kernel": phx.rwmh(step_size=0.5)}
    sizes = {**of_the_same, "keep": [], "reducers": {"m": phx.reducers.moments(), "r": phx.reducers.rhat()}}
    whole = phx.mcmc(model, {"y": Y}, num_samples=200, **sizes)
    both = phx.mcmc(model, {"y": Y}, num_samples=150, **sizes).continue_run(50)
    assert both.record.reduced_draws == whole.record.reduced_draws == 200
    for one, other in zip(both.reduced["m"]["mean"], whole.reduced["m"]["mean"], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    stored = {**of_the_same, "reducers": {"m": phx.reducers.moments()}}
    both = phx.mcmc(model, {"y": Y}, num_samples=50, **stored).continue_run(50)
    np.testing.assert_allclose(both.reduced["m"]["mean"].mean, both.draws["mean"].mean((0, 1)), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel", [phx.nuts(), pytest.param(phx.rwmh(step_size=0.5), marks=pytest.mark.slow)], ids=["nuts", "rwmh"]
)
def test_an_interrupted_run_goes_on(kernel):
    """Chains that were ahead keep their draws; those within a trajectory replay it."""

    def interrupt(report):
        if report.phase == "sampling" and report.done >= 5:
            raise KeyboardInterrupt

    def slow(y):
        model(y)
        phx.factor("wide", -0.5 * jnp.square(phx.sample("x", dist.Normal(0.0, 1.0)) * 30))

    sampler = phx.compile(slow, {"y": Y}, kernel=kernel, **compiled_in(SIZES))
    sampler.executables.block_length.learn(1, 0.05)  # blocks of few ticks
    part = sampler.run(3, num_samples=600, on_block=interrupt, **of_a_run(SIZES))
    assert part.record.interrupted
    assert part.num_draws < 600
    both = part.continue_run(700 - part.num_draws)
    assert not both.record.interrupted
    same(both, sampler.run(3, num_samples=700, **of_a_run(SIZES)))


@pytest.mark.slow
def test_until_goes_on():
    first = phx.mcmc(model, {"y": Y}, num_samples=100_000, until=phx.until(ess=50), **SIZES)
    more = first.continue_run(20_000, until=phx.until(ess=200))
    assert first.num_draws < more.num_draws < 20_000
    np.testing.assert_array_equal(more.draws["scale"][:, : first.num_draws], first.draws["scale"])


@pytest.mark.slow
def test_wrong_options_are_refused():
    sizes = {**SIZES, "kernel": phx.rwmh(step_size=0.5)}
    half = phx.mcmc(model, {"y": Y}, num_samples=10, **sizes)
    sampler = phx.compile(lambda: phx.sample("mean", dist.Normal(0.0, 1.0)), **compiled_in(sizes))
    with pytest.raises(ValueError, match="continue_run"):
        sampler.continue_run(half, 10)
    with pytest.raises(ValueError, match="8 chains"):
        phx.compile(model, {"y": Y}, **compiled_in({**sizes, "num_chains": 8})).continue_run(half, 10)
    with pytest.raises(ValueError, match=r"drawn by rwmh.*compiled for nuts"):
        phx.compile(model, {"y": Y}, **compiled_in(SIZES)).continue_run(half, 10)
    fewer = dataclasses.replace(half, draws={name: draws[:, :5] for name, draws in half.draws.items()})
    with pytest.raises(ValueError, match="'mean' has 5 draws of each chain, and the run has made 10"):
        fewer.continue_run(10)
    with pytest.raises(ValueError, match="num_samples"):
        half.continue_run(0)
    with pytest.raises(ValueError, match="not made by a run"):
        phx.Posterior({"mean": np.ones((4, 2))}, {}, half.timing, half.record).continue_run(3)


def test_a_function_is_called_after_each_block():
    reports = []
    phx.mcmc(model, {"y": Y}, num_samples=50, on_block=reports.append, **SIZES)
    assert {report.phase for report in reports} == {"warm-up", "sampling"}
    assert reports[-1].done == reports[-1].total == 50
    with pytest.raises(TypeError, match="on_block"):
        phx.mcmc(model, {"y": Y}, on_block=3, **SIZES)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ZeroDivisionError):
        phx.mcmc(model, {"y": Y}, on_block=lambda report: 1 / 0, **SIZES)


def test_a_sampler_is_told_at_each_run_how_far_to_go():
    sampler = phx.compile(model, {"y": Y}, **compiled_in(SIZES))
    posterior = sampler.run(1, num_samples=30, num_warmup=20, thin=2, progress=False)
    assert (posterior.num_draws, posterior.record.num_warmup) == (15, 20)
    again = sampler.run(1, num_samples=40, **of_a_run(SIZES))
    assert (again.num_draws, again.record.num_warmup, again.timing.compilations) == (40, 60, 0)
    with pytest.raises(ValueError, match="thin=50"):
        sampler.run(1, num_samples=10, thin=50)


def test_arguments_that_compile_does_not_take_are_refused_with_their_place():
    mistaken: Any = {"num_sample": 3}
    with pytest.raises(TypeError, match="num_sample.*The data go in one dict"):
        phx.compile(model, {"y": Y}, **mistaken)
    of_runs: Any = {"num_warmup": 3, "thin": 2}
    with pytest.raises(TypeError, match=r"phx\.compile: num_warmup and thin belong to sampler\.run\(\.\.\.\)"):
        phx.compile(model, {"y": Y}, **of_runs)
    with pytest.raises(TypeError, match=r"seed belongs to .*then sampler\.run\(seed=\.\.\.\)"):
        phx.compile(model, {"y": Y}, seed=1)  # pyright: ignore[reportCallIssue]
    of_sampler, of_compile = (inspect.signature(f).parameters for f in (Sampler.run, phx.compile))
    assert {*RUN_ARGUMENTS} == {*of_sampler} - {*of_compile} - {"self"}


@pytest.mark.slow
def test_reducers_go_on_from_a_file(tmp_path):
    sizes = {**SIZES, "keep": [], "reducers": {"m": phx.reducers.moments(), "q": phx.reducers.quantiles([0.5])}}
    whole = phx.mcmc(model, {"y": Y}, num_samples=200, **sizes)
    phx.mcmc(model, {"y": Y}, num_samples=150, **sizes).save(tmp_path / "half.npz")
    both = phx.compile(model, {"y": Y}, **compiled_in(sizes)).continue_run(
        phx.Posterior.load(tmp_path / "half.npz"), 50
    )
    np.testing.assert_allclose(both.reduced["m"]["mean"].mean, whole.reduced["m"]["mean"].mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(both.reduced["m"]["mean"].count, 800)
    assert np.isfinite(both.reduced["q"]["mean"]).all()


@pytest.mark.slow
def test_a_change_that_is_small_beside_many_rows_is_refused():
    y = np.random.default_rng(0).normal(3.0, 1.0, 200_000).astype(np.float32)

    def of(width):
        def program(y):
            phx.sample("tail", dist.Normal(0.0, width))
            phx.sample("y", dist.Normal(phx.sample("mean", dist.Normal(3.0, 1.0)), 1.0), obs=y)

        return program

    sizes = {**SIZES, "kernel": phx.rwmh(step_size=0.01)}
    half = phx.mcmc(of(1.0), {"y": y}, num_samples=10, **sizes)
    with pytest.raises(ValueError, match="the data that the posterior was drawn with"):
        phx.compile(of(3.0), {"y": y}, **compiled_in(sizes)).continue_run(half, 10)
    other = y.copy()
    other[:3] += 2.0
    with pytest.raises(ValueError, match="the data that the posterior was drawn with"):
        phx.compile(of(1.0), {"y": other}, **compiled_in(sizes)).continue_run(half, 10)
    assert phx.compile(of(1.0), {"y": y.copy()}, **compiled_in(sizes)).continue_run(half, 10).num_draws == 20


def test_another_model_or_other_data_are_refused():
    """Where names and shapes are the same."""
    sizes = {**SIZES, "kernel": phx.rwmh(step_size=0.5)}
    half = phx.mcmc(model, {"y": Y}, num_samples=10, **sizes)

    def wider(y):
        mean = phx.sample("mean", dist.Normal(0.0, 50.0).expand([2]))
        scale = phx.sample("scale", dist.HalfNormal(2.0))
        phx.sample("y", dist.Normal(mean.sum(), scale), obs=y)

    with pytest.raises(ValueError, match="log density was .*; that of this model on these data is"):
        phx.compile(wider, {"y": Y}, **compiled_in(sizes)).continue_run(half, 10)
    sampler = phx.compile(model, {"y": Y}, **compiled_in(sizes))
    with pytest.raises(ValueError, match="the data that the posterior was drawn with"):
        sampler.continue_run(half, 10, data={"y": Y + 0.5})
    same(sampler.continue_run(half, 10, data={"y": Y.copy()}), half.continue_run(10))


@pytest.mark.slow
def test_a_posterior_whose_rows_lie_otherwise_is_refused_or_goes_on(tmp_path):
    def rows(y):
        scale = phx.sample("scale", dist.HalfNormal(1.0))
        level = phx.sample("level", dist.Normal(0.0, scale).expand(y.shape))
        phx.sample("y", dist.Normal(level, 1.0), obs=y)

    y = np.arange(7.0, dtype=np.float32)
    whole = phx.mcmc(rows, {"y": y}, num_samples=20, **SIZES)
    sharded = phx.compile(rows, phx.shard({"y": y}, phx.make_mesh(chain=2, data=2)), **compiled_in(SIZES))
    with pytest.raises(ValueError, match="the metric has correlations of the 8 coordinates that are not sharded there"):
        sharded.continue_run(whole, 10)


class Sum(NamedTuple):
    """A user's state of a reducer."""

    total: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Total:
    """Another, which is no tuple."""

    total: Any


@pytest.mark.slow
@pytest.mark.parametrize("record", [pytest.param(Sum, marks=pytest.mark.slow), Total])
def test_reducers_of_a_users_own_go_on_from_a_file(record, tmp_path):
    sum_of = phx.reducers.Reducer(
        name="sum",
        init=lambda draw: record(jnp.zeros_like(draw)),
        update=lambda state, draw, where: record(state.total + jnp.where(where[:, None], draw, 0.0)),
        merge=lambda a, b: record(a.total + b.total),
        finalize=lambda state: state.total,
    )
    sizes = {**SIZES, "reducers": {"sum": phx.reduce(lambda v: v["mean"], sum_of)}}
    half = phx.mcmc(model, {"y": Y}, num_samples=30, **sizes)
    half.save(tmp_path / "half.npz")
    sampler = phx.compile(model, {"y": Y}, **compiled_in(sizes))
    both = sampler.continue_run(phx.Posterior.load(tmp_path / "half.npz"), 20)
    np.testing.assert_allclose(both.reduced["sum"], both.draws["mean"].sum(1), rtol=1e-4)


@pytest.mark.slow
def test_a_kernel_with_a_state_of_its_own_goes_on_from_a_file(tmp_path):
    sizes = {**SIZES, "kernel": KERNELS["blackjax"]}
    phx.mcmc(model, {"y": Y}, num_samples=30, **sizes).save(tmp_path / "half.npz")
    sampler = phx.compile(model, {"y": Y}, **compiled_in(sizes))
    both = sampler.continue_run(phx.Posterior.load(tmp_path / "half.npz"), 20)
    same(both, phx.mcmc(model, {"y": Y}, num_samples=50, **sizes))


@pytest.mark.slow
def test_simplices_and_correlations_go_on(tmp_path):
    def of_many_supports():
        phx.sample("shares", dist.Dirichlet(jnp.ones(3)))
        phx.sample("corr", dist.LKJCholesky(3, 2.0))

    half = phx.mcmc(of_many_supports, num_samples=20, **SIZES)
    half.save(tmp_path / "half.npz")
    sampler = phx.compile(of_many_supports, **compiled_in(SIZES))
    both = sampler.continue_run(phx.Posterior.load(tmp_path / "half.npz"), 20)
    same(both, phx.mcmc(of_many_supports, num_samples=40, **SIZES))


def test_a_file_imports_nothing(tmp_path):
    half = phx.mcmc(model, {"y": Y}, num_samples=5, **SIZES)
    file = half.save(tmp_path / "half.npz")
    with np.load(file) as opened:
        arrays = dict(opened)
    name = "phalanx.run.state:RunState"
    arrays["json"] = np.array(str(arrays["json"]).replace(name, "phalanx.cli.info:RunState"))
    np.savez(file, **arrays)
    before = set(sys.modules)
    phx.Posterior.load(file)
    assert "phalanx.cli.info" not in set(sys.modules) - before


def test_until_looks_no_earlier_than_there_is_something_new(monkeypatch):
    looks = []
    monkeypatch.setattr("phalanx.run.until.StoppingWatch._good", lambda *_: looks.append(1) or True)
    first = phx.mcmc(model, {"y": Y}, num_samples=400, **SIZES)
    more = first.continue_run(1000, until=phx.until(ess=5))
    assert more.num_draws > 400
    assert len(looks) <= 3  # one look: the log density, and the variables until one is not good


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "nuts" else pytest.mark.slow) for name in KERNELS]
)
def test_a_run_goes_on_from_any_block_as_if_it_had_not_stopped(name, tmp_path):
    """Warm-up included, by way of a file, in another sampler."""
    files = []

    def save(report):
        posterior = report.so_far()
        assert posterior.num_draws == (report.done if report.phase == "sampling" else 0)
        files.append(posterior.save(tmp_path / f"{len(files)}.npz"))

    sizes = {**SIZES, "num_warmup": 120, "kernel": KERNELS[name]}
    sampler = phx.compile(model, {"y": Y}, **compiled_in(sizes))
    block_length = sampler.executables.block_length
    block_length.learn(1, 0.05)
    block_length.learn = lambda ticks, seconds: None  # blocks stay short
    whole = sampler.run(3, num_samples=80, on_block=save, **of_a_run(sizes))
    same(sampler.run(3, num_samples=80, **of_a_run(sizes)), whole)  # to look at it changes nothing
    assert len(files) > 8
    other = phx.compile(model, {"y": Y}, **compiled_in(sizes))
    for file in (files[0], files[3], files[len(files) // 2], files[-2]):
        part = phx.Posterior.load(file)
        with pytest.warns(UserWarning, match="was not checked") if name in ("sgld", "sghmc") else nullcontext():
            both = other.continue_run(part, 80 - part.num_draws)
        same(both, whole)
        for key, values in whole.warmup.items():
            np.testing.assert_array_equal(both.warmup[key], values)
        assert both.record.num_samples == 80


@pytest.mark.slow
def test_a_run_that_stores_nothing_goes_on_from_any_block(tmp_path):
    parts = []
    sizes = {**SIZES, "keep": [], "reducers": {"m": phx.reducers.moments()}}
    sampler = phx.compile(model, {"y": Y}, **compiled_in(sizes))
    sampler.executables.block_length.learn(1, 0.01)
    of_run = {**of_a_run(sizes), "on_block": lambda report: parts.append(report.so_far())}
    whole = sampler.run(3, num_samples=64, **of_run)
    assert {part.record.reduced_draws for part in parts} > {0, 1, 2, 4}
    parts = [part for part in parts if part.record.reduced_draws < 64]
    for i, part in enumerate(parts[:: len(parts) // 5]):
        part.save(tmp_path / f"{i}.npz")
        both = sampler.continue_run(phx.Posterior.load(tmp_path / f"{i}.npz"), 64 - part.record.reduced_draws)
        assert both.record.reduced_draws == 64
        assert both.timing.gradient_evaluations == whole.timing.gradient_evaluations
        for one, other in zip(both.reduced["m"]["mean"], whole.reduced["m"]["mean"], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_warm_up_goes_on_on_another_number_of_devices(tmp_path):
    one, four = (phx.make_mesh(chain=n, devices=phx.make_mesh().devices.flat[:n]) for n in (1, 4))
    files = []
    whole = phx.mcmc(
        model, {"y": Y}, num_samples=10, mesh=one, **SIZES,
        on_block=lambda report: files.append(report.so_far().save(tmp_path / f"{len(files)}.npz")),  # pyright: ignore[reportOptionalCall]
    )  # fmt: skip
    late = [file for file in files if phx.Posterior.load(file).state.in_warm_up]
    gone_on = phx.compile(model, {"y": Y}, mesh=four, **compiled_in(SIZES)).continue_run(
        phx.Posterior.load(late[-1]), 10
    )
    for name in whole.draws:
        np.testing.assert_allclose(gone_on.draws[name], whole.draws[name], rtol=1e-3, atol=1e-3)


def test_thinning_goes_on_from_the_last_draw_kept():
    """Draws made after the last one kept count in what follows: 20 + 20 at thin=3 keep 13, as 40 do."""
    sampler = phx.compile(model, {"y": Y}, kernel=phx.rwmh(step_size=0.5), **compiled_in(SIZES))
    sizes = {**of_a_run(SIZES), "thin": 3}
    whole = sampler.run(2, num_samples=40, **sizes)
    both = sampler.run(2, num_samples=20, **sizes).continue_run(20)
    assert whole.num_draws == 13
    same(both, whole)
    parts = sampler.run(2, num_samples=4, **sizes)
    for more in (3, 7, 2, 24):
        parts = parts.continue_run(more)
    same(parts, whole)
    with pytest.raises(ValueError, match="num_samples=1 gives no draw that thin=3 keeps; give at least 2"):
        sampler.run(2, num_samples=4, **sizes).continue_run(1)


@pytest.mark.slow
def test_reducers_count_what_thinning_left_over():
    sizes = {**SIZES, "kernel": phx.rwmh(step_size=0.5), "keep": [], "reducers": {"m": phx.reducers.moments()}}
    half = phx.mcmc(model, {"y": Y}, seed=2, num_samples=20, thin=3, **sizes)
    assert half.continue_run(20).record.reduced_draws == 13


def test_a_sampler_thins_as_the_run_that_it_goes_on_with():
    sizes = {**SIZES, "kernel": phx.rwmh(step_size=0.5)}
    sampler = phx.compile(model, {"y": Y}, **compiled_in(sizes))
    third = phx.mcmc(model, {"y": Y}, num_samples=9, thin=3, **sizes)
    same(sampler.continue_run(third, 9), phx.mcmc(model, {"y": Y}, num_samples=18, thin=3, **sizes))


@pytest.mark.parametrize("place", [pytest.param(0, marks=pytest.mark.slow), 1499, 2999])
@pytest.mark.parametrize("name", [pytest.param("x", marks=pytest.mark.slow), "y", "group"])
def test_one_number_that_differs_in_its_last_digit_is_refused(name, place, tmp_path, mesh_of):
    def regression(x, y, group):
        slope = phx.sample("slope", dist.Normal(0.0, 1.0))
        phx.sample("y", dist.Normal(slope * x + 0.0 * group, 1.0), obs=y)

    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=3000), "y": rng.normal(size=3000), "group": rng.integers(0, 9, 3000)}
    data = {key: values.astype(np.int32 if key == "group" else np.float32) for key, values in data.items()}
    sizes = {**SIZES, "kernel": phx.rwmh(step_size=0.01)}
    sampler = phx.compile(regression, data, **compiled_in(sizes))
    half = sampler.run(0, num_samples=5, **of_a_run(sizes))
    changed = data[name].copy()
    changed[place] = np.nextafter(changed[place], np.float32(9e9)) if name != "group" else changed[place] + 1
    half.save(tmp_path / "half.npz")
    read = phx.Posterior.load(tmp_path / "half.npz")
    for posterior in (half, read):
        with pytest.raises(ValueError, match=rf"data: {name} differs in at least one value from the posterior's data"):
            sampler.continue_run(posterior, 5, data={**data, name: changed})
        copies = {key: values.copy() for key, values in data.items()}
        assert sampler.continue_run(posterior, 5, data=copies).num_draws == 10


@pytest.mark.slow
def test_a_run_in_another_floating_point_type_is_refused(tmp_path):
    sizes = {**SIZES, "kernel": phx.rwmh(step_size=0.5)}
    half = phx.mcmc(model, {"y": Y}, num_samples=5, **sizes)
    half.save(tmp_path / "half.npz")
    with jax.enable_x64(True):
        with pytest.raises(ValueError, match="compiled for float32, and JAX now computes in float64"):
            half.continue_run(5)
        sampler = phx.compile(model, {"y": Y}, **compiled_in(sizes))
        with pytest.raises(ValueError, match="'mean' was computed in float32, and this sampler computes in float64"):
            sampler.continue_run(phx.Posterior.load(tmp_path / "half.npz"), 5)
        anew = sampler.run(0, init=half, tuning=half, num_warmup=0, num_samples=5, progress=False)
        assert anew.draws["mean"].dtype == np.float64
