"""The NUTS machine: lanes that do not wait draw what lanes in lock-step draw."""

from __future__ import annotations

import numpy as np
import numpyro.distributions as dist
import pytest
from tests.conformance.exact_starts import Drawer

import phalanx as phx
from phalanx.run.compile.block_length import BlockLength
from phalanx.run.device.executables import block_arguments, first_tuning
from phalanx.run.engine import Engine
from phalanx.run.init_values import Initial
from phalanx.run.phases.warm_up import WarmUpPhase

Y = np.array([28, 8, -3, 7, -1, 1, 18, 12], np.float32)
SIGMA = np.array([15, 10, 16, 11, 9, 11, 10, 18], np.float32)


def centred(y, sigma):
    mu = phx.sample("mu", dist.Normal(0.0, 5.0))
    tau = phx.sample("tau", dist.HalfCauchy(5.0))
    theta = phx.sample("theta", dist.Normal(mu, tau).expand([8]))
    phx.sample("y", dist.Normal(theta, sigma), obs=y)


def schools():
    theta = phx.sample("theta", dist.Normal(0.0, 5.0).expand([8]))
    phx.sample("y", dist.Normal(theta, SIGMA), obs=Y)


def sampler_of(kernel, mesh, num_chains=6):
    data = {"y": Y, "sigma": SIGMA}
    return phx.compile(centred, data, kernel=kernel, num_chains=num_chains, mesh=mesh)


def rows_of(sampler, per_block, draws):
    """Rows of every chain's draws, made in blocks of so many draws; a block ends when the last lane has them."""
    executables, seed = sampler.executables, np.uint32(4)
    tuning = first_tuning(executables.blocks)._replace(step_size=np.float32(0.3))
    chains, blocks = executables.start(seed, sampler.arrays, Initial()).chains, []
    for _ in range(draws // per_block):
        order = block_arguments(np.full(executables.blocks.num_chains, per_block), ticks=10**9)
        none = executables.no_records(sampler.arrays, np.zeros(executables.blocks.num_chains, np.int32))
        advanced = executables.record(seed, sampler.arrays, tuning, order, executables.rounds.no_rounds(), chains, none)
        chains = advanced.chains
        assert (np.asarray(advanced.sinks.count) == per_block).all()
        blocks.append(np.asarray(advanced.sinks.states[0][0])[:per_block])
    return np.concatenate(blocks)


def test_desynchronised_draws_are_bit_identical_to_those_of_lanes_that_wait_for_each_draw(mesh_of):
    sampler = sampler_of(phx.nuts(), mesh_of(2, 1))
    free, waiting = rows_of(sampler, 60, 60), rows_of(sampler, 1, 60)
    np.testing.assert_array_equal(free, waiting)
    layout = sampler.executables.blocks.row_layout
    steps = layout.statistics(free[..., layout.start_of_stats :])["num_steps"]
    assert len(np.unique(steps)) > 3  # the lanes did have something to wait for


def run_of(sampler):
    found = sampler.run(4, num_warmup=60, num_samples=20, progress=False)
    return {**found.draws, **found.stats, **{f"warm-up {name}": values for name, values in found.warmup.items()}}


def test_so_are_those_of_a_whole_run_with_its_warm_up(mesh_of, monkeypatch):
    """Lanes may run ahead of others within a window: whoever waits, tuning and draws are the same.

    They run ahead in rounds on the devices, and wait for each draw in rounds that the host ends.
    """
    sampler, advance, calls = sampler_of(phx.nuts(), mesh_of(2, 1)), Engine.advance, []

    def draw_by_draw(self, state, goal, folds):
        calls.append(goal.ahead)
        for count in range(1, int(goal.draws.max()) + 1):
            draws = np.minimum(goal.draws, count)
            while state.sinks is None or (np.asarray(state.sinks.count) < draws).any():
                state = advance(self, state, goal._replace(draws=draws, ahead=0), folds)
        return state

    free = run_of(sampler)
    monkeypatch.setattr(Engine, "advance", draw_by_draw)
    monkeypatch.setattr(WarmUpPhase, "_learns_on_devices", lambda self, warming: False)
    for name, values in run_of(sampler).items():
        np.testing.assert_array_equal(values, free[name], err_msg=name)
    assert max(calls) > 1 and len(np.unique(free["num_steps"])) > 3


@pytest.mark.slow
def test_so_they_are_however_short_blocks_are(mesh_of, monkeypatch):
    sampler = sampler_of(phx.nuts(), mesh_of(2, 1))
    free = run_of(sampler)
    for ticks in (3, 10**6):
        monkeypatch.setattr(BlockLength, "ticks", ticks)
        for name, values in run_of(sampler).items():
            np.testing.assert_array_equal(values, free[name], err_msg=name)


@pytest.mark.slow
def test_lanes_among_others_draw_what_a_lane_alone_draws():
    three, alone = (Drawer(schools, phx.nuts(), count, 4) for count in (3, 1))
    begin = {"theta": np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)}
    together, info = three.after(begin, step_size=np.float32(0.3))
    found, of_one = alone.after({"theta": begin["theta"][:1]}, step_size=np.float32(0.3))
    for name in ("num_steps", "tree_depth", "diverging"):
        np.testing.assert_array_equal(of_one[name], info[name][:1])
    np.testing.assert_allclose(found["theta"], together["theta"][:1], rtol=2e-3, atol=2e-3)


@pytest.mark.slow
def test_a_chain_is_the_same_whatever_the_number_of_chains_and_devices(mesh_of):
    few, many = (rows_of(sampler_of(phx.nuts(), mesh_of(*sizes), n), 8, 8) for sizes, n in (((1, 1), 2), ((4, 1), 12)))
    np.testing.assert_allclose(few, many[:, :2], rtol=5e-3, atol=5e-3)


def run(**kernel):
    sizes = {"num_chains": 16, "num_samples": 300, "progress": False}
    return phx.mcmc(centred, {"y": Y, "sigma": SIGMA}, kernel=phx.nuts(**kernel), **sizes)


@pytest.fixture(scope="module")
def of_short_trees():
    return run(max_depth=3)


@pytest.mark.slow
def test_statistics_of_trees(of_short_trees):
    posterior = of_short_trees
    steps, depth = posterior.stats["num_steps"], posterior.stats["tree_depth"]
    assert depth.max() == 3 and (steps <= 7).all() and (steps >= 1).all()
    assert (steps[posterior.stats["reached_max_depth"]] == 7).all() and posterior.stats["reached_max_depth"].any()
    assert (depth[~posterior.stats["diverging"]] >= 1).any() and (2.0**depth <= steps + 1).all()


def test_several_lanes_share_one_tuning_and_are_busy(of_short_trees):
    busy(of_short_trees)


@pytest.mark.slow
def test_several_lanes_are_busy_however_long_their_trees():
    busy(run())


def busy(posterior):
    assert posterior.record.num_warmup == 300
    assert len(np.unique(posterior.stats["step_size"])) == 1
    assert 0.5 < posterior.timing.lane_efficiency <= 1.0


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"max_depth": 0}, "max_depth must be a whole number, at least 1; got 0"),
        ({"max_depth": 30}, "max_depth must be at most 20, got 30"),
        ({"step_size": -1.0}, "step_size must be a positive number, got -1.0"),
        ({"target_acceptance": 1.0}, "target_acceptance must lie between 0 and 1, got 1.0"),
        ({"metric": "full"}, "metric must be one of 'auto', 'diagonal', 'dense'; got 'full'"),
    ],
)
def test_hyperparameters_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        phx.nuts(**arguments)
