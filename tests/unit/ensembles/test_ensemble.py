"""Ensembles: every member is the network that would be trained alone, wherever it lies."""

from __future__ import annotations

import shutil
import signal
from contextlib import suppress
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from tests.unit.damages import damaged_copies

import phalanx as phx
from phalanx.ensembles import placement
from phalanx.run.progress.display import Lines

RNG = np.random.default_rng(0)
X = RNG.normal(size=(23, 5)).astype(np.float32)
Y = (X @ RNG.normal(size=(5, 3))).argmax(1).astype(np.int32)
STEPS = 6


def loss(logits, y):
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), {
        "right": jnp.mean((logits.argmax(-1) == y).astype(jnp.float32))
    }


class Small(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(5, 8, rngs=rngs)
        self.normalised = nnx.BatchNorm(8, rngs=rngs)
        self.logits = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.logits(nnx.relu(self.normalised(self.hidden(x))))


class Flax(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(3)(linen.relu(linen.Dense(8)(x)))


class TwoModes(linen.Module):
    """Statistics of batches, and dropout."""

    @linen.compact
    def __call__(self, x, train=False):
        x = linen.BatchNorm(use_running_average=not train, momentum=0.5)(x)
        return linen.Dense(3)(linen.Dropout(0.3, deterministic=not train)(x))


def plain(key):
    return {"w": 0.1 * jax.random.normal(key, (5, 3)), "b": jnp.zeros(3)}


def noisy(params, x, key):
    """A network that needs random numbers when it is trained."""
    kept = 1.0 if key is None else jax.random.bernoulli(key, 0.7, x.shape)
    return (x * kept) @ params["w"] + params["b"][None]


OPTIMIZER = optax.sgd(0.1, momentum=0.9)
LEARNERS = {
    "functions": phx.ensembles.learner(plain, lambda p, x: x @ p["w"] + p["b"][None], loss, OPTIMIZER),
    "dropout": phx.ensembles.learner(plain, noisy, loss, optax.adam(0.01)),
    "nnx": phx.ensembles.nnx_learner(Small, loss, OPTIMIZER),
    "linen": phx.ensembles.learner(lambda key: Flax().init(key, X[:1]), Flax().apply, loss, OPTIMIZER),
    "linen, two modes": phx.ensembles.linen_learner(
        TwoModes(), X[:1], loss, optax.adamw(0.01, weight_decay=0.5), train={"train": True}
    ),
}


def alone(learner, member, batches):
    """The network trained by itself, from the member's key."""
    key = jax.random.fold_in(jax.random.key(0), member)
    state, update = jax.jit(learner.init)(key), jax.jit(learner.update)
    steps = jax.random.fold_in(key, 2**32 - 2)
    for number, batch in enumerate(batches):
        state, _ = update(state, batch, jax.random.fold_in(steps, number))
    return state


def agree(state, other):
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True):
        if isinstance(b, jax.Array) and jnp.issubdtype(b.dtype, jax.dtypes.prng_key):
            b = jax.random.key_data(b)
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "devices, members",
    [(2, 4), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((1, 3), (4, 6), (8, 3), (2, 1)))],
)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in ("dropout", "nnx") else pytest.mark.slow) for name in LEARNERS],
)  # below, some are looked at in fewer steps
def test_every_member_is_the_network_trained_alone(name, devices, members):
    learner, mesh = LEARNERS[name], phx.make_mesh(devices=jax.devices()[:devices])
    ensemble = phx.ensemble(learner.init, learner.update, members, mesh=mesh)
    batches = [(X[i : i + 7], Y[i : i + 7]) for i in range(STEPS)]
    measured = {}
    for batch in batches:
        measured = ensemble.update(batch)
    assert {value.shape for value in measured.values()} == {(members,)}
    for member in range(members):
        agree(ensemble.member(member), alone(learner, member, batches))


