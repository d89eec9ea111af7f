"""What recorded draws add up to on the devices, against NumPy in float64; and the draws of a window."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

import phalanx as phx
from phalanx.adaptation.acceptance import LEAST_RATE
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.position import Variable, VectorLayout
from phalanx.mesh.row_sharding import RowSharding
from phalanx.run.device.advance import SinkState
from phalanx.run.device.blocks import shardings
from phalanx.run.device.recorder import RowLayout
from phalanx.run.device.summing import Summing
from phalanx.run.host import window as window_module
from phalanx.run.host.window import Window

STATS = ("acceptance_rate", "diverging", "num_steps", "log_density")
CHAINS, SLOTS = 8, 6


def rows_of(sizes, parts):
    """The layout of rows of a global variable and, where there are two sizes, of one sharded over `data`."""
    shardings = RowSharding(), RowSharding(("data",))
    variables = [
        Variable(f"v{i}", (size,), np.float32, sharding)
        for i, (size, sharding) in enumerate(zip(sizes, shardings, strict=False)) if size
    ]  # fmt: skip
    return RowLayout(VectorLayout.of(variables, {}), parts, STATS)


def recorded(layout, devices, seed, made, far=0.0):
    """Rows of draws, where slots that are not filled hold what nobody should see."""
    random = np.random.default_rng(seed)
    rows = []
    for width, several in zip(layout.widths, [1, *[devices] * (len(layout.widths) - 1)], strict=True):
        values = (far + random.normal(size=(SLOTS, CHAINS, several * width))).astype(np.float32)
        values[~made] = np.nan
        rows.append(values)
    rates = random.uniform(size=(SLOTS, CHAINS)).astype(np.float32)
    rows[0][..., layout.start_of_stats] = rates
    return rows


def filled(count):
    """Slots that a draw has filled, `(slot, chain)`."""
    return np.arange(SLOTS)[:, None] < np.broadcast_to(count, CHAINS)


def on_devices(summing, mesh, rows, first, end):
    shared = PartitionSpec()
    specs = summing.layout.position.specs(None, CHAIN), shared, shared
    placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(rows, specs[0], strict=True)]
    with jax.enable_x64(True):
        program = jax.jit(
            jax.shard_map(summing, mesh=mesh, in_specs=specs, out_specs=summing.specs, check_vma=False),
            in_shardings=shardings(mesh, specs),
        ).lower(tuple(placed), first, end)
    return summing.fetched(program.compile()(tuple(placed), first, end))


def moments(rows):
    return len(rows), rows.sum(0) / max(len(rows), 1), np.square(rows - rows.mean(0)).sum(0) if len(rows) else 0.0


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    shape=st.sampled_from([(1, 1), (8, 1), (2, 4), (4, 2)]),
    sizes=st.tuples(st.integers(0, 3), st.integers(1, 3)),
    metric=st.booleans(),
    slots=st.lists(st.integers(0, SLOTS), min_size=2, max_size=2).map(sorted),
    far=st.sampled_from([0.0, 1e4]),
    seed=st.integers(0, 2**32 - 1),
)
def test_sums_on_any_mesh_are_those_of_all_draws(shape, sizes, metric, slots, far, seed):
    chain, data = shape
    layout, (first, end) = rows_of(sizes, 2 if metric else 1), map(np.int32, slots)
    summing = Summing(layout)
    made = np.broadcast_to((np.arange(SLOTS) >= first) & (np.arange(SLOTS) < end), (CHAINS, SLOTS)).T
    rows = recorded(layout, data, seed, made, far)
    if metric and sizes[0] and first < end:
        rows[0][first, 0, 0] = np.inf  # a draw that is left out of the moments, and counts
    found = on_devices(summing, phx.make_mesh(chain=chain, data=data), rows, first, end)

    stats = layout.statistics(rows[0][..., layout.start_of_stats :])
    assert found.draws == made.sum()
    assert set(found.stats) == {"acceptance_rate", "diverging", "num_steps"}
    for name, total in found.stats.items():
        assert total == pytest.approx(stats[name][made].sum(dtype=np.float64), rel=1e-12)
    inverses = 1 / np.fmax(stats["acceptance_rate"][made].astype(np.float64), LEAST_RATE)
    assert found.inverse_rates == pytest.approx(inverses.sum(), rel=1e-12)
    if not metric:
        assert found.position == found.gradient == ()
        return
    by_device = [part.reshape(SLOTS, CHAINS, -1, width) for part, width in zip(rows, layout.widths, strict=True)]
    for kind, of_kind in enumerate((found.position, found.gradient)):
        vectors = [part.reshape(SLOTS, CHAINS, -1).astype(np.float64) for part in layout.vector(by_device, kind).parts]
        good = made.copy()
        if sizes[0] and first < end:
            good[first, 0] = False
        for group, vector in zip(of_kind, vectors, strict=True):
            expected_count, mean, squares = moments(vector[good])
            assert group.count == expected_count
            np.testing.assert_allclose(group.mean, mean, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(group.squares, squares, rtol=1e-9 if far == 0 else 1e-6, atol=1e-9 * (1 + far))


def test_a_rate_that_is_no_number_shows_in_the_mean_and_counts_as_no_acceptance():
    layout = rows_of((1,), 1)
    rows = recorded(layout, 1, 0, filled(1))
    rows[0][0, 3, 1] = np.nan
    found = on_devices(Summing(layout), phx.make_mesh(chain=1), rows, np.int32(0), np.int32(1))
    rates = rows[0][0, :, 1].astype(np.float64)
    assert math.isnan(found.mean("acceptance_rate"))
    assert found.inverse_rates == pytest.approx(np.sum(1 / np.fmax(rates, LEAST_RATE)), rel=1e-12)


def draws_of(layout, blocks, groups=None, every=1):
    window = Window(groups, every)
    for rows, count in blocks:
        window = window.with_draws(SinkState(jax.device_put(count), (tuple(map(jax.device_put, rows)),)), layout)
    assert window.emptied().sample(layout) is None
    return window.sample(layout)


@pytest.mark.parametrize("on_devices", [2**26, 0], ids=["fetched at the end", "fetched at once"])
def test_a_window_hands_over_its_draws_chain_by_chain(on_devices, monkeypatch):
    monkeypatch.setattr(window_module, "MOST_BYTES", on_devices)
    layout, random = rows_of((2, 1), 2), np.random.default_rng(0)
    counts = [random.integers(0, SLOTS + 1, CHAINS).astype(np.int32) for _ in range(3)]
    blocks = [(recorded(layout, 2, seed, filled(count)), count) for seed, count in enumerate(counts)]
    sample = draws_of(layout, blocks)
    assert sample is not None
    expected = np.concatenate([rows[0][: count[chain], chain, :2] for chain in range(CHAINS) for rows, count in blocks])
    np.testing.assert_array_equal(sample.position[0], expected)
    np.testing.assert_array_equal(sample.chain, np.repeat(np.arange(CHAINS), np.sum(counts, 0)))
    assert sample.position[1].shape == sample.gradient[1].shape == (len(expected), 2)  # of both devices


def test_a_window_that_takes_too_much_memory_keeps_every_other_draw_of_each_chain(monkeypatch):
    monkeypatch.setattr(window_module, "MOST_NUMBERS", CHAINS * 2 * SLOTS)
    layout, count = rows_of((2,), 2), np.full(CHAINS, SLOTS, np.int32)
    blocks = [(recorded(layout, 1, seed, filled(count)), count) for seed in range(3)]
    sample = draws_of(layout, blocks)
    assert sample is not None
    kept = np.concatenate([rows[0][:, 5, :2] for rows, _ in blocks])[::4]
    np.testing.assert_array_equal(sample.position[0][sample.chain == 5], kept)


def test_a_window_of_many_chains_looks_at_some_and_one_of_which_nothing_is_learned_at_none():
    layout, count = rows_of((2, 1), 2), np.full(CHAINS, 1, np.int32)
    blocks = [(recorded(layout, 1, 0, count), count)]
    sample = draws_of(layout, blocks, groups=1, every=3)
    assert sample is not None
    np.testing.assert_array_equal(sample.position[0], blocks[0][0][0][0, ::3, :2])
    assert len(sample.position) == 1
    assert draws_of(layout, blocks, groups=0) is None
