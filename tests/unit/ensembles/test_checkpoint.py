"""Training with a checkpoint: however it ends, the same call leads to the same members, bit for bit."""

from __future__ import annotations

import csv
import itertools
import json
import re
import shutil
import signal
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.slow import with_slow
from tests.unit.damages import damaged_copies

import phalanx as phx
from phalanx.store import checkpoint as module
from phalanx.store.sealed import seal

RNG = np.random.default_rng(0)
X = RNG.normal(size=(23, 5)).astype(np.float32)
Y = (X @ RNG.normal(size=(5, 3))).argmax(1).astype(np.int32)
DATA, HELD_OUT = (X, Y), (X[:7] + 0.5, Y[:7])
OPTIONS = {"batch_size": 8, "num_epochs": 4, "order": "own", "seed": 3, "held_out": HELD_OUT}
"""Epochs of three steps, the last of 7 rows."""


def init(key):
    return {"w": 0.1 * jax.random.normal(key, (5, 3)), "b": jnp.zeros(3)}


def apply(params, x, key=None):
    """A network with dropout: random numbers in each step."""
    kept = 1.0 if key is None else jax.random.bernoulli(key, 0.7, x.shape)
    return (x * kept) @ params["w"] + params["b"][None]


def learner(apply=apply, optimizer=None, init=init):
    loss = phx.ensembles.classification_loss
    return phx.ensembles.learner(init, apply, loss, optimizer or optax.adam(0.05))


LEARNER = learner()


def new(members=3, made=LEARNER, seed=0, devices=1):
    mesh = phx.make_mesh(devices=jax.devices()[:devices])
    return phx.ensemble(made.init, made.update, members, mesh=mesh, seed=seed)


def train(ensemble, folder=None, data=DATA, **options):
    options = {**OPTIONS, "apply": LEARNER.apply, **options}
    return ensemble.train(data, checkpoint=folder, **options)


@pytest.fixture(scope="module")
def straight():
    ensemble = new()
    measured = list(train(ensemble))
    return ensemble.members, measured


