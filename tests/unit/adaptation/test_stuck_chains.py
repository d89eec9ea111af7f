"""Chains that have settled in the wrong place: who is moved, and who is not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phalanx as phx
from phalanx.adaptation import stuck_chains as stuck_module
from phalanx.adaptation.stuck_chains import (
    SETTLED,
    HostTarget,
    Region,
    StuckChains,
    log_mass_at_least,
    log_mass_at_most,
    normals,
)
from phalanx.adaptation.tuner import Sample
from phalanx.run.engine import Engine
from phalanx.run.phases.warm_up import host_target_of


class Mode:
    """A normal mode of a mixture, with the logarithm of its mass."""

    def __init__(self, mean, root, log_mass):
        self.mean, self.root, self.log_mass = mean, root, log_mass

    def draw(self, random, count):
        return self.mean + random.normal(size=(count, len(self.mean))) @ self.root.T

    def log_density(self, rows):
        z = np.linalg.solve(self.root, (rows - self.mean).T)
        size = 0.5 * len(self.mean) * np.log(2 * np.pi) + np.linalg.slogdet(self.root)[1]
        return self.log_mass - 0.5 * np.square(z).sum(0) - size


def spherical(centre, scale, log_mass, size=3):
    return Mode(np.full(size, centre), scale * np.eye(size), log_mass)


def log_density_of(modes):
    return lambda rows: np.logaddexp.reduce([mode.log_density(rows) for mode in modes])


def relocations(modes, draws=100, of_chain=None, seed=0, log_density=None):
    """Return the relocations of chains that each draw from a mode of a mixture."""
    random = np.random.default_rng(seed)
    of_chain = modes if of_chain is None else [modes[i] for i in of_chain]
    rows = np.concatenate([mode.draw(random, draws) for mode in of_chain])
    return relocations_of(rows, log_density_of(modes), len(of_chain), log_density)


def relocations_of(rows, heights, chains, log_density=None):
    """The same of draws, as many of each chain, one chain after the other."""
    stuck = StuckChains(chains, HostTarget(np.arange(rows.shape[1]), log_density or heights, 0))
    return stuck.relocations(Sample([rows], [], heights(rows), np.repeat(np.arange(chains), len(rows) // chains)), 1)


def moved(found):
    return {move.chain: move.beside for move in found}


def correlated(size, variance, common):
    return np.linalg.cholesky(variance * np.eye(size) + common)


@pytest.mark.parametrize("size, draws", [(1, 400), (2, 400), (20, 400), (200, 1000), (200, 50)])
@pytest.mark.parametrize("common", [0.0, 10.0])
def test_the_mass_of_a_region_lies_between_the_bounds(size, draws, common):
    mode, random = Mode(np.arange(size) - 3.0, correlated(size, 0.04, common), -7.0), np.random.default_rng(size)
    rows = mode.draw(random, draws)
    region = Region(rows, mode.log_density(rows), np.repeat(np.arange(2), draws // 2))
    assert log_mass_at_most(region) > -7.0 - 0.05 * size - 1
    assert log_mass_at_least(normals(region)[0], mode.log_density, random, 256) < -7.0
    if draws >= 20 * size:  # with enough draws the bounds are close
        assert log_mass_at_most(region) < -7.0 + 0.1 * size + 1
        assert log_mass_at_least(normals(region)[0], mode.log_density, random, 256) > -7.0 - 0.1 * size - 8


def banana(random, count):
    x = random.normal(size=(count, 2)) * [3.0, 0.1]
    return x + np.column_stack([np.zeros(count), np.square(x[:, 0])])


def log_banana(rows):
    y = rows[:, 1] - np.square(rows[:, 0])
    return -0.5 * (np.square(rows[:, 0] / 3) + np.square(y / 0.1)) - np.log(2 * np.pi * 0.3)


def funnel(random, count):
    v = 1.5 * random.normal(size=count)
    return np.column_stack([v, np.exp(v / 2)[:, None] * random.normal(size=(count, 9))])


def log_funnel(rows):
    v, x = rows[:, 0], rows[:, 1:]
    return (-0.5 * np.square(v / 1.5) - np.log(1.5) - 0.5 * np.square(x).sum(1) * np.exp(-v) - 4.5 * v) - 5 * np.log(
        2 * np.pi
    )


def cauchy(random, count):
    return random.standard_cauchy((count, 2))


def log_cauchy(rows):
    return -np.log1p(np.square(rows)).sum(1) - 2 * np.log(np.pi)


def plateau(random, count):
    return random.uniform(0, 4, (count, 5))


def log_plateau(rows):
    return np.where(((rows >= 0) & (rows <= 4)).all(1), -5 * np.log(4.0), -np.inf)


SHAPES = [(banana, log_banana), (funnel, log_funnel), (cauchy, log_cauchy), (plateau, log_plateau)]


@pytest.mark.parametrize("draw, log_density", SHAPES, ids=["banana", "funnel", "cauchy", "plateau"])
def test_the_bounds_hold_for_any_shape(draw, log_density):
    broken = 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        rows = draw(random, 200)
        region = Region(rows, log_density(rows), np.repeat(np.arange(2), 100))
        most = log_mass_at_most(region)
        least = log_mass_at_least(normals(region)[0], log_density, random, 256)
        broken += (most < -2.0) + (least > 0.0)
    assert broken == 0


def test_a_chain_whose_region_has_no_mass_goes_on_beside_another():
    (move,) = relocations([spherical(0.0, 1.0, 0.0), spherical(50.0, 1.0, -40.0)], of_chain=[0, 1, 0])
    assert move[:2] == (1, 0) and -40 < move.log_fraction < -25


@settings(max_examples=40, deadline=None)
@given(
    size=st.sampled_from([1, 2, 8, 20]),
    common=st.sampled_from([0.0, 1.0, 10.0, 100.0]),
    scale=st.sampled_from([1e-4, 0.2, 1.0, 30.0]),
    gap=st.floats(-9.0, 9.0),
    draws=st.sampled_from([20, 40, 130, 500]),
    chains=st.sampled_from([2, 4, 16]),
    seed=st.integers(0, 2**32 - 1),
)
def test_modes_that_both_count_keep_their_chains(size, common, scale, gap, draws, chains, seed):
    one = Mode(np.full(size, -900.0), scale * np.eye(size), 0.0)
    other = Mode(np.full(size, 900.0), correlated(size, 0.04, common), gap)
    assert relocations([one, other], draws, [0, 1] * (chains // 2), seed) == []


def test_a_narrow_mode_that_has_the_mass_keeps_its_chains():
    # the wide one is overrated a hundred thousandfold by a normal distribution without correlations
    modes = [
        Mode(np.full(20, 2.0), 0.2 * np.eye(20), np.log(0.99)),
        Mode(np.full(20, -900.0), correlated(20, 0.04, 10), np.log(0.01)),
    ]
    for draws in (20, 40, 130):
        assert relocations(modes, draws, [0, 1] * 8) == []


@pytest.mark.parametrize("moves", [0, 1, 5])
def test_a_chain_that_hardly_moves_tells_nothing(moves):
    # in a spike where nearly every proposal is rejected: its mass is unknown
    def log_density(rows):
        return -0.5 * np.square(rows).sum(1)

    random = np.random.default_rng(0)
    still = np.full((100, 4), 50.1)
    still[:moves] += 1e-3 * random.normal(size=(moves, 4))
    rows = np.concatenate([random.normal(size=(100, 4)), still])
    assert relocations_of(rows, log_density, 2) == []


def test_a_chain_on_its_way_tells_nothing():
    def log_density(rows):
        return -0.5 * np.square(rows).sum(1)

    random = np.random.default_rng(0)
    way = np.linspace(1000, 900, 100)[:, None] + 0.1 * random.normal(size=(100, 4))
    rows = np.concatenate([random.normal(size=(100, 4)), way])
    assert relocations_of(rows, log_density, 2) == []


def test_few_draws_tell_nothing():
    modes = [spherical(0.0, 1.0, 0.0), spherical(50.0, 1.0, -900.0)]
    assert relocations(modes, draws=SETTLED - 1) == []
    assert moved(relocations(modes, draws=SETTLED)) == {1: 0}


def test_too_many_chains_have_no_stuck_ones(monkeypatch):
    modes = [spherical(0.0, 1.0, 0.0), spherical(50.0, 1.0, -90.0)]
    assert moved(relocations(modes)) == {1: 0}
    monkeypatch.setattr(stuck_module, "MOST_NUMBERS", SETTLED * 2 * 3 - 1)
    assert relocations(modes) == []


def test_places_without_mass_are_told_by_evaluating_the_density_where_there_is_some():
    # a density that no draw has shown: the bound from below must not trust the draws alone
    modes = [spherical(0.0, 1.0, 0.0), spherical(50.0, 1.0, -40.0)]
    assert moved(relocations(modes)) == {1: 0}
    assert relocations(modes, log_density=lambda rows: np.full(len(rows), -np.inf)) == []


def two_modes(gap, at=30.0):
    """Modes at -30 and 30; the second has a mass that is exp(-gap) of the first's."""

    def model():
        x = phx.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))
        heights = jnp.stack([dist.Normal(-at, 1.0).log_prob(x), dist.Normal(at, 1.0).log_prob(x) - gap])
        phx.factor("modes", jnp.logaddexp(heights[0], heights[1]))

    return model


