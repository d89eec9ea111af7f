"""Long fits: rows in an order that is repeated, looks on the way, and a fit that goes on as if it had never ended."""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
from importlib.metadata import version
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpyro.distributions import constraints
from tests.unit.damages import damaged_copies

import phalanx as phx
from phalanx.store import identity
from phalanx.store.policy import SavePolicy
from phalanx.variational.guides.guide_and_model import for_steps
from phalanx.variational.methods.step import FitState, StepBounds, StepOrder, Steps
from phalanx.variational.monitoring.evaluating import HeldOut
from phalanx.variational.monitoring.watching import fit_checkpoint, flops_of_a_step

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(48, 4)).astype(np.float32)
DATA = {"x": X, "y": (X[:, 0] > 0).astype(np.int32)}
HELD_OUT = {name: values[:20] for name, values in DATA.items()}
STEPS = {"num_steps": 12, "optimizer": optax.adam(1e-2), "progress": False}
NETWORK = phx.networks.from_functions(
    lambda key: {"w": 0.5 * jax.random.normal(key, (4, 8)), "v": 0.5 * jax.random.normal(key, (8, 2))},
    lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"],
    spec=lambda path, shape: {"w": (None, "model"), "v": ("model", None)}[path],
)


def model(x, y):
    phx.sample("y", dist.CategoricalLogits(phx.network("net", NETWORK)(x)), obs=y)


def rows(**options):
    return phx.batches(DATA, 8, **options)


@given(count=st.integers(1, 40), size=st.integers(1, 40), seed=st.integers(0, 9), step=st.integers(0, 30))
@settings(max_examples=50, deadline=None)
def test_a_step_has_its_rows_wherever_one_begins(count, size, seed, step):
    size = min(size, count)
    batches = phx.batches({"x": np.arange(count)}, size, seed=seed)
    from_start = next(itertools.islice(iter(batches), step, None))
    np.testing.assert_array_equal(next(batches.from_step(step))["x"], from_start["x"])
    epoch = [batch["x"] for batch in itertools.islice(batches, batches.per_epoch)]
    seen = np.concatenate(epoch)
    assert len(set(seen)) == len(seen) == count // size * size and batches.num_rows == count


