"""`phx.smc` against closed forms, with several kernels, and its result."""

from __future__ import annotations

import blackjax
import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from tests.unit.particles.closed_forms import (
    CLOSED_FORMS,
    X,
    Y,
    evidence_of_two_modes,
    gamma_poisson,
    regression,
    two_modes,
)

import phalanx as phx

DATA = {"x": X, "y": Y}
KERNEL = phx.hmc(num_steps=4)
FEW = {"kernel": KERNEL, "num_particles": 256, "progress": False}
"""Of most tests, so that they share compiled programs."""

SLOW = pytest.mark.slow
KERNELS = {
    "nuts": phx.nuts(),
    "hmc": phx.hmc(num_steps=5),
    "rwmh": phx.rwmh(),
    "chees": phx.chees(),
    "mams": phx.mams(),
    "blackjax mala": phx.from_blackjax(lambda log_density: blackjax.mala(log_density, 0.05)),
}


def off(found, log_evidence: float) -> float:
    """Return the distance of an estimate from the truth in its standard errors."""
    return abs(found.log_evidence - log_evidence) / found.error


@pytest.mark.parametrize(
    "name",
    [pytest.param("regression", marks=pytest.mark.slow), "gamma-poisson", pytest.param("beta-binomial", marks=SLOW)],
)
def test_the_evidence_has_a_closed_form(name):
    """A correct estimate is off by 4.5 errors in one of 150,000 runs, or few more, as the error is known to 10%."""
    form = CLOSED_FORMS[name]
    particles = phx.smc(form.model, form.data, **FEW)
    assert off(particles.evidence(), form.log_evidence) < 4.5
    assert particles.evidence().error < 0.25 and particles.evidence().reliable


@pytest.mark.slow
def test_a_prime_number_of_particles_in_tiles(mesh_of):
    form = CLOSED_FORMS["gamma-poisson"]
    particles = phx.smc(form.model, form.data, mesh=mesh_of(2, 1), **{**FEW, "num_particles": 2 * 131})
    assert off(particles.evidence(), form.log_evidence) < 4.5


@SLOW
@pytest.mark.parametrize("persistent", [False, True], ids=["tempered", "persistent"])
@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_the_error_of_the_evidence_covers_the_truth(name, persistent):
    """At least 38 of 40 runs are within 3 errors; if 99.7% were, fewer would be in one of 1,000 suites."""
    form = CLOSED_FORMS[name]
    found = [
        phx.smc(form.model, form.data, seed=seed, num_particles=1024, persistent=persistent, progress=False).evidence()
        for seed in range(40)
    ]
    within = [off(one, form.log_evidence) < 3 for one in found]
    assert sum(within) >= 38
    values = np.array([one.log_evidence for one in found])
    # neither much too large: 40 runs know their spread to 11%
    assert 0.6 < np.mean([one.error for one in found]) / values.std() < 1.7


@SLOW
@pytest.mark.parametrize("share", [0.99, 0.5])
def test_two_modes_in_twenty_dimensions_are_weighted_right(share):
    runs = [phx.smc(two_modes(share, 20), seed=seed, num_particles=2048, progress=False) for seed in range(8)]
    shares = np.array([np.mean(run.draws["x"].mean(1) > 0) for run in runs])
    assert abs(shares.mean() - share) < 5 * max(shares.std(ddof=1), 0.002) / np.sqrt(8)
    assert shares.std() < 0.05
    for run in runs:
        assert off(run.evidence(), evidence_of_two_modes(20)) < 4.5
        assert (np.abs(run.draws["x"]).mean(0) > 1).all()


@SLOW
def test_two_modes_in_three_dimensions():
    particles = phx.smc(two_modes(0.8, 3), num_particles=1024, kernel=phx.hmc(num_steps=5), progress=False)
    assert abs(np.mean(particles.draws["x"].mean(1) > 0) - 0.8) < 0.12
    assert off(particles.evidence(), evidence_of_two_modes(3)) < 4.5


@pytest.mark.slow
@pytest.mark.parametrize("name", [n if n == "nuts" else pytest.param(n, marks=SLOW) for n in KERNELS])
def test_any_kernel_moves_the_particles(name):
    form = CLOSED_FORMS["regression"]
    mesh = phx.make_mesh(chain=2, devices=jax.devices()[:2])
    particles = phx.smc(form.model, form.data, mesh=mesh, **{**FEW, "kernel": KERNELS[name]})
    assert off(particles.evidence(), form.log_evidence) < 4.5
    precision = np.eye(3) + X.T.astype(np.float64) @ X
    mean, sd = np.linalg.solve(precision, X.T @ Y), np.sqrt(np.diag(np.linalg.inv(precision)))
    draws = particles.draws["weights"]
    # 256 relatives are worth about a hundred draws at least: 5 standard errors
    assert (np.abs(draws.mean(0) - mean) < 5 * sd / 10).all()
    assert (np.abs(draws.std(0) / sd - 1) < 0.4).all()


@pytest.mark.slow
def test_persistent_sampling_weighs_the_particles_of_all_temperatures():
    form = CLOSED_FORMS["regression"]
    some = phx.smc(form.model, form.data, persistent=True, target_ess=0.8, **FEW)
    last = phx.smc(form.model, form.data, target_ess=0.8, **FEW)
    assert off(some.evidence(), form.log_evidence) < 4.5
    assert len(some.temperatures) < len(last.temperatures)


