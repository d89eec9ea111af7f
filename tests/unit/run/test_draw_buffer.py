"""Draws of a block go to their places among a chain's earlier draws."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phalanx as phx
from phalanx.run import engine
from phalanx.run.host.draw_buffer import DrawIndices
from phalanx.run.state import LateCopy

BLOCKS = st.integers(1, 5).flatmap(
    lambda chains: st.tuples(
        st.lists(st.integers(0, 4), min_size=chains, max_size=chains),  # draws that each chain has
        st.lists(st.integers(0, 6), min_size=chains, max_size=chains),  # draws of each in the block
        st.sampled_from([(), (3,), (2, 0)]),
        st.booleans(),
    )
)


@settings(max_examples=200, deadline=None)
@given(BLOCKS)
def test_every_draw_follows_those_of_its_chain(block):
    counts, made, shape, is_view = np.array(block[0]), np.array(block[1]), block[2], block[3]
    slots, chains, room = max(int(made.max()), 1), len(counts), int(counts.max() + made.max()) + 1
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(slots, chains, *shape))
    whole = rng.normal(size=(chains, room + 2, *shape))
    into = whole[:, 1:-1] if is_view else whole[:, :room].copy()  # a buffer may be a part of another
    expected = into.copy()
    for chain in range(chains):
        for slot in range(made[chain]):
            expected[chain, counts[chain] + slot] = rows[slot, chain]
    places = DrawIndices.of(np.arange(slots)[:, None] < made[None], counts)
    places.write(rows, into)
    np.testing.assert_array_equal(into, expected)
    assert (places.first is None) == ((made < slots).any() or (counts != counts[0]).any())


@pytest.mark.parametrize("stores", [False, True])
def test_a_block_is_copied_while_the_devices_make_the_next(monkeypatch, tmp_path, stores):
    if stores:
        pytest.importorskip("zarr")
    events, finish, wait = [], LateCopy.finish, engine.to_host

    def copying(self):
        events.extend(["copy"] * (self._copy is not None))
        finish(self)

    def waiting(value):
        events.append("wait")
        return wait(value)

    def beginning(program):
        def run(*arguments):
            events.append("block")
            return program(*arguments)

        return run

    def model():
        phx.sample("x", dist.Normal(0.0, 1.0).expand([3000]))  # few draws fill a block

    sampler = phx.compile(model, kernel=phx.rwmh(0.1), num_chains=4)
    expected = sampler.run(num_warmup=0, num_samples=300, progress=False)
    executables = copy(sampler.executables)  # other tests may use the same
    vars(executables)["record"] = beginning(executables.record)
    sampler = replace(sampler, executables=executables)
    monkeypatch.setattr(LateCopy, "finish", copying)
    monkeypatch.setattr(engine, "to_host", waiting)
    places = {"store": tmp_path / "run.zarr"} if stores else {}
    posterior = sampler.run(num_warmup=0, num_samples=300, progress=False, **places)
    sampled = events[events.index("copy") - 1 :]  # the first blocks have no draws before them
    blocks = sampled.count("block")
    assert blocks > 2
    assert sampled == ["block", "copy", "wait"] * blocks + ["copy"]
    np.testing.assert_array_equal(posterior["x"], expected["x"])


def test_a_copy_that_was_interrupted_is_made_again():
    calls = []

    def interrupted_once():
        calls.append(len(calls))
        if len(calls) == 1:
            raise KeyboardInterrupt

    late = LateCopy(interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        late.finish()
    late.finish()
    late.finish()
    assert calls == [0, 1]
