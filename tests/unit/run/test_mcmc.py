"""The run loop: shapes, storing, reuse, interruption."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from tests.apart import compiled_in, of_a_run

import phalanx as phx
from phalanx.adaptation.step_size import SEARCHES
from phalanx.run import sampler as sampler_module
from phalanx.run.compile.block_length import BlockLength
from phalanx.run.progress.display import Silent

Y = np.array([1.0, 2.0, 4.0], np.float32)
FAST = {"kernel": phx.hmc(num_steps=4), "num_warmup": 20, "num_samples": 30, "progress": False}


def model(y):
    mean = phx.sample("mean", dist.Normal(0.0, 10.0))
    noise = phx.sample("noise", dist.HalfNormal(1.0))
    phx.deterministic("ratio", mean / noise)
    phx.sample("y", dist.Normal(mean, noise), obs=y)


@pytest.mark.slow
def test_shapes_of_draws_and_statistics():
    posterior = phx.mcmc(model, {"y": Y}, **FAST)
    assert {name: draws.shape for name, draws in posterior.draws.items()} == dict.fromkeys(
        ("mean", "noise", "ratio"), (4, 30)
    )
    assert set(posterior.stats) == {"acceptance_rate", "diverging", "num_steps", "energy", "step_size", "log_density"}
    assert all(values.shape == (4, 30) for values in posterior.stats.values())
    assert (posterior.draws["noise"] > 0).all()
    # besides the draws, a few single leapfrogs on which step sizes are first tried
    tried = posterior.timing.gradient_evaluations - 4 * (1 + 50 * 4)
    assert 0 < tried <= 4 * 2 * SEARCHES and tried % 4 == 0


def test_the_log_density_is_that_of_the_draws():
    posterior = phx.mcmc(model, {"y": Y}, **FAST)
    target = phx.Target(model, {"y": Y})
    values = {name: posterior.draws[name][2, 7] for name in ("mean", "noise")}
    np.testing.assert_allclose(
        target.log_density(target.unconstrain(values)), posterior.stats["log_density"][2, 7], rtol=1e-4
    )


def test_deterministic_values_are_stored_by_default_but_for_large_ones(capsys):
    def program(y):
        mean = phx.sample("mean", dist.Normal(0.0, 1.0))
        phx.deterministic("double", 2 * mean)
        phx.deterministic("above", mean > 0)
        phx.deterministic("rows", mean + y)
        phx.deterministic("long", mean + jnp.zeros(10_001))
        phx.sample("y", dist.Normal(mean, 1.0), obs=y)

    mesh = phx.make_mesh(chain=1, data=2, devices=jax.devices()[:2])
    y = np.arange(5, dtype=np.float32)
    posterior = phx.mcmc(program, phx.shard({"y": y}, mesh), **{**FAST, "progress": True})
    mean = posterior.draws["mean"]
    assert set(posterior.draws) == {"mean", "double", "above", "rows"}
    np.testing.assert_array_equal(posterior.draws["double"], 2 * mean)
    np.testing.assert_allclose(posterior.draws["rows"], mean[..., None] + y, rtol=1e-6)
    assert {"double", "rows[4]", "above"} <= set(posterior.summary().index)
    assert posterior.record.latents.keys() == {"mean"}
    assert "the deterministic value 'long' has 10,001 elements, and its draws are not stored" in capsys.readouterr().err


@pytest.mark.slow
def test_keep_chooses_what_is_stored():
    assert list(phx.mcmc(model, {"y": Y}, keep=["ratio", "mean"], **FAST).draws) == ["ratio", "mean"]
    posterior = phx.mcmc(model, {"y": Y}, keep=["ratio", "mean", "noise"], **FAST)
    np.testing.assert_allclose(posterior.draws["ratio"], posterior.draws["mean"] / posterior.draws["noise"], rtol=1e-5)
    nothing = phx.mcmc(model, {"y": Y}, keep=[], **FAST)
    assert nothing.draws == {} and nothing.stats["energy"].shape == (4, 30)


def test_thinning_keeps_every_third_draw_of_the_same_chain():
    every = phx.mcmc(model, {"y": Y}, **FAST)
    third = phx.mcmc(model, {"y": Y}, thin=3, **FAST)
    np.testing.assert_allclose(third.draws["mean"], every.draws["mean"][:, 2::3], rtol=1e-4)
    assert (third.stats["num_steps"] == 12).all()


@pytest.mark.parametrize(
    "kernel", [phx.hmc(num_steps=4), pytest.param(phx.nuts(), marks=pytest.mark.slow)], ids=["hmc", "nuts"]
)
def test_draws_do_not_depend_on_how_a_run_is_cut_into_blocks(kernel, monkeypatch):
    sizes = {name: value for name, value in FAST.items() if name != "kernel"}
    whole = phx.mcmc(model, {"y": Y}, kernel=kernel, **sizes)

    sampler = phx.compile(model, {"y": Y}, kernel=kernel)
    monkeypatch.setattr(sampler, "executables", replace(sampler.executables, block_length=OneByOne()))
    np.testing.assert_array_equal(sampler.run(0, **sizes).draws["mean"], whole.draws["mean"])


class OneByOne(BlockLength):
    """A tick at a time."""

    @property
    def ticks(self) -> int:
        return 1


def test_seeds_differ_and_repeat():
    sampler = phx.compile(model, {"y": Y}, **compiled_in(FAST))
    first, again, other = (sampler.run(seed, **of_a_run(FAST)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.draws["mean"], again.draws["mean"])
    assert not np.allclose(first.draws["mean"], other.draws["mean"])
    chains = first.draws["mean"]
    assert len({chain.tobytes() for chain in chains}) == len(chains)


def test_other_data_of_the_same_shape_run_on_the_same_program():
    sampler = phx.compile(model, {"y": Y}, **compiled_in(FAST))
    moved = sampler.run(0, {"y": Y + 100}, **of_a_run(FAST))
    np.testing.assert_array_equal(moved.draws["mean"], phx.mcmc(model, {"y": Y + 100}, **FAST).draws["mean"])
    assert not np.allclose(moved.draws["mean"], sampler.run(0, **of_a_run(FAST)).draws["mean"])
    with pytest.raises(ValueError, match=r"compiled for y of shape \(3,\) and type float32.*got \(2,\) float32"):
        sampler.run(0, {"y": Y[:2]})
    with pytest.raises(ValueError, match="compiled for the arrays y; got no arrays"):
        sampler.run(0, {"y": 1})


@pytest.mark.slow
def test_a_given_step_size_is_kept_and_none_is_tuned():
    kept = phx.mcmc(model, {"y": Y}, **{**FAST, "kernel": phx.hmc(num_steps=4, step_size=0.05)})
    tuned = phx.mcmc(model, {"y": Y}, **{**FAST, "kernel": phx.hmc(num_steps=4, initial_step_size=0.05)})
    assert (kept.stats["step_size"] == np.float32(0.05)).all()
    assert (tuned.stats["step_size"] != np.float32(0.05)).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel, target",
    [(phx.hmc(num_steps=5), 0.8), pytest.param(phx.rwmh(), 0.234, marks=pytest.mark.slow)],
    ids=["hmc", "rwmh"],
)
def test_tuning_reaches_the_acceptance_it_aims_at(kernel, target):
    def gaussian():
        phx.sample("x", dist.Normal(0.0, 1.0).expand([20]))

    posterior = phx.mcmc(gaussian, kernel=kernel, num_chains=8, num_warmup=600, num_samples=400, progress=False)
    assert abs(posterior.stats["acceptance_rate"].mean() - target) < 0.08


def test_a_run_without_warm_up():
    posterior = phx.mcmc(model, {"y": Y}, **{**FAST, "num_warmup": 0})
    assert (posterior.stats["step_size"] == np.float32(0.1)).all()


def test_interruption_returns_the_draws_so_far(monkeypatch):
    sampler = phx.compile(model, {"y": Y}, **compiled_in(FAST))
    sizes = of_a_run({**FAST, "num_samples": 10})
    whole = sampler.run(0, **sizes)
    shown = []

    class Interrupting(Silent):
        def show(self, report):
            shown.append(report)
            if report.phase == "sampling" and report.done >= 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(sampler_module, "make_progress", lambda enabled: Interrupting())
    sampler.executables = replace(sampler.executables, block_length=OneByOne())
    posterior = sampler.run(0, **sizes)
    assert posterior.record.interrupted and posterior.draws["mean"].shape == (4, 3)
    np.testing.assert_array_equal(posterior.draws["mean"], whole.draws["mean"][:, :3])
    assert posterior.stats["energy"].shape == (4, 3)


def test_interruption_before_the_first_draw_is_the_users_to_handle(monkeypatch):
    class Interrupting(Silent):
        def show(self, report):
            raise KeyboardInterrupt

    monkeypatch.setattr(sampler_module, "make_progress", lambda enabled: Interrupting())
    with pytest.raises(KeyboardInterrupt):
        phx.mcmc(model, {"y": Y}, **FAST)


@pytest.mark.slow
def test_numpyro_models_run_unchanged():
    import numpyro

    def theirs(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
        numpyro.deterministic("ratio", mean / noise)
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(mean, noise), obs=y)

    ours, wrapped = (phx.mcmc(m, {"y": Y}, **FAST) for m in (model, phx.from_numpyro(theirs)))
    np.testing.assert_allclose(ours.draws["mean"], wrapped.draws["mean"], rtol=1e-3)


@pytest.mark.slow
def test_values_that_a_model_reads_from_outside_may_change():
    outside = np.zeros(50, np.float32)

    def model():
        phx.sample("y", dist.Normal(phx.sample("mean", dist.Normal(0.0, 10.0)), 1.0), obs=outside)

    def run():
        return phx.mcmc(model, kernel=phx.hmc(num_steps=4), num_warmup=100, num_samples=200, progress=False)

    before = run()
    outside += 5
    after, again = run(), run()
    assert before.timing.compilations > 0 and after.timing.compilations > 0 and again.timing.compilations == 0
    # five of the posterior's standard deviations are far more than the error of a mean of 800 draws
    for posterior, mean in ((before, 0.0), (after, 5.0), (again, 5.0)):
        assert abs(posterior.draws["mean"].mean() - mean) < 5 / np.sqrt(50)