def same(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def stop_at(ensemble, monkeypatch, steps, stop):
    """Call `stop` before the step after so many."""
    step = ensemble._members.step

    def stopped(*arguments):
        if ensemble.steps == steps:
            stop()
        return step(*arguments)

    monkeypatch.setattr(ensemble._members, "step", stopped)


class PowerFailure(RuntimeError):
    pass


def fail():
    raise PowerFailure


SLOW = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize("steps", [pytest.param(1, marks=SLOW), 4, 5, pytest.param(7, marks=SLOW)])
def test_after_ctrl_c_the_same_call_leads_to_the_same_members(straight, tmp_path, monkeypatch, ctrl_c, steps):
    broken = new()
    stop_at(broken, monkeypatch, steps, ctrl_c)
    partial = list(train(broken, tmp_path / "c"))
    made = steps + 1  # the step under way is ended
    assert (broken.interrupted, broken.steps, broken.epoch) == (True, made, made // 3)
    assert len(partial) == -(-made // 3) and (tmp_path / "c" / f"last-{made}").is_dir()
    resumed = new()
    found = list(train(resumed, tmp_path / "c"))
    same(resumed.members, straight[0])
    same(found, straight[1][made // 3 :])
    same(resumed.history, straight[1])
    assert (resumed.epoch, resumed.steps, resumed.interrupted) == (4, 12, False)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [4, *(pytest.param(steps, marks=SLOW) for steps in (6, 11))])
def test_saves_by_time_are_continued_after_a_failure(straight, tmp_path, monkeypatch, steps):
    monkeypatch.setattr(module, "SAVE_FRACTION", 1e9)
    broken = new()
    stop_at(broken, monkeypatch, steps, fail)
    with pytest.raises(PowerFailure):
        list(train(broken, phx.checkpoint(tmp_path / "c", seconds=0.0)))
    saved = [int(path.name.removeprefix("last-")) for path in (tmp_path / "c").glob("last-*")]
    assert 0 < max(saved) <= steps and len(saved) <= 2
    resumed = new()
    found = list(train(resumed, tmp_path / "c"))
    same(resumed.members, straight[0])
    same(found, straight[1][len(straight[1]) - len(found) :])
    same(resumed.history, straight[1])


@pytest.mark.slow
def test_a_loop_that_is_left_is_saved_and_continued(straight, tmp_path):
    broken = new()
    for number, _ in enumerate(train(broken, tmp_path / "c")):
        if number == 1:
            break
    resumed = new(devices=2)
    assert len(list(train(resumed, tmp_path / "c"))) == 2
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), resumed.members, straight[0])
    again = new()
    assert list(train(again, tmp_path / "c")) == [] and (again.epoch, again.steps) == (4, 12)
    same(again.members, resumed.members)


@pytest.mark.slow
def test_the_same_ensemble_continues_too(straight, tmp_path, monkeypatch, ctrl_c):
    ensemble = new()
    with monkeypatch.context() as patched:
        stop_at(ensemble, patched, 4, ctrl_c)
        list(train(ensemble, tmp_path / "c"))
    list(train(ensemble, tmp_path / "c"))
    same(ensemble.members, straight[0])
    restored = new()
    restored.restore(tmp_path / "c")
    assert list(train(restored, tmp_path / "c")) == []
    same(restored.members, straight[0])
    restored.update(DATA)
    with pytest.raises(ValueError, match="number of steps before the training is 0 there, and 13 here"):
        train(restored, tmp_path / "c")


@pytest.mark.slow
def test_a_checkpoint_changes_nothing_and_more_epochs_train_longer(straight, tmp_path):
    ensemble = new()
    same(list(train(ensemble, tmp_path / "c", num_epochs=2)), straight[1][:2])
    longer = new()
    same(list(train(longer, tmp_path / "c")), straight[1][2:])
    same(longer.members, straight[0])
    with pytest.warns(UserWarning, match=r"in the checkpoint has 4 epochs, more than num_epochs=3"):
        assert list(train(new(), tmp_path / "c", num_epochs=3)) == []


@pytest.mark.slow
def test_a_training_after_another_is_continued_with_the_same_members(tmp_path):
    def first(rows=DATA):
        ensemble = new()
        list(train(ensemble, data=rows, num_epochs=1))
        return ensemble

    straight, broken, resumed = first(), first(), first()
    list(train(straight, tmp_path / "straight"))
    next(train(broken, tmp_path / "c"))
    list(train(resumed, tmp_path / "c"))
    same(resumed.members, straight.members)
    assert resumed.epoch == 5 and len(resumed.history) == 4
    with pytest.raises(ValueError, match="it differs in the members that training began with"):
        train(first((X, Y[::-1])), tmp_path / "c")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept") / "ensemble"
    next(train(new(), folder))
    return folder


def less(params, x, key=None):
    return 0.9 * apply(params, x, key)


OTHERS = {
    "members": (lambda f: train(new(2), f), "num_members is 3 there, and 2 here"),
    "seed": (lambda f: train(new(seed=1), f), "seed of the ensemble is 0 there, and 1 here"),
    "order's seed": (lambda f: train(new(), f, seed=4), "seed is 3 there, and 4 here"),
    "order": (lambda f: train(new(), f, order="shared"), "order is own there, and shared here"),
    "size": (lambda f: train(new(), f, batch_size=9), "batch_size is 8 there, and 9 here"),
    "drop_last": (lambda f: train(new(), f, drop_last=True), "drop_last is False there, and True here"),
    "rows": (lambda f: train(new(), f, data=(X[:20], Y[:20])), r"data is [0] float32 (23, 5), [1] int32 (23,) there"),
    "data": (lambda f: train(new(), f, data=(X + 1, Y)), "it differs in the data"),
    "held out": (lambda f: train(new(), f, held_out=(X[:7], Y[:7])), "it differs in the held-out rows"),
    "rate": (lambda f: train(new(made=learner(optimizer=optax.adam(0.1))), f), "it differs in update (the network,"),
    "optimizer": (
        lambda f: train(new(made=learner(optimizer=optax.sgd(0.1))), f),
        "optimizer's state) and in update (the network,",
    ),
    "network": (lambda f: train(new(made=learner(less)), f), "it differs in update (the network, its loss, or its"),
    "init": (
        lambda f: train(new(made=learner(init=lambda key: init(key[None][0]) | {"b": jnp.ones(3)})), f),
        "differs in init (the network's",
    ),
}


@pytest.mark.parametrize("name", with_slow([*OTHERS], {"members", "seed", "order's seed"}))
def test_a_checkpoint_of_another_training_is_refused_and_what_differs_is_named(folder, name):
    call, words = OTHERS[name]
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        call(folder)
    assert f"checkpoint={str(folder)!r} holds another ensemble" in str(error.value) and len(str(error.value)) < 400


@pytest.mark.slow
def test_a_training_written_anew_is_continued(folder, tmp_path):
    def again(weights, rows, key=None):
        return apply(weights, rows, key)

    other = new(made=learner(again, optax.adam(0.05)))
    assert next(train(other, folder))["loss"].shape == (3,) and other.epoch == 2


def test_a_network_that_cannot_be_compared_is_reported(tmp_path):
    def update(w, batch):
        shift = jax.pure_callback(np.zeros_like, jax.ShapeDtypeStruct(w.shape, w.dtype), w)
        return w + shift, {"w": w[0]}

    def go(epochs):
        ensemble = phx.ensemble(lambda key: jax.random.normal(key, (2,)), update, 2)
        return list(ensemble.train(X, batch_size=8, num_epochs=epochs, checkpoint=tmp_path / "c"))

    go(1)
    with pytest.warns(UserWarning, match="not compared were update .* of which some function's content cannot"):
        assert len(go(2)) == 1


def test_folders_of_something_else_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="holds no ensemble, so it is left alone"):
        train(new(), tmp_path)
    new().save(tmp_path / "saved")
    with pytest.raises(ValueError, match="holds a saved ensemble and no training of it. Name another folder"):
        train(new(), tmp_path / "saved")


@pytest.mark.slow
def test_members_that_are_changed_meanwhile_are_refused(tmp_path):
    ensemble = new()
    with pytest.raises(ValueError, match="Do not update or restore an ensemble while it is trained with checkpoint="):
        for _ in train(ensemble, tmp_path / "c"):
            ensemble.update(DATA)


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"apply": None}, ValueError, "held_out= needs apply="),
        ({"held_out": X}, ValueError, r"the held-out rows must be a pair, \(inputs, labels\)"),
        ({"held_out": (X, Y[:3])}, ValueError, "held_out must be arrays with one leading row"),
        ({"folder": 3}, TypeError, "checkpoint must be a path, such as 'out/run', or phx.checkpoint"),
        ({"log": 3}, TypeError, "log must be a path"),
        ({"log": "."}, ValueError, "log='.' is a folder. Name a CSV file"),
    ],
)
def test_options_of_watching_are_refused_without_epochs(options, error, words):
    with pytest.raises(error, match=words):
        train(new(), **options)