def test_epochs_and_seeds_differ_and_a_transform_repeats():
    def noisy(batch, rng):
        return {"x": batch["x"] + rng.normal(size=batch["x"].shape)}

    batches = phx.batches({"x": X}, 48, transform=noisy)
    first, second = itertools.islice(batches, 2)
    assert not np.array_equal(first["x"], second["x"])
    np.testing.assert_array_equal(next(batches.from_step(1))["x"], second["x"])
    assert not np.array_equal(first["x"], next(iter(phx.batches({"x": X}, 48, seed=1, transform=noisy)))["x"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "losses.csv"
    watched = phx.training(every=4, held_out=HELD_OUT, log=log)
    return phx.fit(model, None, rows(), training=watched, **STEPS), log


def broken_off(folder, at, watched):
    """A fit that something ends after a look, with what it leaves in its folder."""

    def end(report):
        if report.done == at:
            raise RuntimeError("broken off")

    with pytest.raises(RuntimeError, match="broken off"):
        phx.fit(model, None, rows(), training=watched, on_block=end, **STEPS)
    assert (folder / f"last-{at}").is_dir()


def test_a_resumed_fit_has_the_same_losses_bit_for_bit(whole, tmp_path):
    watched = phx.training(every=4, held_out=HELD_OUT, checkpoint=tmp_path / "fit")
    broken_off(tmp_path / "fit", 8, watched)
    resumed = phx.fit(model, None, rows(), training=watched, **STEPS)
    expected, _ = whole
    np.testing.assert_array_equal(resumed.losses.elbo, expected.losses.elbo)
    jax.tree.map(np.testing.assert_array_equal, resumed.params, expected.params)
    assert [look[2:6] for look in resumed.looks] == [look[2:6] for look in expected.looks]
    again = phx.fit(model, None, rows(), training=watched, **STEPS)  # there is nothing left to do
    jax.tree.map(np.testing.assert_array_equal, again.params, expected.params)


def test_a_fit_in_float64_is_gone_on_with(tmp_path):
    def normal(y):
        phx.sample("y", dist.Normal(phx.param("m", 0.0), 1.0), obs=y)

    with jax.enable_x64(True):
        batches = phx.batches({"y": np.arange(20.0)}, 5)

        def go(steps, folder):
            watched = phx.training(every=4, checkpoint=folder)
            return phx.fit(normal, None, batches, optimizer=0.01, num_steps=steps, training=watched, progress=False)

        go(8, tmp_path / "c")
        again, straight = go(16, tmp_path / "c"), go(16, tmp_path / "d")
    assert again.losses.elbo.dtype == np.float64
    np.testing.assert_array_equal(again.losses.elbo, straight.losses.elbo)


def test_ctrl_c_between_two_looks_saves_the_steps_that_were_made(whole, tmp_path):
    watched, stopped = phx.training(every=4, held_out=HELD_OUT, checkpoint=tmp_path / "fit"), []

    def press(report):
        if report.done % 4:
            stopped.append(report.done)
            raise KeyboardInterrupt

    broken = phx.fit(model, None, rows(), training=watched, on_block=press, **STEPS)
    assert len(broken.losses.elbo) == stopped[0] and (tmp_path / "fit" / f"last-{stopped[0]}").is_dir()
    resumed, (expected, _) = phx.fit(model, None, rows(), training=watched, **STEPS), whole
    np.testing.assert_array_equal(resumed.losses.elbo, expected.losses.elbo)
    jax.tree.map(np.testing.assert_array_equal, resumed.params, expected.params)
    assert [look[2:6] for look in resumed.looks] == [look[2:6] for look in expected.looks]


@pytest.mark.slow
def test_it_goes_on_on_another_mesh(whole, tmp_path, mesh_of):
    watched = phx.training(every=4, checkpoint=tmp_path / "fit")
    broken_off(tmp_path / "fit", 8, watched)
    resumed = phx.fit(model, None, rows(), training=watched, mesh=mesh_of(1, 2, 4), **STEPS)
    np.testing.assert_allclose(resumed.losses.elbo, whole[0].losses.elbo, rtol=1e-4)
    assert resumed.free is not None
    assert {shard.data.shape for shard in resumed.free["net"]["w"].addressable_shards} == {(4, 2)}
    assert {shard.data.shape for shard in resumed.arrays[0].addressable_shards} == {(4, 4)}


def test_a_look_is_logged(whole):
    fit, log = whole
    with log.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [int(line["step"]) for line in lines] == [4, 8, 12]
    expected = -fit.losses.elbo.reshape(3, 4).mean(1) / 48
    np.testing.assert_allclose([float(line["loss"]) for line in lines], expected, rtol=1e-6)
    for line in lines:
        assert float(line["bits"]) == pytest.approx(float(line["loss"]) / math.log(2))
        assert float(line["rows_per_second"]) > 0


def test_held_out_rows_are_evaluated_and_the_best_are_kept(whole):
    fit, _ = whole
    best = min(fit.looks, key=lambda look: look.held_out_loss)
    logits = NETWORK.apply(fit.params["net"], HELD_OUT["x"][:16])  # 20 rows make two batches of 8
    expected = -dist.CategoricalLogits(logits).log_prob(HELD_OUT["y"][:16]).mean()
    assert best.held_out_loss == pytest.approx(float(expected), rel=1e-5)


def test_a_fit_goes_on_with_the_very_next_batch():
    seen = []

    def noted(batch, rng):
        seen.append(batch["x"])
        return batch

    first = phx.fit(model, None, rows(), **{**STEPS, "num_steps": 4})
    assert first.seen == 4
    second = phx.fit(model, None, rows(transform=noted), init=first, **{**STEPS, "num_steps": 3})
    expected = [batch["x"] for batch in itertools.islice(rows().from_step(4), 3)]
    for found, wanted in zip(seen[1:], expected, strict=True):  # the first tells the shapes
        np.testing.assert_array_equal(found, wanted)
    assert second.seen == 7


def test_a_fit_of_no_steps_is_not_watched():
    with pytest.raises(ValueError, match="training: with num_steps=0 there are no steps to watch"):
        phx.fit(model, None, rows(), training=phx.training(every=4), num_steps=0, progress=False)


def test_options_of_watching_are_refused_without_steps(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="holds no fit, so it is left alone"):
        phx.fit(model, None, rows(), training=phx.training(checkpoint=tmp_path), **STEPS)
    with pytest.raises(ValueError, match="held_out= has 5 rows, fewer than a batch of 8"):
        few = {name: values[:5] for name, values in DATA.items()}
        phx.fit(model, None, rows(), training=phx.training(held_out=few), **STEPS)
    with pytest.raises(ValueError, match="every must be a whole number"):
        phx.training(every=0)
    with pytest.raises(TypeError, match=r"training: expected phx.training\(...\)"):
        phx.fit(model, None, rows(), training=3, **STEPS)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="phx.batches knows how many rows"):
        phx.fit(model, None, rows(), num_rows=48, **STEPS)


@pytest.mark.parametrize(
    "data, size, message",
    [
        ({"x": np.zeros(3), "y": np.zeros(4)}, 1, "3 of x, 4 of y"),
        ({"x": np.zeros(3)}, 4, "from 1 to the 3 rows; got 4"),
    ],
)
def test_batches_that_cannot_be_made_are_refused(data, size, message):
    with pytest.raises(ValueError, match=message):
        phx.batches(data, size)


# -- what is latent lives with the rows -------------------------------------------------------------------------------


def local(x):
    z = phx.sample("z", dist.Normal(0.0, 1.0).expand([len(x)]))
    phx.sample("x", dist.Normal(phx.param("slope", 1.5) * z, 1.0), obs=x)


def amortised(x):
    """Not the posterior, on purpose: weights differ, and by a transform, so that densities come from the drawing."""
    scale = phx.param("scale", 0.8, constraints.positive)
    bend = dist.transforms.AffineTransform(phx.param("gain", 0.3) * x, scale)
    phx.sample("z", dist.TransformedDistribution(dist.Normal(0.0, 1.0).expand([len(x)]), bend))


@pytest.fixture(scope="module")
def latent():
    data = {"x": RANDOM.normal(size=64).astype(np.float32)}
    return phx.fit(
        local, amortised, phx.batches(data, 16), num_steps=2, optimizer=optax.sgd(0.0), num_particles=2, until=False,
        objective=phx.guides.elbo(path=False), progress=False,
    )  # fmt: skip


def log_normal(x, loc, scale):
    return -0.5 * ((x - loc) / scale) ** 2 - math.log(scale) - 0.5 * math.log(2 * math.pi)


@pytest.mark.slow
def test_weighted_bounds_come_near_the_likelihood(latent):
    """To four standard errors of the logarithm of a mean of 4,000 weights: fails in 1 of 16,000 cases a row."""
    x = np.array([0.0, 1.0, -2.0], np.float32)
    bounds = latent.row_bounds({"x": x}, 4000)
    exact = log_normal(x, 0.0, math.sqrt(1.5**2 + 1.0))
    z = np.random.default_rng(1).normal(size=(4000, 1)) * 0.8 + 0.3 * x
    log_w = log_normal(z, 0.0, 1.0) + log_normal(x, 1.5 * z, 1.0) - log_normal(z, 0.3 * x, 0.8)
    error = np.exp(log_w - exact).std(0) / math.sqrt(4000)
    assert (np.abs(bounds.importance_weighted - exact) < 4 * error).all()
    assert (np.abs(bounds.elbo - log_w.mean(0)) < 4 * math.sqrt(2 / 4000) * log_w.std(0)).all()


@pytest.mark.slow
def test_bounds_of_rows_in_float64():
    x = RANDOM.normal(size=16)
    with jax.enable_x64(True):
        options = {"num_steps": 2, "num_particles": 2, "until": False, "progress": False}
        bounds = phx.fit(local, amortised, phx.batches({"x": x}, 8), **options).row_bounds({"x": x}, 60)
    assert bounds.elbo.shape == (16,) and (bounds.elbo <= bounds.importance_weighted).all()


@pytest.mark.slow
def test_the_density_of_draws_is_the_same_on_the_way_and_afterwards(latent):
    pair, key, data = latent.pair, jax.random.key(3), {"x": X[:, 0]}
    params = pair.learned.constrain(latent.free)
    draw, drawn = pair.draw_weighted(params, pair.noise(key), data)
    np.testing.assert_array_equal(draw["z"], pair.draw(params, pair.noise(key), data)["z"])
    assert float(drawn) == pytest.approx(float(pair.log_guide(params, draw, data)), rel=1e-5)


@pytest.mark.slow
def test_both_gradients_of_the_bound_have_the_same_mean(latent):
    """Their difference has mean zero: over 2,000 draws it is within four standard errors, in each parameter."""
    key, differences = jax.random.key(0), {}
    gradients = {}
    for path in (True, False):
        steps = Steps(for_steps(latent.pair), phx.guides.elbo(path=path), None, 1)
        one = jax.vmap(lambda k, steps=steps: steps.gradient(latent.free, k, latent.arrays)[0])
        gradients[path] = jax.jit(one)(jax.random.split(key, 2000))
    differences = jax.tree.map(lambda a, b: np.asarray(a - b), gradients[True], gradients[False])
    for name, found in differences.items():
        assert abs(found.mean()) <= 4 * found.std() / math.sqrt(2000) + 1e-3, name


@pytest.mark.slow
def test_bounds_of_rows_need_rows_that_are_apart(latent):
    def shared(x):
        z = phx.sample("z", dist.Normal(0.0, 1.0))
        phx.sample("x", dist.Normal(z, 1.0), obs=x)

    def guide():
        phx.sample("z", dist.Normal(phx.param("loc", 0.0), 1.0))

    data = {"x": X[:, 0]}
    options = {"num_steps": 1, "num_particles": 1, "until": False, "progress": False}
    with pytest.raises(ValueError, match="variable 'z' belongs to all rows together"):
        phx.fit(shared, guide, phx.batches(data, 8), **options).row_bounds(data)
    with pytest.raises(ValueError, match="needs a fit to minibatches"):
        phx.fit(shared, guide, data, **options).row_bounds(data)


@pytest.mark.slow
def test_by_maximum_likelihood_bounds_are_the_likelihood(whole):
    bounds = whole[0].row_bounds(HELD_OUT, 7)
    expected = dist.CategoricalLogits(NETWORK.apply(whole[0].params["net"], HELD_OUT["x"])).log_prob(HELD_OUT["y"])
    assert bounds.num_draws == 1
    np.testing.assert_allclose(bounds.importance_weighted, expected, rtol=1e-5)


def test_operations_of_a_step_are_counted(whole):
    """Matrix products of forward and backward pass: 2 operations for each weight and row, thrice, but the first."""
    fit, _ = whole
    optimizer = optax.with_extra_args_support(optax.sgd(0.1))
    steps = Steps(for_steps(fit.pair), phx.guides.elbo(), optimizer, 1)
    state = FitState.of(fit.free, optimizer.init(fit.free), averages=False)
    found = flops_of_a_step(steps, state, np.uint32(0), fit.arrays)
    products = 8 * 2 * (2 * 4 * 8 + 3 * 8 * 2)
    assert products < found < 4 * products


@pytest.mark.slow
def test_a_block_of_one_step_is_a_step_of_a_loop(whole):
    fit, _ = whole
    optimizer = optax.with_extra_args_support(optax.sgd(0.1))
    steps = Steps(for_steps(fit.pair), phx.guides.elbo(), optimizer, 1)
    state = FitState.of(fit.free, optimizer.init(fit.free))
    order = StepOrder(np.int32(1), np.float32(1.0), np.bool_(True))
    found: list[tuple[FitState, StepBounds]] = [
        jax.jit(block)(state, np.uint32(0), fit.arrays, order) for block in (steps.block, steps.single)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found[0][0], found[1][0])
    assert found[0][1].bound[0] == pytest.approx(float(found[1][1].bound[0]), rel=1e-6)


def test_columns_of_tables_are_taken_by_place():
    pandas = pytest.importorskip("pandas")
    values = np.arange(6.0)
    rows = phx.batches({"column": pandas.Series(values, index=values[::-1].astype(int)), "array": values}, 3)
    for batch, _ in zip(rows, range(4), strict=False):
        np.testing.assert_array_equal(batch["column"], batch["array"])


# -- a checkpoint knows its fit ---------------------------------------------------------------------------------------


def sine(x, y):
    """As `model`, of the same shapes."""
    sines = phx.networks.from_functions(NETWORK.init, lambda p, x: jnp.sin(x @ p["w"]) @ p["v"])
    phx.sample("y", dist.CategoricalLogits(phx.network("net", sines)(x)), obs=y)


def kept(folder, model=model, guide=None, data=None, held_out=HELD_OUT, **options):
    watched = phx.training(every=2, held_out=held_out, checkpoint=folder)
    data = rows() if data is None else data
    return phx.fit(model, guide, data, training=watched, **{**STEPS, "num_steps": 2, **options})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept") / "fit"
    kept(folder)
    return folder


@pytest.mark.parametrize(
    "other, words",
    [
        ({"seed": 1}, "seed is 0 there, and 1 here"),
        ({"data": phx.batches(DATA, 16)}, "batch_size is 8 there, and 16 here"),
        pytest.param(
            {"data": rows(seed=1)}, "it differs in the data, or the order of their batches", marks=pytest.mark.slow
        ),
        pytest.param(
            {"data": phx.batches({**DATA, "x": X + 1.0}, 8)},
            "it differs in the data, or the order of their batches",
            marks=pytest.mark.slow,
        ),
        ({"held_out": {**HELD_OUT, "x": -HELD_OUT["x"]}}, "it differs in the held-out rows"),
        ({"model": sine}, "it differs in the model. Give"),
        ({"optimizer": optax.adam(2e-2)}, "it differs in the optimizer (its kind, its rate"),
        pytest.param(
            {"optimizer": optax.adam(optax.cosine_decay_schedule(1e-2, 9))},
            "it differs in the optimizer (its kind, its rate",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"optimizer": optax.sgd(0.1), "model": sine},
            "it differs in the model and in the optimizer (its kind",
            marks=pytest.mark.slow,
        ),
        pytest.param({"optimizer": 1e-2}, "it differs in the optimizer (its kind, its rate", marks=pytest.mark.slow),
        ({"matmul_precision": "bfloat16"}, "matmul_precision is float32 there, and bfloat16 here"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_checkpoint_of_another_fit_is_refused_and_what_differs_is_said(folder, other, words):
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        kept(folder, **other)
    assert str(folder) in str(error.value) and len(str(error.value)) < 400


def test_a_checkpoint_of_the_same_fit_written_anew_is_gone_on_with(folder):
    def another_name(x, y):
        again = phx.networks.from_functions(NETWORK.init, lambda w, row: jnp.tanh(row @ w["w"]) @ w["v"])
        phx.sample("y", dist.CategoricalLogits(phx.network("net", again)(x)), obs=y)

    assert kept(folder, model=another_name, optimizer=optax.adam(1e-2), num_steps=3, held_out=None).steps == 3


@pytest.mark.slow
def test_parts_of_a_checkpoint_that_were_not_compared_are_named(tmp_path, monkeypatch):
    shift = np.float32(2.0)

    def update(updates, state, params=None):  # of what is called on the host no trace shows what it reads
        scale = jax.pure_callback(lambda zero: zero + shift, jax.ShapeDtypeStruct((), jnp.float32), np.float32(0.0))
        return jax.tree.map(lambda update: update * scale, updates), state

    called = optax.chain(optax.adam(1e-2), optax.GradientTransformation(lambda params: (), update))
    kept(tmp_path / "host", optimizer=called, held_out=None)
    with pytest.warns(UserWarning, match=r"were the optimizer \(.*of which some function's content cannot"):
        kept(tmp_path / "host", optimizer=called, held_out=None, num_steps=3)
    kept(tmp_path / "old", held_out=None)
    monkeypatch.setattr(identity, "version", lambda name: "9" if name == "optax" else version(name))
    with pytest.warns(UserWarning, match=r"written down by optax \S+ there and 9 here\. Make sure"):
        kept(tmp_path / "old", held_out=None, num_steps=3)


@pytest.mark.slow
def test_guides_objectives_and_particles_are_told_apart(tmp_path):
    def begin(guide=amortised, objective=None, particles=2):
        data = phx.batches({"x": X[:, 0]}, 16)
        objective = phx.guides.elbo(path=False) if objective is None else objective
        return kept(tmp_path / "fit", local, guide, data, None, objective=objective, num_particles=particles)

    def narrower(x):
        scale = 0.5 * phx.param("scale", 0.8, constraints.positive)
        bend = dist.transforms.AffineTransform(phx.param("gain", 0.3) * x, scale)
        phx.sample("z", dist.TransformedDistribution(dist.Normal(0.0, 1.0).expand([len(x)]), bend))

    begin()
    with pytest.raises(ValueError, match="it differs in the guide"):
        begin(guide=narrower)
    with pytest.raises(ValueError, match="it differs in the objective"):
        begin(objective=phx.guides.objective(lambda p, q, draws: (q - p).mean()))
    with pytest.raises(ValueError, match="num_particles is 2 there, and 4 here"):
        begin(particles=4)


def test_an_evaluation_that_is_not_a_number_is_never_the_best():
    watched = phx.training(every=4, held_out={**HELD_OUT, "x": np.full_like(HELD_OUT["x"], np.nan)})
    fit = phx.fit(model, None, rows(), training=watched, **STEPS)
    assert all(math.isnan(look.held_out_loss) for look in fit.looks)
    again = phx.fit(model, None, rows(), training=phx.training(every=4), **STEPS)  # without rows held out: the last
    np.testing.assert_array_equal(fit.params["net"]["w"], again.params["net"]["w"])


def test_held_out_batches_are_evaluated_one_after_the_other():
    """Programs under way at once may begin their sums over devices in different orders, and wait for each other."""
    order = []

    class Bound:
        def __float__(self):
            order.append("read")
            return -3.0

    def begin(*arguments):
        order.append("begun")
        return Bound()

    held_out = HeldOut(cast(Any, None), np.uint32(0), [(), ()], 1, begin)
    assert held_out.loss({}) == 3.0
    assert order == ["begun", "read", "begun", "read"]


# -- a checkpoint that was damaged ------------------------------------------------------------------------------------


def test_every_damage_of_a_checkpoint_is_one_clear_error_or_changes_nothing(tmp_path):
    """The checkpoint is read and restored as a fit does, without the fit; it has one save."""
    folder = tmp_path / "fit"
    kept(phx.checkpoint(folder, seconds=3600.0))
    right = cast(dict[str, Any], fit_checkpoint(SavePolicy(folder)).read())
    states = {}

    def restored(where):
        checkpoint = fit_checkpoint(SavePolicy(where))
        record = cast(dict[str, Any], checkpoint.read())
        for name, leaves in record["states"].items():
            like = [jnp.zeros(shape, kind) for shape, kind in leaves]
            states[name] = checkpoint.restore(name, like, record)
        return record, jax.tree.map(np.asarray, dict(states))

    _, arrays = restored(folder)
    refused = 0
    for copy in damaged_copies(folder, tmp_path / "copy", 60):
        try:
            record, found = restored(copy)
        except ValueError as error:
            refused += 1
            assert str(copy) in str(error) and "Restore the folder from a copy" in str(error), error
        else:
            assert json.dumps({name: record[name] for name in right}) == json.dumps(right)
            jax.tree.map(np.testing.assert_array_equal, found, arrays)
    assert refused > 10


@pytest.mark.slow
def test_another_guide_is_all_that_is_named(tmp_path):
    def begin(guide, **options):
        return kept(tmp_path / "fit", local, guide, phx.batches({"x": X[:, 0]}, 16), None, **options)

    def narrow(x):
        phx.sample("z", dist.Normal(phx.param("m", 0.0) * x, 0.3))

    begin(amortised)
    with pytest.raises(ValueError, match=r"holds another fit: it differs in the guide\. Give"):
        begin(narrow)
    with pytest.raises(ValueError, match=r"it differs in the guide and in the optimizer \("):
        begin(narrow, optimizer=optax.sgd(0.1))
