"""A store of many data sets: what is read from disk is what would be in memory, set by set."""

from __future__ import annotations

import shutil
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phalanx as phx
from phalanx.cli.saved import opened
from phalanx.posterior.each import posteriors as module
from phalanx.run.host.draw_store import DrawStore
from phalanx.run.phases.store import LEAD, StorePhase
from phalanx.store.zarr_reading import root_of, write_entries

pytest.importorskip("zarr")
SETS, CHAINS, DRAWS = 5, 4, 90
SIZES = {"kernel": phx.hmc(num_steps=4), "num_warmup": 60, "num_samples": DRAWS, "seed": 3, "progress": False}
NAMES = ["s", "t/u", "v", "w", "x"]


def line(x, y):
    slope = phx.sample("slope", dist.Normal(0.0, 5.0).expand([2]))
    scale = phx.sample("part/scale", dist.HalfNormal(3.0))
    phx.sample("y", dist.Normal(slope[0] * x + slope[1], scale), obs=y)


def table() -> dict[str, Any]:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, SETS * 6)).astype(np.float32)
    x[7] = np.inf  # the second data set has no start
    return {"set": np.repeat(NAMES, 6), "x": x, "y": y}


def run(**options: Any) -> phx.Posteriors:
    mesh = phx.make_mesh(chain=SETS, devices=jax.devices()[:SETS])
    posteriors: Any = phx.mcmc(line, table(), each="set", mesh=mesh, **{**SIZES, **options})
    return posteriors


def read(path: Any) -> phx.Posteriors:
    posteriors: Any = phx.open(path)
    return posteriors


@pytest.fixture(scope="module")
def whole():
    return run()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("stores") / "run.zarr"
    return path, run(store=path)


def assert_equal(one: phx.Posteriors, other: phx.Posteriors) -> None:
    assert one.sets == other.sets and one.failed == other.failed
    for of in ("draws", "stats"):
        mine, theirs = getattr(one, of), getattr(other, of)
        assert set(mine) == set(theirs)
        for name in theirs:
            assert mine[name].shape == theirs[name].shape and mine[name].dtype == theirs[name].dtype, name
            np.testing.assert_array_equal(np.asarray(mine[name]), theirs[name], err_msg=name)


def test_a_store_has_what_memory_would_have(whole, folder):
    assert len(whole.failed) == 1
    path, stored = folder
    assert_equal(stored, whole)
    assert_equal(read(path), whole)
    assert read(path).record.interrupted is False


def test_tables_and_verdicts_are_those_of_memory(whole, folder, monkeypatch):
    monkeypatch.setattr(module, "NUMBERS", CHAINS * DRAWS * 2)  # a set at a time
    again = read(folder[0])
    assert again.summary().equals(whole.summary())
    assert again.verdicts().equals(whole.verdicts())
    for name in ("s", "x"):
        assert str(again.of(name).verdict()) == str(whole.of(name).verdict())
    with pytest.raises(ValueError, match="was not sampled"):
        again.of("t/u")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_part_is_that_of_memory(whole, folder, data):
    stored = read(folder[0])
    name = data.draw(st.sampled_from(list(whole.draws)))
    expected = whole.draws[name]

    def part(size):
        bound = st.none() | st.integers(-size - 1, size + 1)
        return st.integers(-size, size - 1) | st.slices(size) | st.builds(slice, bound, bound)

    axes = data.draw(st.integers(1, expected.ndim))
    index = tuple(data.draw(part(size)) for size in expected.shape[:axes])
    np.testing.assert_array_equal(stored.draws[name][index], expected[index])


def test_plain_readers_find_the_data_set_of_a_chain_and_no_draws_of_one_that_failed(whole, folder):
    xarray = pytest.importorskip("xarray")
    slope = xarray.open_datatree(folder[0], engine="zarr", consolidated=False)["posterior/slope"]
    np.testing.assert_array_equal(slope.sel(chain="w/2").values, whole.draws["slope"][3, 2])
    assert np.isnan(slope.sel(chain="t/u/0").values).all()