@pytest.mark.slow
def test_statistics_of_batches_are_not_trained():
    learner = LEARNERS["linen, two modes"]
    ensemble = phx.ensemble(learner.init, learner.update, 2)
    for _ in range(20):
        ensemble.update((X + 3, Y))
    (statistics,) = ensemble.member(0).rest["batch_stats"].values()
    np.testing.assert_allclose(statistics["mean"], X.mean(0) + 3, atol=1e-4)
    assert "batch_stats" not in ensemble.member(0).params


class TwoStreams(linen.Module):
    @linen.compact
    def __call__(self, x):
        weight = self.param("w", linen.initializers.ones, ())
        of_dropout, of_others = (jax.random.uniform(self.make_rng(name)) for name in ("dropout", "noise"))
        return weight * (of_dropout - of_others)


def test_streams_of_random_numbers_differ():
    learner = phx.ensembles.linen_learner(
        TwoStreams(), X[:1], lambda out, y: (jnp.abs(out), {"apart": jnp.abs(out)}), optax.sgd(0.0)
    )  # fmt: skip
    state = learner.init(jax.random.key(0))
    assert learner.update(state, (X, Y), jax.random.key(1))[1]["apart"] > 1e-6


def test_collections_that_are_no_parameters_are_refused():
    with pytest.raises(ValueError, match=r"the collections 'batch_stats'.*linen_learner"):
        learner = phx.ensembles.learner(lambda key: TwoModes().init(key, X[:1]), TwoModes().apply, loss, OPTIMIZER)
        phx.ensemble(learner.init, learner.update, 2)


def test_a_member_is_a_network():
    learner = LEARNERS["functions"]
    ensemble = phx.ensemble(learner.init, learner.update, 3, mesh=phx.make_mesh(devices=jax.devices()[:2]))
    before = [ensemble.member(member) for member in (0, -1)]
    ensemble.update((X, Y))
    for member, state in zip((0, 2), before, strict=True):
        after, _ = jax.jit(learner.update)(state, (X, Y), jax.random.key(0))
        agree(ensemble.member(member), after)


def test_steps_draw_other_numbers_than_the_beginning():
    """`split(key, n)[i]` is `fold_in(key, i)`: keys of steps have a fold of their own."""

    def init(key):
        return jnp.stack([jax.random.normal(k, (3,)) for k in jax.random.split(key, 4)])

    def update(state, batch, key):
        return state, {"nearest": jnp.min(jnp.abs(state - jax.random.normal(key, (3,))[None]))}

    ensemble = phx.ensemble(init, update, 2)
    assert all((ensemble.update(X)["nearest"] > 1e-6).all() for _ in range(4))


def test_half_precision_is_averaged_in_full():
    def update(w, batch):
        value, gradient = jax.value_and_grad(lambda w: jnp.mean((batch.astype(w.dtype) @ w) ** 2))(w)
        return w - jnp.bfloat16(0.1) * gradient, {"loss": value}

    ensemble = phx.ensemble(lambda key: jax.random.normal(key, (5, 3), jnp.bfloat16), update, 3)
    (measured,) = ensemble.train(X, batch_size=8)
    assert measured["loss"].dtype == np.float64
    prediction = ensemble.predict(lambda w, x: x.astype(w.dtype) @ w, X)
    np.testing.assert_allclose(prediction.mean.sum(-1), 1.0, rtol=1e-6)


LOOKING = {"plateau": optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau()), "lbfgs": optax.lbfgs()}


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("plateau", marks=pytest.mark.slow), "lbfgs"])
def test_optimisers_that_look_at_the_loss(name):
    learner = phx.ensembles.learner(plain, lambda p, x: x @ p["w"] + p["b"][None], loss, LOOKING[name])
    ensemble = phx.ensemble(learner.init, learner.update, 2)
    losses = [ensemble.update((X, Y))["loss"] for _ in range(5)]
    assert (losses[-1] < losses[0]).all()


