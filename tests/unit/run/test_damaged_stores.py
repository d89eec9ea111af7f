"""Damaged and hostile stores of draws: what a run wrote is read, or one error says what is damaged."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.store.test_hostile_files import JSON

import phalanx as phx
from phalanx.store.sealed import SEAL, digest_of
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


def change_entries(store, **changed):
    """Change entries of the root, with the right checksum; an entry of None is removed."""

    def change(content):
        entries = {**content["attributes"][OURS], **changed}
        del entries[SEAL]
        entries = {name: value for name, value in entries.items() if value is not None or name not in changed}
        content["attributes"][OURS] = {**entries, SEAL: digest_of(entries)}

    edit(store / "zarr.json", change)


def of_earlier_release(store):
    def change(content):
        for name in (ARRAYS, SEAL):
            content["attributes"][OURS].pop(name)
        content["attributes"][OURS]["version"] = 1

    edit(store / "zarr.json", change)


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
    ("version", 3, "was written by a later release"),
    ("version", 0, "is damaged: its version"),
    ("committed", True, "is damaged: its version, its committed draws"),
    ("committed", -1, "is damaged: its version, its committed draws"),
    ("arrays", {"posterior": 3}, "is damaged: its version, its committed draws or its arrays"),
    ("names", "[" * 100_000, "is damaged: its entries cannot be read"),
    ("record", "[" * 100_000, "is damaged: its entries cannot be read"),
])  # fmt: skip
def test_entries_of_other_types_are_refused(store, entry, value, words):
    change_entries(store, **{entry: value})
    with pytest.raises(ValueError, match=words):
        phx.open(store)


@pytest.mark.parametrize("change", [
    lambda entries: entries.update(committed=entries["committed"] + 2),
    lambda entries: entries.update(committed=entries["committed"] - 2),
    lambda entries: entries.update(complete=False),
    lambda entries: entries.update(timing=entries["timing"].replace("1", "3", 1) + " "),
    lambda entries: entries.pop(SEAL),
    lambda entries: entries.update({SEAL: True}),
], ids=["more draws", "fewer draws", "complete", "timing", "no checksum", "no text"])  # fmt: skip
def test_entries_without_their_checksum_are_refused(store, change):
    edit(store / "zarr.json", lambda content: change(content["attributes"][OURS]))
    with pytest.raises(ValueError) as caught:
        phx.open(store)
    assert str(caught.value) == (
        f"open: {str(store)!r} is damaged: the entries of its zarr.json, such as the number of committed draws, do not "
        f"have the checksum that was written with them. Restore {str(store / 'zarr.json')!r} from a copy. The arrays "
        f"are files of their own: zarr.open_group({str(store)!r})['posterior'] still reads them."
    )


def interrupted(tmp_path):
    """Return the folder of a run that its user's function ends, and a call that repeats it."""

    def call(**options):
        sizes = {"num_warmup": 20, "num_samples": 800, "num_chains": 2, "progress": False}
        at = {"store": tmp_path / "run.zarr", "checkpoint": phx.checkpoint(tmp_path / "saves", seconds=0)}
        return phx.mcmc(model, kernel=phx.rwmh(1.0), mesh=phx.make_mesh(chain=1), **at, **sizes, **options)

    class Enough(Exception):
        pass

    def stop(report):
        if report.phase == "sampling" and report.done:
            raise Enough

    with pytest.raises(Enough):
        call(on_block=stop)
    return tmp_path / "run.zarr", call


def chunk_of(store, *names):
    return next(file for file in sorted(store.joinpath(*names, "c").rglob("*")) if file.is_file())


@pytest.mark.parametrize("names", [("posterior", "a.mean"), ("posterior", "part.level"), ("sample_stats", "energy")])
@pytest.mark.parametrize("damage, words", [
    (lambda file: file.unlink(), "the file '.*' is missing"),
    (lambda file: file.write_bytes(file.read_bytes()[:-9]), "Stored and computed checksum do not match"),
    (lambda file: file.write_bytes(b""), ""),
], ids=["missing", "cut short", "empty"])  # fmt: skip
def test_a_run_does_not_continue_behind_a_damaged_chunk(tmp_path, names, damage, words):
    store, call = interrupted(tmp_path)
    damage(chunk_of(store, *names))
    with pytest.raises(ValueError) as caught:
        call()
    message = str(caught.value)
    assert message.startswith(f"store={str(store)!r} is damaged, so that its run cannot continue: ")
    assert str(store.joinpath(*names)) in message and re.search(words, message)
    assert message.endswith("then rename it and the folder of checkpoint=, and begin anew.")
    opened = phx.open(store)
    sound = next(n for n in ("a/mean", "part/level") if n.replace("/", ".") not in names)
    assert np.isfinite(np.asarray(opened.draws[sound], float)).all() and opened.num_draws < 800


@pytest.mark.parametrize("field, value", [
    ("latents", None), ("superchains", []), ("num_chains", True), ("devices", "cpu"), ("acceptance_rate", "high"),
    ("findings", {}), ("observed", 3), ("dims", []),
])  # fmt: skip
def test_a_field_of_the_record_of_another_type_is_named(store, field, value):
    record = json.loads(json.loads((store / "zarr.json").read_text())["attributes"][OURS]["record"])
    change_entries(store, record=json.dumps({**record, field: value}))
    with pytest.raises(
        ValueError, match=rf"is damaged: .*the entry '{field}' of its record is {re.escape(repr(value))}"
    ):
        phx.open(store)


def test_a_damaged_root_is_named(store):
    file = store / "zarr.json"
    file.write_text(file.read_text()[:-20])
    with pytest.raises(ValueError, match=rf"or is damaged \(.*restore '{re.escape(str(file))}' from a copy"):
        phx.open(store)


@given(st.data(), JSON, st.booleans())
@settings(max_examples=50, deadline=None)
def test_any_entries_give_draws_or_one_error(whole, tmp_path_factory, data, value, as_text):
    store = shutil.copytree(whole[0], tmp_path_factory.mktemp("any") / "run.zarr")
    name = data.draw(st.sampled_from(sorted(json.loads((store / "zarr.json").read_text())["attributes"][OURS])))
    changed = {name: json.dumps(value) if as_text else value}
    if name == SEAL:
        edit(store / "zarr.json", lambda content: content["attributes"][OURS].update(changed))
    else:
        change_entries(store, **changed)
    try:
        opened = phx.open(store)
    except ValueError as error:
        assert "damaged" in str(error) or "later release" in str(error)
        return
    assert set(opened.draws) in (set(whole[1].draws), set())
