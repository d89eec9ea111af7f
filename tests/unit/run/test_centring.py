"""`phx.nuts(centring=...)`: exact answers where the model as written fails, and a run that goes on as any other."""

from __future__ import annotations

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import phalanx as phx
from phalanx.programs.centring import CENTRING
from phalanx.run.phases import warm_up

SCALES = np.array([0.1, 0.3, 1.0, 3.0, 10.0, 30.0], np.float32)
Y = np.array([1.2, -0.5, 0.4, 2.0, -6.0, 11.0], np.float32)
QUIET = {"progress": False, "num_chains": 8}


def hierarchy(y, s):
    """Groups of which data say from much to nothing."""
    mu = phx.sample("mu", dist.Normal(0.0, 2.0))
    tau = phx.sample("tau", dist.HalfNormal(1.0))
    theta = phx.sample("theta", dist.Normal(mu, tau).expand([len(s)]).to_event(1))
    phx.sample("y", dist.Normal(theta, s).to_event(1), obs=y)


def exact():
    """Means of tau, mu and theta, and their standard deviations, by a sum over a grid of tau."""
    tau = np.linspace(1e-3, 6, 4000)
    precision = 1 / (tau[:, None] ** 2 + SCALES.astype(float) ** 2)
    var_mu = 1 / (0.25 + precision.sum(1))
    mu = var_mu * (precision * Y).sum(1)
    log = (
        stats.halfnorm.logpdf(tau) + stats.norm.logpdf(mu, 0, 2) + 0.5 * np.log(var_mu)
        + stats.norm.logpdf(Y, mu[:, None], precision**-0.5).sum(1)
    )  # fmt: skip
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    pull = SCALES**-2.0 / (SCALES**-2.0 + tau[:, None] ** -2.0)
    theta = pull * Y + (1 - pull) * mu[:, None]
    var_theta = 1 / (SCALES**-2.0 + tau[:, None] ** -2.0) + (1 - pull) ** 2 * var_mu[:, None]

    def moments(mean, variance):
        whole = weight @ mean
        return whole, np.sqrt(weight @ (variance + (mean - whole) ** 2))

    return {"tau": moments(tau, 0 * tau), "mu": moments(mu, var_mu), "theta": moments(theta, var_theta)}


@pytest.fixture(scope="module")
def run():
    kernel = phx.nuts(centring="auto", target_acceptance=0.95)
    return phx.mcmc(hierarchy, {"y": Y, "s": SCALES}, kernel=kernel, num_samples=1500, num_warmup=400, **QUIET)


def check_exact(posterior, at_most=4.75):
    """Compare means with the exact ones: of sixteen quantities one fails by chance in 1 of 30,000 runs."""
    table = posterior.summary()
    for name, (mean, sd) in exact().items():
        rows = table.loc[[row for row in table.index if row.split("[")[0] == name]]
        assert (np.abs(rows["mean"] - mean) < at_most * rows["mcse_mean"] + 2e-3).all(), (name, mean, rows)
        assert (np.abs(rows["sd"] - sd) < at_most * rows["mcse_sd"] + 2e-3).all(), (name, sd, rows)


def test_draws_are_those_of_the_posterior(run):
    check_exact(run)
    assert run.verdict().grade != "not good"


def test_weights_follow_what_data_say_of_each_group(run):
    weights = run.state.centring["theta"][0]
    assert weights[0] > 0.8 and weights[-1] < 0.2 and weights[0] > weights[3] > weights[-1] - 0.15


def test_summary_record_and_verdict_say_what_was_moved(run):
    mean, least, greatest = run.record.centring["theta"]
    weights = f"theta {mean:.2g} ({least:.2g} to {greatest:.2g})"
    note = f"Centring of positions (1 is centred, 0 non-centred): {weights}."
    assert note in str(run.summary()) and note in run.verdict().passed
    assert note in run.summary()._repr_html_()


@pytest.mark.slow
def test_files_containers_and_predictions_know_nothing_of_it(run, tmp_path):
    loaded = phx.Posterior.load(run.save(tmp_path / "run.npz"))
    assert loaded.record.centring == run.record.centring
    np.testing.assert_array_equal(loaded.state.centring["theta"], run.state.centring["theta"])
    assert not any(CENTRING in name for name in run.to_arviz()["constant_data"])
    assert run.predictive(num_draws=5)["y"].shape[-1] == len(Y)
    other = run.predictive({"y": None, "s": SCALES}, num_draws=5)
    assert other["y"].shape[-1] == len(Y)
    likelihood = run.log_likelihood()["y"]
    np.testing.assert_allclose(
        likelihood.sum(-1) if likelihood.ndim == 3 else likelihood,
        stats.norm.logpdf(Y, run.draws["theta"], SCALES).sum(-1), rtol=1e-3, atol=1e-3,
    )  # fmt: skip


