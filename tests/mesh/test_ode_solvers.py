"""Differential equations solved inside a model: by JAX's own solver, and by diffrax where it is installed."""

from __future__ import annotations

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.experimental.ode import odeint

import phalanx as phx

RATE, START, NOISE = 0.7, 3.0, 0.05
TIMES = np.linspace(0.0, 2.0, 6, dtype=np.float32)
SEEN = (START * np.exp(-RATE * TIMES) + NOISE * np.random.default_rng(0).normal(size=6)).astype(np.float32)


def by_jax(rate, start, times):
    return odeint(lambda level, time, rate: -rate * level, start, times, rate)


def by_diffrax(rate, start, times):
    diffrax = pytest.importorskip("diffrax", reason="diffrax is not installed")
    control = diffrax.PIDController(rtol=1e-5, atol=1e-5)
    term, save = diffrax.ODETerm(lambda time, level, rate: -rate * level), diffrax.SaveAt(ts=times)
    return diffrax.diffeqsolve(
        term, diffrax.Tsit5(), 0.0, 2.0, 0.1, start, args=rate, saveat=save, stepsize_controller=control
    ).ys


def decay_by(solve):
    def decay(times, seen):
        rate = phx.sample("rate", dist.LogNormal(0.0, 1.0))
        start = phx.sample("start", dist.LogNormal(1.0, 1.0))
        phx.sample("seen", dist.Normal(solve(rate, start, times), NOISE), obs=seen)

    return decay


DATA = {"times": TIMES, "seen": SEEN}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mean_field", "full_rank", "low_rank", "laplace", "pathfinder", "flow", "structured"])
def test_every_guide_learns_through_a_solver_without_forward_mode(name):
    fit = phx.fit(decay_by(by_jax), getattr(phx.guides, name)(), DATA, num_steps=300, progress=False)
    draws = fit.sample(n=500)
    assert abs(draws["rate"].mean() - RATE) < 0.1 and abs(draws["start"].mean() - START) < 0.2
    assert "no number" not in [finding.topic for finding in fit.verdict().findings]


@pytest.mark.slow
@pytest.mark.parametrize("solve", [by_jax, by_diffrax])
def test_the_maximum_of_a_solver_is_that_of_its_solution(solve):
    solution = decay_by(lambda rate, start, times: start * jax.numpy.exp(-rate * times))
    expected, found = (phx.maximize(model, DATA).values for model in (solution, decay_by(solve)))
    assert found["rate"] == pytest.approx(expected["rate"], abs=2e-3)
    assert found["start"] == pytest.approx(expected["start"], abs=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("solve", [by_jax, by_diffrax])
def test_chains_and_fits_run_through_a_solver_on_two_devices(solve):
    sizes = {"num_chains": 2, "num_warmup": 200, "num_samples": 200, "progress": False}
    pair = phx.make_mesh(chain=2, devices=jax.devices()[:2])
    run = phx.mcmc(decay_by(solve), DATA, mesh=pair, **sizes)
    fit = phx.fit(decay_by(solve), phx.guides.mean_field(), DATA, mesh=pair, num_steps=200, progress=False)
    for draws in (run.draws, fit.sample(n=500)):
        assert abs(draws["rate"].mean() - RATE) < 0.1 and abs(draws["start"].mean() - START) < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("solve", [by_jax, by_diffrax])
def test_a_solver_for_each_row_of_sharded_data_runs(solve):
    starts = np.linspace(1.0, 3.0, 8, dtype=np.float32)

    def subjects(starts, ends):
        rate = phx.sample("rate", dist.LogNormal(0.0, 1.0))
        solved = jax.vmap(lambda start: solve(rate, start, TIMES)[-1])(starts)
        phx.sample("ends", dist.Normal(solved, NOISE), obs=ends)

    mesh = phx.make_mesh(chain=1, data=2, devices=jax.devices()[:2])
    data = phx.shard({"starts": starts, "ends": starts * np.exp(-2.0 * RATE).astype(np.float32)}, mesh)
    sizes = {"num_chains": 2, "num_warmup": 200, "num_samples": 200, "progress": False}
    run = phx.mcmc(subjects, data, mesh=mesh, **sizes)
    fit = phx.fit(subjects, phx.guides.mean_field(), data, mesh=mesh, num_steps=200, progress=False)
    for draws in (run.draws, fit.sample(n=500)):
        assert abs(draws["rate"].mean() - RATE) < 0.1