@pytest.mark.slow
def test_no_data_set_is_far_ahead_of_another(tmp_path, monkeypatch):
    """A data set of long trajectories keeps the draws of the others out of memory: they wait for it."""
    rest, slots = [], []
    take = DrawStore.take

    def taken(self, state):
        rest.append(state.stored.ahead)
        return take(self, state)

    monkeypatch.setattr(DrawStore, "take", taken)
    num_draws_left = StorePhase._num_draws_left
    monkeypatch.setattr(
        StorePhase,
        "_num_draws_left",
        lambda self, state: slots.append(self._engine.blocks.slots) or num_draws_left(self, state),
    )

    def correlated(y):
        x = phx.sample("x", dist.Normal(0.0, 1.0).expand([2]))
        phx.sample("y", dist.Normal(x[0] - y * x[1], 0.01), obs=0.0)

    data = {"y": np.array([0.0, *np.ones(3)], np.float32)}  # trajectories of the first are much shorter
    kernel = phx.nuts(step_size=0.02)
    run: Any = phx.mcmc(
        correlated, data, each={"y": 0}, kernel=kernel, num_warmup=20, num_samples=600, store=tmp_path / "run.zarr",
        progress=False,
    )  # fmt: skip
    assert run["x"].shape == (4, 4, 600, 2)
    assert max(rest) <= LEAD * slots[0] < 300


def test_a_run_that_ends_early_leaves_the_draws_so_far(tmp_path, whole):
    class Enough(Exception):
        pass

    def stop(report):
        if report.phase == "sampling" and report.done >= DRAWS:
            raise Enough

    with pytest.raises(Enough):
        run(store=tmp_path / "run.zarr", on_block=stop, num_samples=500)
    found = read(tmp_path / "run.zarr")
    count = found.stats["energy"].shape[2]
    assert DRAWS <= count < 500 and found.record.interrupted and found.failed == whole.failed
    np.testing.assert_array_equal(found["slope"][:, :, :DRAWS], whole["slope"])


@pytest.mark.parametrize(
    "each",
    [
        '{"names": [], "failed": []}', '{"names": ["a", "b", "c"], "failed": []}', "[]", "no JSON",
        '{"names": ["a", "b", "c", "d", "e"], "failed": [[9, "far"]]}', '{"names": 5, "failed": []}',
    ],
)  # fmt: skip
def test_a_damaged_entry_of_the_data_sets_is_refused(folder, tmp_path, each):
    copy = tmp_path / "run.zarr"
    shutil.copytree(folder[0], copy)
    root, entries = root_of(copy, "copy")
    write_entries(root, {**entries, "each": each})
    with pytest.raises(ValueError, match="is damaged: its entries cannot be read"):
        read(copy)


@pytest.mark.slow
def test_data_sets_called_by_intervals_are_called_so_in_a_store(tmp_path):
    data = {name: values for name, values in table().items() if name != "set"} | {"x": np.arange(SETS * 6.0)}
    groups = pd.cut(np.repeat(np.arange(SETS) + 0.5, 6), range(SETS + 1))
    sizes: Any = {"num_warmup": 20, "num_samples": 30, "thin": 3, "keep": ["part/scale"], "progress": False}
    made: Any = phx.mcmc(line, data | {"group": groups}, each="group", store=tmp_path / "run.zarr", **sizes)
    found: Any = read(tmp_path / "run.zarr")
    assert found.sets == made.sets and found.sets[1] == "(1, 2]"
    assert found.of("(1, 2]").draws["part/scale"].shape == (4, 10)


def test_a_store_is_never_overwritten_and_the_command_line_says_what_it_is(folder):
    with pytest.raises(FileExistsError, match="never overwritten"):
        run(store=folder[0])
    with pytest.raises(ValueError, match="has the draws of 5 data sets"):
        opened(folder[0])