SHORT = {"num_warmup": 60, "num_samples": 40, "progress": False}


@pytest.fixture(scope="module")
def sampler():
    return phx.compile(hierarchy, {"y": Y, "s": SCALES}, kernel=phx.nuts(5, centring="auto"))


@pytest.mark.slow
def test_the_tuning_of_a_posterior_has_its_centring(sampler):
    first = sampler.run(0, **SHORT)
    again = sampler.run(1, tuning=first, num_warmup=0, num_samples=40, progress=False)
    np.testing.assert_array_equal(again.state.centring["theta"], first.state.centring["theta"])
    further = sampler.run(1, tuning=first, **SHORT)
    assert not np.array_equal(further.state.centring["theta"], first.state.centring["theta"])


@pytest.mark.slow
@pytest.mark.parametrize(("was", "now"), [("auto", None), (None, "auto"), (["theta"], ["x"])])
def test_tuning_of_other_positions_is_refused(was, now):
    def model(y, s):
        hierarchy(y, s)
        phx.sample("x", dist.Normal(phx.sample("a", dist.Normal(0.0, 1.0)), 1.0))

    data = {"y": Y, "s": SCALES}
    first = phx.mcmc(model, data, kernel=phx.nuts(3, centring=was), num_warmup=20, num_samples=5, progress=False)
    with pytest.raises(ValueError, match="tuning: the posterior's step size and metric belong to positions with"):
        phx.mcmc(model, data, kernel=phx.nuts(3, centring=now), tuning=first, num_warmup=0, progress=False)


def test_log_density_is_that_of_the_models_own_position(run):
    """It does not depend on what warm-up learned: with the Jacobian of log tau, and none of theta."""
    tau, mu, theta = (np.asarray(run[name], float) for name in ("tau", "mu", "theta"))
    expected = (
        stats.norm.logpdf(mu, 0, 2) + stats.halfnorm.logpdf(tau) + np.log(tau)
        + stats.norm.logpdf(theta, mu[..., None], tau[..., None]).sum(-1) + stats.norm.logpdf(Y, theta, SCALES).sum(-1)
    )  # fmt: skip
    np.testing.assert_allclose(run.stats["log_density"], expected, atol=2e-3)


@pytest.mark.slow
def test_a_variable_without_elements_is_left_alone():
    def model(y, s):
        hierarchy(y, s)
        phx.sample("nothing", dist.Normal(phx.sample("a", dist.Normal(0.0, 1.0)), 1.0).expand([0]))

    data = {"y": Y, "s": SCALES}
    run = phx.mcmc(model, data, kernel=phx.nuts(3, centring="auto"), num_warmup=20, num_samples=5, progress=False)
    assert set(run.record.centring) == {"theta"} and "nothing" in run.draws


@pytest.mark.slow
def test_messages_and_records_do_not_show_the_argument(sampler):
    assert set(sampler.record.data) == {"y", "s"}
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'") as error:
        sampler.run(0, {"z": Y}, progress=False)
    assert "_phalanx" not in str(error.value)


@pytest.mark.slow
def test_a_run_that_goes_on_is_one_longer_run(sampler, tmp_path):
    whole = sampler.run(3, num_warmup=60, num_samples=100, progress=False)
    half = sampler.run(3, **SHORT)
    loaded = phx.Posterior.load(half.save(tmp_path / "half.npz"))
    for part in (half, loaded):
        both = sampler.continue_run(part, 60, progress=False)
        for name, values in whole.draws.items():
            np.testing.assert_array_equal(both.draws[name], values)


def test_gradients_that_find_a_centring_are_counted(sampler, monkeypatch):
    """Those of the windows' draws and of the chains, each in the old positions and in the new ones."""
    whole, found, made_by = sampler.run(0, **SHORT), [], warm_up.recentring_of

    def uncounted(engine, sample):
        made = made_by(engine, sample)
        found.append((made.evaluations, len(sample.chain)))
        return made._replace(evaluations=0)

    monkeypatch.setattr(warm_up, "recentring_of", uncounted)
    less = sampler.run(0, **SHORT)
    assert [evaluations for evaluations, _ in found] == [2 * (draws + 4) for _, draws in found] and found
    counted = whole.timing.gradient_evaluations - less.timing.gradient_evaluations
    assert counted == sum(evaluations for evaluations, _ in found)


