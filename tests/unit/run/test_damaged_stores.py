"""Damaged and hostile stores of draws: what a run wrote is read, or one error says what is damaged."""

from __future__ import annotations

import json
import shutil

import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.store.test_hostile_files import JSON

import phalanx as phx
from phalanx.store.zarr_reading import ARRAYS, OURS

pytest.importorskip("zarr")
SIZES = {"num_warmup": 5, "num_samples": 6, "num_chains": 2, "progress": False, "save_warmup": True}


def model():
    mean = phx.sample("a/mean", dist.Normal(0.0, 5.0).expand([2]))
    phx.deterministic("part/level", mean.sum() > 0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("stores") / "run.zarr"
    return path, phx.mcmc(model, kernel=phx.rwmh(1.0), store=path, mesh=phx.make_mesh(chain=1), **SIZES)


@pytest.fixture
def store(whole, tmp_path):
    return shutil.copytree(whole[0], tmp_path / "run.zarr")


def edit(file, change):
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def of_earlier_release(store):
    edit(store / "zarr.json", lambda content: content["attributes"][OURS].pop(ARRAYS))


@pytest.mark.filterwarnings("ignore:Object at a.mean")  # of Zarr
@pytest.mark.parametrize("group", ["posterior", "warmup_posterior"])
def test_a_variable_that_is_missing_is_named(store, group):
    (store / group / "a.mean" / "zarr.json").unlink()
    with pytest.raises(ValueError, match=rf"open: '.*' is damaged: its group {group} has lost 'a.mean'. Restore the"):
        phx.open(store)
    of_earlier_release(store)
    with pytest.raises(ValueError, match="is damaged: .*the store has lost 'a/mean'"):
        phx.open(store)


def test_a_store_of_an_earlier_release_is_read(store, whole):
    of_earlier_release(store)
    opened = phx.open(store)
    for of in ("draws", "stats", "warmup_draws", "warmup_stats"):
        one, other = getattr(opened, of), getattr(whole[1], of)
        assert set(one) == set(other)
        for name in other:
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("name", ["warmup_posterior", "warmup_sample_stats", "sample_stats/energy"])
def test_groups_and_statistics_that_are_missing_are_named(store, name):
    shutil.rmtree(store / name)
    with pytest.raises(ValueError, match=rf"is damaged: its group {name.partition('/')[0]} (has lost|cannot be read)"):
        phx.open(store)


@pytest.mark.parametrize("change", [
    lambda content: content.update(shape=[0, *content["shape"][1:]]),
    lambda content: content.update(shape=[4, *content["shape"][1:]]),
    lambda content: content.update(shape=[*content["shape"][:2], 1]),
    lambda content: content.update(data_type="int32", fill_value=0),
], ids=["no chains", "more chains", "elements", "type"])  # fmt: skip
def test_an_array_that_is_changed_is_named(store, change):
    edit(store / "posterior" / "a.mean" / "zarr.json", change)
    words = r"is damaged: 'a.mean' of its group posterior is \[type, chains, ...\] = .* run wrote \['float32', 2, 2\]"
    with pytest.raises(ValueError, match=words):
        phx.open(store)


@pytest.mark.parametrize("entry, value, words", [
    ("version", "1", "is damaged: its version, its committed draws or its arrays"),
    ("version", 2, "was written by a later release"),
    ("committed", -1, "is damaged: its version, its committed draws"),
    ("arrays", {"posterior": 3}, "is damaged: its version, its committed draws or its arrays"),
    ("names", "[" * 100_000, "is damaged: its entries cannot be read"),
    ("record", "[" * 100_000, "is damaged: its entries cannot be read"),
])  # fmt: skip
def test_entries_of_other_types_are_refused(store, entry, value, words):
    edit(store / "zarr.json", lambda content: content["attributes"][OURS].update({entry: value}))
    with pytest.raises(ValueError, match=words):
        phx.open(store)


@given(st.data(), JSON, st.booleans())
@settings(max_examples=200, deadline=None)
def test_any_entries_give_draws_or_one_error(whole, tmp_path_factory, data, value, as_text):
    store = shutil.copytree(whole[0], tmp_path_factory.mktemp("any") / "run.zarr")
    name = data.draw(st.sampled_from(sorted(json.loads((store / "zarr.json").read_text())["attributes"][OURS])))
    given = json.dumps(value) if as_text else value
    edit(store / "zarr.json", lambda content: content["attributes"][OURS].update({name: given}))
    try:
        opened = phx.open(store)
    except ValueError as error:
        assert "damaged" in str(error) or "later release" in str(error)
        return
    assert set(opened.draws) in (set(whole[1].draws), set())