def test_the_result():
    reports = []
    particles = phx.smc(gamma_poisson, CLOSED_FORMS["gamma-poisson"].data, on_block=reports.append, **FEW)
    posterior, course = particles.posterior(), particles.stages
    assert posterior.draws["rate"].shape == (1, 256) and posterior.draws["rate"].min() > 0
    assert posterior.record.num_samples == 256 and posterior.record.independent
    target = phx.Target(gamma_poisson, CLOSED_FORMS["gamma-poisson"].data)
    at = target.unconstrain({"rate": posterior.draws["rate"][0, 3]})
    np.testing.assert_allclose(target.log_density(at), posterior.stats["log_density"][0, 3], rtol=1e-4)
    assert set(particles.summary().index) == {"log_density", "rate"}
    assert particles.verdict().good == posterior.verdict().good
    assert particles.temperatures[0] == 0 and particles.temperatures[-1] == 1
    assert {len(values) for values in course.values()} == {len(particles.temperatures) - 1}
    assert [report.temperature for report in reports] == list(course["temperature"])
    assert reports[-1].done == reports[-1].total == 100
    assert posterior.predictive()["counts"].shape == (1, 256, 6)
    assert "log evidence" in repr(particles) and "log evidence" in particles._repr_html_()


def test_one_program_serves_all_temperatures_and_a_second_call():
    compiled = []

    def listen(event: str, *_, **__) -> None:
        compiled.extend([event] if event == "/jax/core/compile/backend_compile_duration" else [])

    first = phx.smc(regression, DATA, **FEW)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        again = phx.smc(regression, DATA, seed=1, target_ess=0.8, **FEW)
    finally:
        jax.monitoring.clear_event_listeners()
    assert first.timing.compilations in (0, 8)  # an earlier test may have compiled them
    assert again.timing.compilations == 0 and compiled == []
    assert len(again.temperatures) > len(first.temperatures) > 3


def test_the_same_seed_gives_the_same_particles():
    runs = [phx.smc(regression, DATA, seed=seed, **FEW) for seed in (3, 3, 4)]
    np.testing.assert_array_equal(runs[0].draws["weights"], runs[1].draws["weights"])
    assert not np.array_equal(runs[0].draws["weights"], runs[2].draws["weights"])


def test_ctrl_c_ends_a_run_without_draws(ctrl_c):
    reports = []

    def press(report) -> None:
        reports.append(report)
        if len(reports) == 2:
            ctrl_c()

    with pytest.raises(KeyboardInterrupt):
        phx.smc(regression, DATA, on_block=press, **FEW)
    assert len(reports) == 2


@SLOW
def test_few_ancestors_are_a_finding():
    """A posterior far from the prior, and few particles."""

    def far():
        x = phx.sample("x", dist.Normal(0.0, 1.0).expand([8]))
        phx.sample("y", dist.Normal(x, 0.001), obs=np.full(8, 1.5, np.float32))

    particles = phx.smc(far, kernel=phx.hmc(num_steps=3), num_particles=64, num_moves=3, progress=False)
    assert "few ancestors" in [finding.topic for finding in particles.verdict().findings]
    assert particles.stages["ancestors"][-1] < 30


def test_a_drift_in_the_moves_is_a_finding(monkeypatch):
    """Moves that do not leave the distribution invariant change the log likelihood, as a transition does."""
    from phalanx.particles.programs import Programs

    moved = Programs.moved

    def heated(self, seed, arrays, chains, tuning, length, agree):
        """Move at a lower temperature than the weights are for."""
        *data, power = arrays
        return moved(self, seed, (*data, np.float32(0.7) * power), chains, tuning, length, agree)

    monkeypatch.setattr(Programs, "moved", heated)
    particles = phx.smc(regression, DATA, **FEW)
    found = {finding.topic: finding for finding in particles.verdict().findings}
    assert found["lagging particles"].grade == "not good" and not particles.evidence().reliable


@SLOW
def test_a_fixed_value_counts_as_data():
    """The density of a variable that `phx.substitute` fixes is part of the evidence: that of a standard normal at 0."""

    def model(y):
        x, z = (phx.sample(name, dist.Normal(0.0, 1.0)) for name in "xz")
        phx.sample("y", dist.Normal(x + 0.0 * z, 1.0), obs=y)

    plain = phx.smc(model, {"y": np.float32(0.5)}, **FEW).evidence()
    fixed = phx.smc(phx.substitute(model, {"z": 0.0}), {"y": np.float32(0.5)}, **FEW).evidence()
    gap = fixed.log_evidence - plain.log_evidence + 0.5 * np.log(2 * np.pi)
    assert abs(gap) < 4.5 * np.hypot(plain.error, fixed.error)


def test_factors_belong_to_the_likelihood():
    def model(y):
        x = phx.sample("x", dist.LogNormal(0.0, 1.0))
        phx.factor("constraint", -x)
        phx.sample("y", dist.Normal(x, 1.0), obs=y)

    terms = phx.Target(model, {"y": np.float32(0.5)}).sites.of_likelihood
    assert terms == (("constraint", "density"), ("y", "density"))