def test_other_data_begin_at_the_first_centring(sampler):
    """A run on other data does not depend on the runs before, and ends with a centring of its own."""
    data = {"y": Y[::-1].copy(), "s": SCALES[::-1].copy()}
    found = [sampler.run(5, data, **SHORT) for _ in range(2)]
    np.testing.assert_array_equal(found[0].draws["theta"], found[1].draws["theta"])
    weights = found[0].state.centring["theta"][0]
    assert weights[-1] > weights[0]


def test_a_checkpoint_and_a_store_end_with_the_same_draws(tmp_path):
    def call(**more):
        kernel = phx.nuts(5, centring=["theta"])
        return phx.mcmc(hierarchy, {"y": Y, "s": SCALES}, kernel=kernel, seed=2, **SHORT, **more)

    def stop(report):
        if report.phase == phase and report.done >= 20:
            raise RuntimeError("lost")

    whole = call()
    for phase in ("warm-up", "sampling"):
        folder = phx.checkpoint(tmp_path / phase, seconds=0.0)
        with pytest.raises(RuntimeError, match="lost"):
            call(checkpoint=folder, store=tmp_path / f"{phase}.zarr", on_block=stop)
        ended = call(checkpoint=folder, store=tmp_path / f"{phase}.zarr")
        np.testing.assert_array_equal(np.asarray(ended.draws["theta"]), whole.draws["theta"])
    assert phx.open(tmp_path / "sampling.zarr").record.centring == whole.record.centring


@pytest.mark.slow
def test_rows_over_devices_have_one_weight_and_the_exact_answer():
    mesh = phx.make_mesh(chain=2, data=4)  # six rows do not divide evenly over four devices

    def model(y, s):
        mu = phx.sample("mu", dist.Normal(0.0, 2.0))
        tau = phx.sample("tau", dist.HalfNormal(1.0))
        theta = phx.sample("theta", dist.Normal(mu, tau).expand([y.shape[0]]))
        phx.sample("y", dist.Normal(theta, s), obs=y)

    data = {"y": phx.shard(Y, mesh), "s": phx.shard(SCALES, mesh)}
    kernel = phx.nuts(centring="auto", target_acceptance=0.95)
    posterior = phx.mcmc(model, data, kernel=kernel, num_samples=1500, num_warmup=400, **QUIET)
    check_exact(posterior)
    assert np.shape(posterior.state.centring["theta"]) == (2,)


@pytest.mark.slow
@pytest.mark.parametrize("chains", [4, 256])
def test_neals_funnel(chains):
    """In ten dimensions, P(omega < -5) = .0478; as written, no draw gets there."""

    def funnel():
        omega = phx.sample("omega", dist.Normal(0.0, 3.0))
        phx.sample("x", dist.Normal(0.0, np.e ** (omega / 2)).expand([9]).to_event(1))

    posterior = phx.mcmc(
        funnel, kernel=phx.nuts(centring="auto"), num_chains=chains, num_samples=16_000 // chains, progress=False
    )
    below = posterior.draws["omega"] < -5
    exact = stats.norm.cdf(-5 / 3)
    assert abs(below.mean() - exact) < 5 * np.sqrt(exact / phx.diagnostics.ess(below.astype(float)))
    assert posterior.timing.lane_efficiency > 0.6
    assert {finding.topic for finding in posterior.verdict().findings} <= {"prior only", "heavy tails"}


def test_where_nothing_can_be_moved_a_line_says_so(capsys):
    posterior = phx.mcmc(
        lambda: phx.sample("x", dist.Normal(0.0, 1.0)), kernel=phx.nuts(3, centring="auto"), num_warmup=20,
        num_samples=10,
    )  # fmt: skip
    assert "the model stays as it is" in capsys.readouterr().err
    assert posterior.record.centring == {} and posterior.record.notes == ()


@pytest.mark.parametrize("centring", [3, [], [3], {"theta": 0.5}, True])
def test_wrong_centring_is_refused(centring):
    with pytest.raises(ValueError, match="centring must be"):
        phx.nuts(centring=centring)


def test_runs_without_a_warm_up_of_all_chains_refuse_it():
    kernel = phx.nuts(centring="auto")
    with pytest.raises(ValueError, match="learns a centring in a warm-up"):
        phx.smc(hierarchy, {"y": Y, "s": SCALES}, kernel=kernel, progress=False)
    with pytest.raises(ValueError, match="run on many data sets"):
        phx.mcmc(hierarchy, {"y": Y[:, None], "s": SCALES}, each={"y": 1}, kernel=kernel, progress=False)
