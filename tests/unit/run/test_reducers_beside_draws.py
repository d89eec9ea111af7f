"""Results of reducers beside stored draws depend on the draws only, not on when blocks end or a run is continued."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.apart import compiled_in, of_a_run

import phalanx as phx
from phalanx.run.compile import executable_cache
from phalanx.run.compile.block_length import BlockLength
from phalanx.run.compile.lru_cache import LRUCache
from phalanx.run.device import blocks as device_blocks

R = phx.reducers
Y = np.array([1.0, 2.0, 4.0], np.float32)
REDUCERS = {"m": R.moments(), "e": R.ess(), "q": R.quantiles([0.1, 0.5])}
SIZES = {"num_chains": 4, "num_warmup": 40, "progress": False, "reducers": REDUCERS}
KERNELS = {"nuts": phx.nuts(), "rwmh": phx.rwmh(0.5)}
NUM_SAMPLES, SLOTS = 50, 7


def model(y):
    mean = phx.sample("mean", dist.Normal(0.0, 5.0).expand([2]))
    scale = phx.sample("scale", dist.HalfNormal(2.0))
    phx.sample("y", dist.Normal(mean.sum(), scale), obs=y)


@cache
def sampler_of(name):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_blocks, "BLOCK_DRAWS", SLOTS)
        return phx.compile(model, {"y": Y}, **compiled_in({**SIZES, "kernel": KERNELS[name]}))


@cache
def whole(name):
    return sampler_of(name).run(3, num_samples=NUM_SAMPLES, **of_a_run(SIZES))


def same(a, b):
    pairs = zip(jax.tree.leaves((a.draws, a.reduced)), jax.tree.leaves((b.draws, b.reduced)), strict=True)
    for one, other in pairs:
        np.testing.assert_array_equal(one, other)


class EndsAt:
    """Ends blocks after numbers of ticks from a list, again and again."""

    def __init__(self, ticks):
        self._all, self._next = ticks, 0

    def learn(self, ticks, seconds):
        self._next += 1

    @property
    def ticks(self):
        return self._all[self._next % len(self._all)]


DIVISIONS = {
    "ticks": st.lists(st.integers(1, 60), min_size=1, max_size=4),
    "parts": st.lists(st.integers(1, 20), max_size=3),
    "stops": st.lists(st.integers(1, 9), max_size=3),
    "in_file": st.booleans(),
}
AGAIN = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


@pytest.mark.slow
@settings(max_examples=3, **AGAIN)
@given(**DIVISIONS)
def test_results_are_the_same_bits_however_the_run_is_divided(tmp_path, ticks, parts, stops, in_file):
    divided("nuts", tmp_path, ticks, parts, stops, in_file)


@pytest.mark.slow
@settings(max_examples=20, **AGAIN)
@given(name=st.sampled_from(list(KERNELS)), **DIVISIONS)
def test_results_are_the_same_bits_for_more_kernels(tmp_path, name, ticks, parts, stops, in_file):
    divided(name, tmp_path, ticks, parts, stops, in_file)


def divided(name, folder, ticks, parts, stops, in_file):
    """Compare a run with blocks of other lengths, made in parts and interrupted, with one that is not."""
    sampler, stops = sampler_of(name), list(stops)

    def stop(report):
        if report.phase == "sampling" and stops:
            stops[0] -= 1
            if stops[0] <= 0:
                stops.pop(0)
                raise KeyboardInterrupt

    def saved(posterior):
        if not in_file:
            return posterior
        posterior.save(folder / "part.npz")
        return phx.Posterior.load(folder / "part.npz")

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(vars(sampler.executables), "block_length", EndsAt(ticks))
        run = None
        for part in [*parts, None, None, None, None]:
            done = 0 if run is None else run.num_draws
            left = NUM_SAMPLES - done
            if not left:
                break
            more = left if part is None else min(part, left)
            if run is None:
                try:
                    run = sampler.run(3, num_samples=more, on_block=stop, **of_a_run(SIZES))
                except KeyboardInterrupt:  # before a chain's first draw
                    continue
            else:
                run = sampler.continue_run(saved(run), more, on_block=stop, progress=False)
            count = {moments.count for moments in run.reduced["m"].values()}
            assert count == {4 * run.num_draws}  # the draws that are stored
            np.testing.assert_allclose(
                run.reduced["m"]["mean"].mean, run.draws["mean"].mean((0, 1), dtype=float), rtol=1e-4, atol=1e-5
            )
            assert not run.record.findings
    assert run is not None
    if run.num_draws == NUM_SAMPLES:  # where chains are ahead, the others catch up
        same(run, whole(name))


@pytest.mark.parametrize("name", ["nuts", pytest.param("rwmh", marks=pytest.mark.slow)])
def test_a_stream_reduces_the_draws_that_a_run_does(name, monkeypatch):
    monkeypatch.setattr(device_blocks, "BLOCK_DRAWS", SLOTS)
    options = {**SIZES, "kernel": KERNELS[name]}
    blocks = list(phx.stream(model, {"y": Y}, num_samples=NUM_SAMPLES, seed=3, **options))
    assert len(blocks) == -(-NUM_SAMPLES // SLOTS)
    last = {name: blocks[-1][name] for name in REDUCERS}
    for one, other in zip(jax.tree.leaves(last), jax.tree.leaves(whole(name).reduced), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "stop"), [("warm-up", 30), ("sampling", 20)])
def test_a_round_goes_on_where_blocks_have_fewer_slots(phase, stop, tmp_path, monkeypatch):
    """A device that has more rows of each chain has fewer slots, which the round's draws would not fit into."""
    monkeypatch.setattr(executable_cache, "EXECUTABLES", LRUCache(0))
    monkeypatch.setattr(BlockLength, "ticks", 16)

    def run(slots, folder, until=1000):
        def lost(report):
            if report.phase == phase and report.done >= until:
                raise ValueError("lost")

        monkeypatch.setattr(device_blocks, "BLOCK_DRAWS", slots)
        return phx.mcmc(model, {"y": Y}, num_samples=NUM_SAMPLES, on_block=lost, checkpoint=tmp_path / folder, **SIZES)

    expected = run(30, "whole")
    with pytest.raises(ValueError, match="lost"):
        run(30, "part", stop)
    part = phx.Posterior.load(tmp_path / "part")
    assert part.state.slots > SLOTS and part.state.in_warm_up == (phase == "warm-up")
    found = run(SLOTS, "part")
    for name, draws in expected.draws.items():
        np.testing.assert_array_equal(found[name], draws)
    # rounds have other lengths
    for one, other in zip(jax.tree.leaves(found.reduced["m"]), jax.tree.leaves(expected.reduced["m"]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_reducers_that_lack_the_draws_so_far_are_refused():
    options = {**SIZES, "reducers": {}}
    plain = phx.mcmc(model, {"y": Y}, num_samples=10, **options)
    sampler = phx.compile(model, {"y": Y}, **compiled_in(SIZES))
    with pytest.raises(ValueError, match="has the reducers none, .* compiled with 'e', 'm', 'q'"):
        sampler.continue_run(plain, 10)
    run = sampler.run(num_samples=10, **of_a_run(SIZES))
    with pytest.raises(ValueError, match="the posterior has the reducers 'e', .* compiled with none"):
        phx.compile(model, {"y": Y}, **compiled_in(options)).continue_run(run, 10)