@pytest.mark.slow
def test_a_line_of_the_log_is_an_epoch(straight, tmp_path):
    next(train(new(), tmp_path / "c", log=tmp_path / "logs" / "c.csv"))
    list(train(new(), tmp_path / "c", log=tmp_path / "logs" / "c.csv"))
    with (tmp_path / "logs" / "c.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(int(line["epoch"]), int(line["steps"])) for line in lines] == [(1, 3), (2, 6), (3, 9), (4, 12)]
    for line, measured in zip(lines, straight[1], strict=True):
        assert set(line) == {"epoch", "steps", "seconds", *measured}
        for name, values in measured.items():
            assert float(line[name]) == np.mean(values), name
    assert all(float(a["seconds"]) < float(b["seconds"]) for a, b in itertools.pairwise(lines))


@pytest.mark.slow
def test_held_out_rows_are_scored_after_each_epoch(straight):
    ensemble = new()
    for measured in train(ensemble, num_epochs=2):
        scores = ensemble.predict(LEARNER.apply, HELD_OUT[0]).scores(HELD_OUT[1])
        assert (measured["held_out_loss"], measured["held_out_accuracy"]) == (scores.nll, scores.accuracy)
    assert set(straight[1][0]) == {
        "loss", "accuracy", "ensemble_loss", "ensemble_accuracy", "held_out_loss", "held_out_accuracy",
    }  # fmt: skip


@pytest.mark.slow
def test_nested_values_and_none_at_all_are_resumed(tmp_path, monkeypatch, ctrl_c):
    def nested(w, batch):
        return w + batch.mean(), {"a": {"b": batch.mean(), "c": (w[0], w[1])}}

    for number, update in enumerate((nested, lambda w, batch: (w + batch.mean(), {}))):

        def fresh(update=update):
            return phx.ensemble(lambda key: jax.random.normal(key, (2,)), update, 2)

        def go(ensemble, folder=None):
            return list(ensemble.train(X, batch_size=5, num_epochs=2, checkpoint=folder))

        straight, broken, resumed = fresh(), fresh(), fresh()
        expected = go(straight)
        stop_at(broken, monkeypatch, 7, ctrl_c)
        go(broken, tmp_path / str(number))
        same(go(resumed, tmp_path / str(number)), expected[1:])
        same(resumed.members, straight.members)
        assert set(resumed.history[0]) == ({"a.b", "a.c.0", "a.c.1"} if number == 0 else set())


@pytest.mark.slow
def test_every_damage_of_a_checkpoint_is_one_clear_error_or_changes_nothing(folder, tmp_path):
    whole = new()
    list(train(whole, shutil.copytree(folder, tmp_path / "whole")))
    noticed = 0
    for copy in damaged_copies(shutil.copytree(folder, tmp_path / "given"), tmp_path / "copy", 24):
        ensemble = new()
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                list(train(ensemble, copy))
        except (ValueError, FileExistsError) as error:
            noticed += 1
            assert str(copy) in str(error)
        else:
            noticed += any("the save before it is used" in str(warning.message) for warning in caught)
            same(ensemble.members, whole.members)
    assert noticed >= 8  # the other files are those of the save before, or hold no numbers


@pytest.mark.slow
def test_a_folder_of_an_earlier_release_is_continued(straight, folder, tmp_path):
    """Such a folder has an index in place of manifests, and one state."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    manifest = max(copy.glob("save-*.json"))
    entries = {name: value for name, value in json.loads(manifest.read_text()).items() if name not in ("seal", "files")}
    (copy / "ensemble.json").write_text(seal(entries, copy, entries["states"]))
    for path in (*copy.glob("save-*.json"), copy / "lock"):
        path.unlink()
    resumed = new()
    assert len(list(train(resumed, copy))) in (2, 3)
    same(resumed.members, straight[0])
    (copy / "ensemble.json").unlink(missing_ok=True)
    for path in copy.glob("save-*.json"):
        path.unlink()
    with pytest.raises(ValueError, match="is damaged: it has states and no manifest"):
        train(new(), copy)


@pytest.mark.slow
def test_permanent_saves_are_kept_and_restored(straight, tmp_path):
    ensemble = new()
    list(train(ensemble, phx.checkpoint(tmp_path / "c", every=5)))
    kept = sorted((tmp_path / "c").glob("save-*-at-*.json"))
    assert [int(path.stem.rpartition("-")[2]) for path in kept] == [5, 10]
    other = new()
    other.restore(kept[0])
    assert other.steps == 5
    for manifest in set((tmp_path / "c").glob("save-*.json")) - {kept[0]}:
        manifest.unlink()
    resumed = new()
    list(train(resumed, tmp_path / "c"))
    same(resumed.members, straight[0])


@pytest.mark.slow
def test_sigterm_within_a_step_saves_first(straight, tmp_path, monkeypatch):
    broken = new()
    # a launcher and its scheduler both signal a process
    stop_at(broken, monkeypatch, 7, lambda: [signal.raise_signal(signal.SIGTERM) for _ in range(2)])
    with pytest.raises(SystemExit) as ended:
        list(train(broken, tmp_path / "c"))
    assert ended.value.code == 143 and (tmp_path / "c" / "last-8").is_dir()
    resumed = new()
    list(train(resumed, tmp_path / "c"))
    same(resumed.members, straight[0])


def test_an_index_without_an_entry_is_refused_by_name(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    manifest = max(copy.glob("save-*.json"))
    entries = json.loads(manifest.read_text())
    entries = {name: value for name, value in entries.items() if name not in ("seal", "files", "made", "looks")}
    manifest.write_text(seal(entries, copy, []))
    with pytest.raises(ValueError, match=r"is damaged: its record has no entry 'made', 'looks'\. Restore the folder"):
        train(new(), copy)


@pytest.mark.slow
def test_float64_and_half_precision_are_resumed(tmp_path):
    def update(w, batch):
        return w - (0.1 * w.astype(jnp.float32) * batch.mean()).astype(w.dtype), {"w": w[0]}

    def go(folder, epochs, dtype):
        ensemble = phx.ensemble(lambda key: jax.random.normal(key, (2,), dtype), update, 2)
        list(ensemble.train(X, batch_size=8, num_epochs=epochs, checkpoint=tmp_path / dtype.__name__ / folder))
        return ensemble.members, ensemble.history

    for dtype in (jnp.bfloat16, jnp.float64):
        with jax.enable_x64(True):
            go("broken", 1, dtype)
            found = go("broken", 2, dtype)
            same(found, go("straight", 2, dtype))
            assert found[0].dtype == dtype