def run(gap, **options):
    return phx.mcmc(two_modes(gap), num_chains=8, num_warmup=200, num_samples=100, progress=False, **options)


@pytest.mark.parametrize(
    "kernel, data",
    [(lambda **given: phx.hmc(5, **given), 1), pytest.param(phx.nuts, 2, marks=pytest.mark.slow)],
    ids=["hmc", "nuts"],
)
def test_warm_up_leaves_no_chain_in_a_mode_without_mass(kernel, data):
    mesh = phx.make_mesh(data=data, devices=jax.devices()[:4])
    posterior = run(40.0, mesh=mesh, kernel=kernel())
    assert 1 <= posterior.record.relocated_chains <= 7
    (finding,) = (finding for finding in posterior.verdict().findings if finding.topic == "relocated chains")
    assert finding.grade == "usable"  # the chains agree now, or another finding says that they do not
    assert f"{posterior.record.relocated_chains} of 8 chains" in finding.problem and "beside chain" in finding.problem
    assert "less than 1e-" in finding.problem and "relocate=False" in finding.advice
    assert (posterior.draws["x"] < 0).all()
    assert len(np.unique(posterior.draws["x"][:, 0])) == 8  # beside one another, not on the same way
    stays = run(40.0, mesh=mesh, kernel=kernel(relocate=False))
    assert stays.record.relocated_chains == 0 and (stays.draws["x"] > 0).any() and not stays.verdict().good