def test_arrays_without_elements_go_along(tmp_path):
    def update(state, batch):
        return {**state, "w": state["w"] + 1.0}, {}

    ensemble = phx.ensemble(lambda key: {"w": 0.0, "none": jnp.zeros((0, 3))}, update, 3)
    ensemble.update(X)
    ensemble.save(tmp_path / "saved")
    other = phx.ensemble(lambda key: {"w": 0.0, "none": jnp.zeros((0, 3))}, update, 3)
    other.restore(tmp_path / "saved")
    assert other.members["none"].shape == (3, 0, 3) and other.members["w"].tolist() == [1.0] * 3


@pytest.mark.parametrize("width", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.slow
def test_batched_members_are_those_written_out(monkeypatch, width):
    learner, found = LEARNERS["nnx"], []
    of = placement.Placement.of
    for batched in (False, True):
        if batched:
            monkeypatch.setattr(placement.Placement, "of", classmethod(lambda _, n, mesh: _batched(of(n, mesh), width)))
        ensemble = phx.ensemble(learner.init, learner.update, 5, mesh=phx.make_mesh(devices=jax.devices()[:2]))
        for order in ("shared", "own"):
            list(ensemble.train((X, Y), batch_size=8, order=order))
        found.append((ensemble.members, ensemble.predict(learner.apply, X).mean))
    agree(*found)


def _batched(laid_out, width):
    from dataclasses import replace

    return replace(laid_out, width=width)


def test_more_members_than_one_program_writes_out(monkeypatch):
    monkeypatch.setattr(placement, "WRITTEN_OUT", 2)
    learner = LEARNERS["functions"]
    ensemble = phx.ensemble(learner.init, learner.update, 5, mesh=phx.make_mesh(devices=jax.devices()[:1]))
    batch = X[:7], Y[:7]
    ensemble.update(batch)
    for member in range(5):
        agree(ensemble.member(member), alone(learner, member, [batch]))


@pytest.mark.parametrize("order", ["shared", "own", "bootstrap"])
def test_an_epoch_shows_every_member_as_many_rows(order):
    """23 rows in batches of 8: the last has 7."""
    learner = phx.ensembles.learner(
        lambda key: jnp.zeros(23),
        lambda seen, x: seen,
        lambda seen, x: -jnp.sum(jax.nn.one_hot(x, 23).sum(0) * seen),
        optax.sgd(1.0),
    )
    ensemble = phx.ensemble(learner.init, learner.update, 4, mesh=phx.make_mesh(devices=jax.devices()[:2]))
    rows = np.arange(23)
    list(ensemble.train((rows, rows), batch_size=8, num_epochs=2, order=order))
    seen = np.stack([ensemble.member(member).params for member in range(4)])
    assert ensemble.epoch == 2 and ensemble.steps == 6 and (seen.sum(1) == 46).all()
    if order == "bootstrap":
        assert (seen % 2 == 0).all() and len({tuple(row) for row in seen}) == 4 and (seen == 0).any()
    else:
        assert (seen == 2).all()


@pytest.mark.slow
def test_orders_of_their_own_differ_and_repeat():
    learner = LEARNERS["functions"]

    def trained(order, seed=0):
        ensemble = phx.ensemble(learner.init, learner.update, 3)
        rows = X[:16], Y[:16]  # batches of one size, which compile once
        return [m["loss"] for m in ensemble.train(rows, batch_size=8, num_epochs=2, order=order, seed=seed)]

    own = trained("own")
    np.testing.assert_array_equal(own, trained("own"))
    assert not np.allclose(own, trained("own", seed=1))
    assert not np.allclose(own, trained("shared"))


def test_measured_values_are_averaged_over_rows():
    def update(state, batch):
        return state, {"mean": jnp.mean(batch)}

    ensemble = phx.ensemble(lambda key: jnp.zeros(()), update, 2)
    rows = np.arange(10, dtype=np.float32)
    (measured,) = ensemble.train(rows, batch_size=4)
    np.testing.assert_allclose(measured["mean"], 4.5)


def test_an_update_compiles_once_for_each_size_of_batch():
    traced = []

    def update(state, batch):
        traced.append(batch.shape)
        return state + batch.sum(), {"sum": batch.sum()}

    ensemble = phx.ensemble(lambda key: jnp.zeros(()), update, 3, mesh=phx.make_mesh(devices=jax.devices()[:1]))
    list(ensemble.train(np.ones(10, np.float32), batch_size=4, num_epochs=3))
    assert len(traced) == 3 * 2  # members are written out; batches of 4 and of 2
    assert ensemble.members.tolist() == [30.0] * 3


def test_predictions_do_not_depend_on_the_batch():
    learner = LEARNERS["nnx"]
    ensemble = phx.ensemble(learner.init, learner.update, 3)
    whole = ensemble.predict(learner.apply, X)
    assert whole.probabilities.shape == (3, 23, 3)
    np.testing.assert_allclose(
        ensemble.predict(learner.apply, X, batch_size=5).probabilities, whole.probabilities, rtol=1e-5
    )
    np.testing.assert_allclose(whole.mean.sum(-1), 1.0, rtol=1e-5)


def test_functions_of_the_members(tmp_path):
    learner = LEARNERS["dropout"]
    ensemble = phx.ensemble(learner.init, learner.update, 3, mesh=phx.make_mesh(devices=jax.devices()[:2]))
    logits = ensemble.map(learner.apply, jax.device_put(X, jax.devices()[0]))
    predicted = ensemble.predict(learner.apply, X).probabilities
    np.testing.assert_allclose(predicted, jax.nn.softmax(logits, -1), rtol=1e-5)
    np.testing.assert_allclose(ensemble.map(learner.apply, X), logits, rtol=1e-5)  # and not probabilities

    def drawn(state, key):
        return jax.random.normal(key)

    first = ensemble.map(drawn)
    assert len(set(first.tolist())) == 3
    ensemble.update((X, Y))
    assert not np.allclose(ensemble.map(drawn), first)


def test_predictions_need_rows():
    learner = LEARNERS["functions"]
    ensemble = phx.ensemble(learner.init, learner.update, 2)
    for inputs, size, words in (
        (X[:0], 10, r"inputs must be arrays.*got \(0, 5\)"),
        ({"a": X, "b": X[:3]}, 10, r"got \['a'\] \(23, 5\), \['b'\] \(3, 5\)"),
        ((), 10, "no arrays"),
        (X, 0, "batch_size must be a whole number"),
    ):
        with pytest.raises(ValueError, match=words):
            ensemble.predict(learner.apply, inputs, batch_size=size)


@pytest.mark.parametrize(
    "apply",
    [
        lambda state, x: x @ state.params["w"][:, 0],
        lambda state, x: x @ state.params["w"][:, :1],
        lambda state, x: (x @ state.params["w"])[:2],
        lambda state, x: x[None] @ state.params["w"],
    ],
)
def test_outputs_other_than_logits_are_refused(apply):
    learner = LEARNERS["functions"]
    with pytest.raises(ValueError, match=r"apply must return logits \(rows, classes\)"):
        phx.ensemble(learner.init, learner.update, 2).predict(apply, X, batch_size=5)


def begin(key):
    return {"w": jnp.zeros(3), "n": jnp.zeros((), jnp.int32)}


@pytest.mark.parametrize(
    "update, error, words",
    [
        (lambda s, b: s, TypeError, "must return the new state and a dict .* got dict"),
        (lambda s, b: None, TypeError, "got NoneType"),
        (lambda s, b: ({"loss": 0.0}, s), TypeError, r"\['w'\] was float32 \(3,\) and is missing"),
        (lambda s, b: (s["w"], s["n"]), TypeError, r"was missing and is float32 \(3,\)"),
        (lambda s, b: ({**s, "n": s["n"] + 0.5}, {}), TypeError, r"\['n'\] was int32 \(\) and is float32 \(\)"),
        (lambda s, b: ({**s, "w": s["w"][:2]}, {}), TypeError, r"\['w'\] was float32 \(3,\) and is float32 \(2,\)"),
        (lambda s, b: (s, 0.0), TypeError, "after the state, a dict"),
        (
            lambda s, b: (s, {"losses": b[:, 0]}),
            ValueError,
            r"must measure scalars, and \['losses'\] has shape \(23,\)",
        ),
    ],
)
def test_updates_that_return_something_else(update, error, words):
    ensemble = phx.ensemble(begin, update, 3, mesh=phx.make_mesh(devices=jax.devices()[:2]))
    with pytest.raises(error, match=words):
        ensemble.update(X)
    assert ensemble.steps == 0


@pytest.mark.slow
def test_an_interrupted_step_is_made_by_all_members(monkeypatch, ctrl_c):
    monkeypatch.setattr(placement, "WRITTEN_OUT", 2)
    learner = LEARNERS["functions"]
    one = phx.make_mesh(devices=jax.devices()[:1])
    ensemble, other = (phx.ensemble(learner.init, learner.update, 5, mesh=one) for _ in range(2))
    make = ensemble._members.compile_step

    def interrupted(own):
        step = make(own)

        def run(*arguments):
            done = step(*arguments)
            if len(ran) == 0:
                ctrl_c()
            ran.append(done)
            return done

        return run

    ran = []
    monkeypatch.setattr(ensemble._members, "compile_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ensemble.update((X, Y))
    other.update((X, Y))
    assert ensemble.steps == 1 and len(ran) == 3
    agree(ensemble.members, other.members)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_ends_training_with_what_there_is(monkeypatch, ctrl_c):
    learner = LEARNERS["functions"]
    one = phx.make_mesh(devices=jax.devices()[:1])
    ensemble, other = (phx.ensemble(learner.init, learner.update, 3, mesh=one) for _ in range(2))
    step = ensemble._members.step

    def interrupted(*arguments):
        if ensemble.steps == 4:
            ctrl_c()
        return step(*arguments)

    monkeypatch.setattr(ensemble._members, "step", interrupted)
    size = -(-len(X) // 3)
    measured = list(ensemble.train((X, Y), batch_size=size, num_epochs=5))
    assert (len(measured), ensemble.steps, ensemble.epoch, ensemble.interrupted) == (2, 5, 1, True)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    whole = other.train((X, Y), batch_size=size, num_epochs=5)
    agree(measured[0], next(whole))
    assert all(np.isfinite(values).all() for values in measured[1].values())
    more = list(ensemble.train((X, Y), batch_size=size, num_epochs=1))
    assert len(more) == 1 and not ensemble.interrupted


@pytest.mark.parametrize("order", ["shared", pytest.param("own", marks=pytest.mark.slow)])
def test_progress_shows_steps_epochs_and_what_was_measured_and_changes_nothing(order, monkeypatch):
    shown = []
    monkeypatch.setattr(Lines, "show", lambda self, report: shown.append(report))
    found = []
    for progress in (False, True):
        learner = LEARNERS["functions"]
        ensemble = phx.ensemble(learner.init, learner.update, 3)
        options = {"batch_size": 8, "num_epochs": 2, "order": order, "progress": progress}
        found.append((list(ensemble.train((X, Y), **options)), ensemble.members))
    agree(*found)
    assert (shown[-1].done, shown[-1].total, shown[-1].members) == (2 * -(-len(X) // 8),) * 2 + (3,)
    assert shown[-1].what == "steps" and str(shown[-1]).startswith("epoch 2/2, loss ")


def test_where_ctrl_c_is_ignored_it_stays_so(ctrl_c):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    learner = LEARNERS["functions"]
    ensemble = phx.ensemble(learner.init, learner.update, 2)
    ensemble.update((X, Y))
    ctrl_c()
    assert ensemble.steps == 1 and signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    learner = LEARNERS["functions"]
    ensemble, other = phx.ensemble(learner.init, learner.update, 2), tmp_path / "thesis"
    other.mkdir()
    (other / "results.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="holds no ensemble, so it is left alone"):
        ensemble.save(other)
    with pytest.raises(FileExistsError, match=r"results.txt' is a file"):
        ensemble.save(other / "results.txt")
    with pytest.raises(FileNotFoundError, match="no ensemble was saved to"):
        ensemble.restore(other)
    assert [path.name for path in tmp_path.rglob("*")] == ["thesis", "results.txt"]
    (tmp_path / "empty").mkdir()
    ensemble.save(tmp_path / "empty")
    ensemble.save(tmp_path / "new" / "deeper")
    ensemble.restore(tmp_path / "new" / "deeper")


def test_a_save_that_fails_leaves_the_one_before(tmp_path, monkeypatch):
    learner = LEARNERS["functions"]
    ensemble = phx.ensemble(learner.init, learner.update, 2)
    ensemble.save(tmp_path / "saved")
    import orbax.checkpoint

    def fail(self, path, *_, **__):
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(orbax.checkpoint.StandardCheckpointer, "save", fail)
        ensemble.update((X, Y))
        with pytest.raises(OSError, match="no space left"):
            ensemble.save(tmp_path / "saved")
    other = phx.ensemble(learner.init, learner.update, 2)
    other.restore(tmp_path / "saved")
    assert other.steps == 0
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


@pytest.mark.parametrize("step", range(1, 6))
def test_a_process_that_is_killed_as_it_saves_leaves_an_ensemble(tmp_path, monkeypatch, step):
    """The process ends before the n-th file gets its name, or after the last one does."""
    learner = LEARNERS["functions"]
    ensemble = phx.ensemble(learner.init, learner.update, 2)
    ensemble.save(tmp_path / "saved")
    ensemble.update((X, Y))
    calls = []

    class Killed(BaseException):
        pass

    def counted(function):
        def call(*arguments, **options):
            calls.append(function)
            if len(calls) == step:
                raise Killed
            return function(*arguments, **options)

        return call

    with monkeypatch.context() as patched:
        for name in ("rename", "replace", "unlink"):
            patched.setattr(Path, name, counted(getattr(Path, name)))
        patched.setattr(shutil, "rmtree", counted(shutil.rmtree))
        with suppress(Killed):
            ensemble.save(tmp_path / "saved")
    other = phx.ensemble(learner.init, learner.update, 2)
    other.restore(tmp_path / "saved")
    assert other.steps in (0, 1)
    ensemble.save(tmp_path / "saved")
    other.restore(tmp_path / "saved")
    assert other.steps == 1 and len([*(tmp_path / "saved").glob("arrays-*")]) == 1


@pytest.mark.slow
def test_a_saved_ensemble_goes_on_elsewhere(tmp_path):
    learner, rows = LEARNERS["nnx"], (X[:16], Y[:16])  # batches of one size, which compile once
    straight = phx.ensemble(learner.init, learner.update, 5)
    list(straight.train(rows, batch_size=8, num_epochs=4))
    first = phx.ensemble(learner.init, learner.update, 5, mesh=phx.make_mesh(devices=jax.devices()[:2]))
    list(first.train(rows, batch_size=8, num_epochs=2))
    first.save(tmp_path / "saved")
    first.save(tmp_path / "saved")  # over the one before
    second = phx.ensemble(learner.init, learner.update, 5, mesh=phx.make_mesh(devices=jax.devices()[:4]))
    second.restore(tmp_path / "saved")
    assert (second.epoch, second.steps) == (2, 4)
    list(second.train(rows, batch_size=8, num_epochs=2))
    agree(second.members, straight.members)


@pytest.mark.slow
def test_weights_of_other_networks_are_refused(tmp_path):
    learner, other = LEARNERS["functions"], LEARNERS["linen"]
    phx.ensemble(learner.init, learner.update, 2).save(tmp_path / "saved")
    with pytest.raises(ValueError, match="was saved with members 2, and this ensemble has 3"):
        phx.ensemble(learner.init, learner.update, 3).restore(tmp_path / "saved")
    with pytest.raises(ValueError, match="was saved with seed 0, and this ensemble has 1"):
        phx.ensemble(learner.init, learner.update, 2, seed=1).restore(tmp_path / "saved")
    with pytest.raises(ValueError, match="holds other networks"):
        phx.ensemble(other.init, other.update, 2).restore(tmp_path / "saved")
    renamed = phx.ensemble(lambda key: {"v": plain(key)["w"], "b": jnp.zeros(3)}, lambda s, b: (s, {}), 2)
    saved = phx.ensemble(plain, lambda s, b: (s, {}), 2)
    saved.save(tmp_path / "plain")
    with pytest.raises(ValueError, match=r"\['w'\] is float32 \(5, 3\) there and missing in this ensemble"):
        renamed.restore(tmp_path / "plain")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        phx.ensemble(learner.init, learner.update, 2).restore(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: phx.ensemble(None, lambda s, b: s, 2), TypeError, "init must be a function"),  # pyright: ignore[reportArgumentType]
        (lambda: phx.ensemble(lambda k: k, 3, 2), TypeError, "update must be a function"),  # pyright: ignore[reportArgumentType]
        (lambda: phx.ensemble(lambda k: k, lambda s, b: s, 0), ValueError, "num_members must be a whole number"),
        (lambda: phx.ensemble(lambda k: k, lambda s, b, rng: s, 2), TypeError, r"\(state, batch, key\) by these names"),
        (lambda: phx.ensemble(lambda k: (), lambda s, b: s, 2), ValueError, "there is no array in what it returned"),
        (lambda: phx.ensemble(lambda k: {"f": len}, lambda s, b: s, 2), TypeError, r"\['f'\] is builtin_function"),
        (lambda: phx.ensemble(lambda k: k, lambda s, b: s, 2, seed="a"), ValueError, "seed must be a whole number"),  # pyright: ignore[reportArgumentType]
        (lambda: phx.ensemble(lambda k: k, lambda s, b: s, 2, mesh=2), TypeError, "mesh must be one of phx.make_mesh"),  # pyright: ignore[reportArgumentType]
        (
            lambda: phx.ensembles.learner(plain, noisy, loss, optax.adam), TypeError,
            "optimizer must be one of optax's",
        ),
        (
            lambda: phx.ensemble(lambda k: k, lambda s, b: s, 2, mesh=phx.make_mesh(data=2, model=2)),
            ValueError, r"rows of batches along 'data', but the mesh is \{'chain': 2, 'data': 2, 'model': 2\}",
        ),
    ],
)  # fmt: skip
def test_other_objects_than_ensembles_are_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize(
    "data, options, words",
    [
        ((X, Y[:5]), {}, "equally many"),
        ((), {}, "no arrays"),
        ((X[:0], Y[:0]), {}, "at least 1"),
        ((X, Y), {"batch_size": 0}, "batch_size must be"),
        ((X, Y), {"num_epochs": 0}, "num_epochs must be"),
        ((X, Y), {"seed": -1}, "seed must be"),
        ((X, Y), {"order": "random"}, "order must be one of 'shared', 'own', 'bootstrap'"),
    ],
)
def test_data_that_cannot_be_trained_on_are_refused(data, options, words):
    learner = LEARNERS["functions"]
    ensemble = phx.ensemble(learner.init, learner.update, 2)
    with pytest.raises(ValueError, match=words):
        ensemble.train(data, **{"batch_size": 4, **options})


def test_a_member_that_there_is_not():
    ensemble = phx.ensemble(lambda key: jnp.zeros(2), lambda s, b: (s, {}), 2)
    with pytest.raises(IndexError, match="there is no member 2; there are 2"):
        ensemble.member(2)


@pytest.mark.parametrize("members", [1, 16])
def test_a_collective_over_the_members_is_refused(members):
    def update(w, batch):
        return w, {"mean": jax.lax.pmean(w.sum(), "chain")}

    ensemble = phx.ensemble(lambda key: jax.random.normal(key, (3,)), update, num_members=members)
    with pytest.raises(ValueError, match="update asks for the axis 'chain'.*does not see the others"):
        ensemble.update(np.ones(3, np.float32))


def test_labels_that_are_no_classes_are_not_learned():
    logits, labels = jnp.zeros((4, 3)), jnp.array([0, 1, 2, 1])
    value, measured = phx.ensembles.classification_loss(logits, labels)
    assert float(value) == pytest.approx(np.log(3.0)) and float(measured["accuracy"]) == 0.25
    for wrong in (labels + 1, labels - 1):
        assert np.isnan(phx.ensembles.classification_loss(logits, wrong)[0])
    with pytest.raises(TypeError, match="labels must be the whole numbers of classes, from 0; got float32"):
        phx.ensembles.classification_loss(logits, labels.astype(jnp.float32))
    with pytest.raises(ValueError, match=r"labels of shape \(4, 1\) for logits of shape \(4, 3\)"):
        phx.ensembles.classification_loss(logits, labels[:, None])


def test_a_process_without_a_member_is_refused(monkeypatch):
    monkeypatch.setattr("jax.process_count", lambda: 2)
    with pytest.raises(
        ValueError, match="ensemble: 1 member leaves process 1 without a member. Train at least as many"
    ):
        phx.ensemble(lambda key: jnp.zeros(2), lambda state, batch: (state, {}), 1, mesh=phx.make_mesh())


def test_an_index_of_an_ensemble_without_an_entry_is_refused_by_name(tmp_path):
    ensemble = phx.ensemble(lambda key: jnp.zeros(2), lambda state, batch: (state, {}), 2)
    (tmp_path / "saved").mkdir()
    for manifest in (tmp_path / "saved").glob("save-*.json"):
        manifest.unlink()
    (tmp_path / "saved" / "ensemble.json").write_text('{"epoch": 1, "steps": 2, "members": 2}')
    with pytest.raises(ValueError, match=r"damaged: its record has no entry 'seed', 'arrays'\. Restore the folder"):
        ensemble.restore(tmp_path / "saved")


def test_every_damage_of_a_saved_ensemble_is_one_clear_error_or_changes_nothing(tmp_path):
    learner = LEARNERS["functions"]
    ensemble = phx.ensemble(learner.init, learner.update, 2)
    ensemble.save(tmp_path / "saved")
    whole, refused = ensemble.members, 0
    for copy in damaged_copies(tmp_path / "saved", tmp_path / "copy", 40):
        try:
            ensemble.restore(copy)
        except (ValueError, FileNotFoundError) as error:
            refused += 1
            assert str(copy) in str(error)
        else:
            jax.tree.map(np.testing.assert_array_equal, ensemble.members, whole)
    assert refused > 30


def test_data_that_are_not_finite_are_refused_where_a_step_sees_them():
    learner = LEARNERS["functions"]
    ensemble, bad = phx.ensemble(learner.init, learner.update, 2), X.copy()
    bad[20, 3] = np.nan
    with pytest.raises(ValueError, match=r"train: data\[0\] has 1 NaN value \(the first: data\[0\]\[20, 3\]\)"):
        ensemble.train((bad, Y), batch_size=8)

    def masked(w, batch):
        x, y = batch
        seen = jnp.isfinite(x)
        return w - 0.1 * jnp.mean(jnp.where(seen, x, 0.0)), {"loss": jnp.mean(y)}

    of_masks = phx.ensemble(lambda key: jax.random.normal(key, ()), masked, 2)
    (measured,) = of_masks.train((bad, Y), batch_size=8)
    assert np.isfinite(measured["loss"]).all() and np.isfinite(of_masks.members).all()
