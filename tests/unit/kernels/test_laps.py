"""LAPS: what each part of warm-up does, and draws that are of the posterior."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.adaptation.late_adjustment import LateAdjustment, LateAdjustmentState
from phalanx.adaptation.tuner import Stage, Sums, VectorMoments

SIZES = {"num_chains": 64, "num_warmup": 60, "num_samples": 100, "progress": False}
UNADJUSTED = Stage(0, 3, 3, True)


def is_good(verdict):
    """Return whether a verdict has no other finding than that a model observes nothing."""
    return {finding.topic for finding in verdict.findings} <= {"prior only"}


def model():
    x = phx.sample("x", dist.Normal(jnp.array([0.0, 3.0]), jnp.array([1.0, 20.0])))
    phx.sample("y", dist.Normal(x[0], 1.0), obs=1.0)


@pytest.mark.slow
def test_draws_are_of_the_posterior_and_warm_up_has_two_parts():
    posterior = phx.mcmc(model, kernel=phx.laps(), **SIZES)
    adjusted = np.asarray(posterior.warmup["adjusted"])
    # no draw of warm-up is adjusted before its last window, which has 10 draws
    iteration = np.asarray(posterior.warmup["iteration"])
    assert not adjusted[iteration < 50].any() and adjusted[iteration > 50].all()
    # windows of 10, 10, 30 and 10 draws: unadjusted trajectories become longer with each metric
    most = np.asarray(posterior.warmup["unadjusted_steps"])
    np.testing.assert_array_equal(most[:50], np.repeat([4, 8, 16], [10, 10, 30]))
    np.testing.assert_allclose(np.exp(posterior.stats["log_step_size"]), posterior.stats["step_size"], rtol=1e-5)
    x = posterior.draws["x"].reshape(-1, 2)
    summary = posterior.summary()
    # six standard errors of two means: not to be expected to fail
    error = np.asarray(summary.filter(like="x[", axis=0)["mcse_mean"])
    np.testing.assert_array_less(np.abs(x.mean(0) - [0.5, 3.0]), 6 * error)
    np.testing.assert_allclose(x.std(0), [np.sqrt(0.5), 20.0], rtol=0.15)


@pytest.mark.slow
def test_without_warm_up_every_draw_is_adjusted():
    posterior = phx.mcmc(model, kernel=phx.laps(step_size=0.3), **{**SIZES, "num_warmup": 0, "num_samples": 5})
    assert (posterior.stats["num_steps"] > 1).all()


@pytest.mark.slow
def test_a_step_size_that_is_given_is_kept():
    posterior = phx.mcmc(model, kernel=phx.laps(step_size=0.3), **SIZES)
    assert np.unique(posterior.stats["step_size"]) == np.float32(0.3)
    assert set(np.asarray(posterior.warmup["step_size"], np.float32)) == {np.float32(0.3)}


def test_one_coordinate_has_no_direction():
    with pytest.raises(ValueError, match="at least 2 coordinates, and this model has 1"):
        phx.mcmc(lambda: phx.sample("x", dist.Normal(0.0, 1.0)), kernel=phx.laps(), **SIZES)


@pytest.mark.parametrize(
    ("choices", "named"),
    [
        ({"step_size": -1.0}, "step_size"),
        ({"target_acceptance": 1.0}, "target_acceptance"),
        ({"max_steps": 0}, "max_steps"),
        ({"metric": "round"}, "metric"),
    ],
)
def test_wrong_options_are_refused(choices, named):
    with pytest.raises(ValueError, match=f"laps: .*{named}|{named}.*laps"):
        phx.laps(**choices)


def after(spread):
    """The state after a draw of one chain, in a metric of unit variances."""

    class Tuning:
        class metric:
            variance = (np.ones(2, np.float32),)

    position = (VectorMoments(10, np.zeros(2), np.full(2, 9 * spread**2)),)
    state = LateAdjustmentState(1.0, 1.0, 2)
    return LateAdjustment().update(state, Sums(2, {"log_step_size": 2.0}, 1.0, position, position), Tuning, UNADJUSTED)


def test_trajectories_are_as_long_as_the_chains_are_spread():
    assert np.isclose(after(1.0).trajectory_length, 1.9) and np.isclose(after(3.0).trajectory_length, 5.7)
    assert after(0.0).trajectory_length == after(np.nan).trajectory_length == 1.0
    assert np.isclose(after(1.0).step_size, np.e)


def test_the_acceptance_rate_to_aim_at_depends_on_the_number_of_coordinates():
    rates = [LateAdjustment()._step_size(LateAdjustmentState(1.0, 1.0, n)).target for n in (200, 201)]
    assert rates == [0.7, 0.9]
    assert LateAdjustment(0.8)._step_size(LateAdjustmentState(1.0, 1.0, 2)).target == 0.8


@pytest.mark.slow
def test_short_chains_in_superchains_certify_a_run_or_refuse_it():
    """Chains start in groups by themselves; the verdict compares these by nested R-hat."""

    def places(gap, centre):
        modes = dist.Normal(centre + gap * jnp.array([-1.0, 1.0]), 1.0)
        phx.sample("x", dist.MixtureSameFamily(dist.Categorical(jnp.array([0.5, 0.5])), modes))
        phx.sample("y", dist.Normal(centre, 1.0).expand([19]))  # in two dimensions unadjusted steps are too long

    def run(gap, centre, num_warmup):
        data = {"gap": np.float32(gap), "centre": np.float32(centre)}
        return sampler.run(0, data, num_warmup=num_warmup, num_samples=8, progress=False)

    sampler = phx.compile(places, {"gap": np.float32(0), "centre": np.float32(0)}, kernel=phx.laps(), num_chains=128)
    converged = run(0.0, 0.0, 60)
    assert converged.record.superchains == 16 and converged.record.init == "random, in 16 superchains"
    assert is_good(converged.verdict()) and "nested R-hat" in str(converged.verdict().passed)
    for spoiled in run(8.0, 0.0, 60), run(0.0, 60.0, 2):
        assert "high R-hat" in [finding.topic for finding in spoiled.verdict().findings]
    given = sampler.run(0, init={"x": 0.0}, num_warmup=2, num_samples=8, progress=False)
    assert given.record.superchains == 0


def test_a_reducer_of_other_groups_is_refused():
    with pytest.raises(ValueError, match=r"these chains start in 16 groups: .* Give init=phx.superchains\(8\)"):
        phx.mcmc(
            lambda: phx.sample("x", dist.Normal(0.0, 1.0).expand([2])), kernel=phx.laps(), num_chains=64,
            reducers={"r": phx.reducers.rhat(superchains=8)}, num_warmup=10, num_samples=2, progress=False,
        )  # fmt: skip


def banana(bend, width=0.5):
    def model():
        x = phx.sample("x", dist.Normal(0.0, 1.0))
        phx.sample("y", dist.Normal(bend * (x**2 - 1.0), width))

    return model


def funnel(scale, size):
    def model():
        v = phx.sample("v", dist.Normal(0.0, scale))
        phx.sample("x", dist.Normal(jnp.zeros(size), jnp.exp(v / 2.0)))

    return model


def normals(*scales):
    return lambda: phx.sample("x", dist.Normal(jnp.zeros(len(scales)), jnp.array(scales)))


def regression():
    x = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    b = phx.sample("b", dist.Normal(jnp.zeros(3), 10.0))
    s = phx.sample("s", dist.HalfNormal(5.0))
    phx.sample("y", dist.Normal(x @ b, s), obs=x[:, 0] - 2.0 * x[:, 1] + x[:, 2] ** 2)


def positive():
    phx.sample("g", dist.Gamma(2.0, 1.0).expand([3]))
    phx.sample("p", dist.Beta(2.0, 3.0))


def verdicts(model, num_warmup, seeds, init=None):
    """Return the verdicts on ten draws of each of 256 chains, one run per seed."""
    sampler = phx.compile(model, kernel=phx.laps(), num_chains=256)
    begin = None if init is None else phx.superchains(16, init)
    return [
        sampler.run(seed, num_warmup=num_warmup, num_samples=10, progress=False, init=begin).verdict()
        for seed in range(seeds)
    ]


@pytest.mark.slow
def test_groups_that_agree_and_drift_together_are_not_stationary():
    # the mean of y is -5.4, and 0 in truth
    (verdict,) = verdicts(banana(8.0), 300, 1)
    assert verdict.grade == "not good" and "not stationary" in {finding.topic for finding in verdict.findings}
    assert "Since an early part of the last adaptation window" in str(verdict)


@pytest.mark.slow
def test_a_checkpoint_keeps_the_draws_that_later_ones_are_compared_with(tmp_path):
    sizes = {"num_chains": 64, "num_warmup": 100, "progress": False}
    posterior = phx.mcmc(banana(8.0), kernel=phx.laps(), num_samples=5, **sizes)
    posterior.save(tmp_path / "run.npz")
    sampler = phx.compile(banana(8.0), kernel=phx.laps(), num_chains=64)
    continued = sampler.continue_run(phx.Posterior.load(tmp_path / "run.npz"), 5, progress=False)
    whole = phx.mcmc(banana(8.0), kernel=phx.laps(), num_samples=10, **sizes)
    assert continued.state.settling.count == whole.state.settling.count > 0
    np.testing.assert_array_equal(continued.state.settling.draws["y"], whole.state.settling.draws["y"])
    assert continued.record.findings == whole.record.findings


@pytest.mark.slow
def test_chains_that_have_not_arrived_are_hardly_ever_good():
    far = {"b": np.full(3, 3e3, np.float32)}
    runs = [
        *verdicts(banana(8.0), 300, 4), *verdicts(banana(5.0), 200, 4), *verdicts(banana(3.0), 100, 4),
        *verdicts(funnel(3.0, 9), 300, 4), *verdicts(regression, 20, 4, far),
        *verdicts(normals(*np.geomspace(1e-4, 1e4, 6)), 30, 4),
    ]  # fmt: skip
    assert len(runs) == 24 and sum(map(is_good, runs)) <= 1


@pytest.mark.slow
def test_chains_that_have_arrived_are_mostly_good():
    # each fails with a probability of .01, and of 20 more than two once in 1,000 trials
    runs = [
        *verdicts(regression, 200, 5), *verdicts(normals(1.0, 10.0, 0.1, 3.0), 200, 5), *verdicts(positive, 100, 5),
        *verdicts(banana(0.5, 1.0), 200, 5),
    ]  # fmt: skip
    assert len(runs) == 20 and sum(not is_good(verdict) for verdict in runs) <= 2