@pytest.mark.slow
def test_two_modes_that_both_count_keep_their_chains():
    posterior = run(2.0)
    assert posterior.record.relocated_chains == 0 and not posterior.record.findings
    assert (posterior.draws["x"] < 0).any() and (posterior.draws["x"] > 0).any()


@pytest.mark.parametrize("kernel", [phx.nuts, phx.hmc, phx.chees, phx.mams, phx.laps, phx.rwmh])
def test_every_kernel_that_is_tuned_can_leave_chains_where_they_are(kernel):
    assert kernel().relocates and not kernel(relocate=False).relocates


def groups(y):
    centre = phx.sample("centre", dist.Normal(0.0, 1.0))
    phx.sample("each", dist.Normal(centre, 1.0).expand([len(y), 2]).to_event(1))
    side = phx.sample("side", dist.ImproperUniform(dist.constraints.real, (), ()))
    phx.factor("modes", jnp.logaddexp(dist.Normal(-30, 1.0).log_prob(side), dist.Normal(30, 1.0).log_prob(side) - 60))


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 8))])
def test_on_every_mesh_the_same_chains_are_moved(devices):
    mesh = phx.make_mesh(chain=1, data=devices, devices=jax.devices()[:devices])
    data = {"y": phx.shard(np.zeros(11), mesh)}  # rows that no mesh of several devices divides
    sampler = phx.compile(groups, data, kernel=phx.hmc(5), num_chains=4, mesh=mesh)
    host_target = host_target_of(Engine(sampler.executables, 0, sampler.arrays))
    assert len(host_target.columns) == 24
    rows = np.linspace(-1, 1, 5 * 24).reshape(5, 24)
    each, centre, side = rows[:, 1:23], rows[:, :1], rows[:, 23]
    expected = -0.5 * (np.square(each - centre).sum(1) + centre[:, 0] ** 2) + np.logaddexp(
        -0.5 * np.square(side + 30), -0.5 * np.square(side - 30) - 60
    )
    found = host_target.log_density(rows)
    np.testing.assert_allclose(found - found[0], expected - expected[0], rtol=1e-4)
    posterior = sampler.run(seed=1, num_warmup=100, num_samples=20, progress=False)
    (finding,) = posterior.record.findings
    moved = finding.problem.partition(":")[0]  # what follows differs by rounding
    assert MOVED.setdefault("chains", moved) == moved
    assert posterior.record.relocated_chains and (posterior.draws["side"] < 0).all()


MOVED: dict[str, str] = {}
