"""Models that the share rule would get wrong are refused, and those it gets right are proved or tried on their rows."""

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax
from tests.mesh.agreement import on_mesh, ranks
from tests.mesh.models import CASES, X, Y

import phalanx as phx
from phalanx.exactness import row_check

N = len(Y)


CHECKED = {
    "scan over rows, from a constant",
    "fori_loop from 0.",
    "while_loop, as long as a device's rows need",
}
"""Models of the table that are tried on their rows; all others are proved."""


@pytest.mark.parametrize("name", CASES)
def test_models_of_the_table_are_proved_but_for_a_few_and_those_are_checked(name, mesh_of):
    with ranks(name):
        rows = on_mesh(name, 16, mesh_of(1, 4)).rows
    assert not rows.unchecked
    assert bool(rows.checked) == (name in CHECKED)
    assert rows.proved or rows.checked


def level():
    return phx.sample("level", dist.Normal(0.0, 1.0))


def centred(x, y):
    phx.sample("y", dist.Normal(level() * (x[:, 0] - x[:, 0].mean()), 1.0), obs=y)


def standardised(x, y):
    phx.sample("y", dist.Normal(level() * x[:, 0] / x[:, 0].std(), 1.0), obs=y)


def the_row_before(x, y):
    phx.sample("y", dist.Normal(level() * y[:-1], 1.0), obs=y[1:])


def cumulative(x, y):
    phx.sample("y", dist.Normal(level() * jnp.cumsum(x[:, 0]), 1.0), obs=y)


def first_row(x, y):
    phx.sample("y", dist.Normal(level() + x[0, 0], 1.0), obs=y)


def softmax_over_rows(x, y):
    phx.factor("y", jnp.sum(y * log_softmax(level() * x[:, 0])))


def log_softmax(x):
    return x - jnp.log(jnp.sum(jnp.exp(x)))


def log_of_a_sum(x, y):
    phx.factor("y", jnp.log(jnp.sum(jnp.exp(level() * y))))


def mean_of_terms(x, y):
    phx.factor("y", N * jnp.mean(dist.Normal(level(), 1.0).log_prob(y)))


def walk(x, y):
    """A random walk over the rows: each latent variable follows the one before."""
    path = phx.sample("path", dist.Normal(0.0, 1.0).expand([y.shape[0]]))
    phx.sample("y", dist.Normal(level() + jnp.cumsum(path), 1.0), obs=y)


ONES = np.ones(3, np.float32)


@jax.jit
def less_the_mean(w, y):
    return jnp.sum(w * ONES) + y - jnp.sum(y.mean() * ONES)


def centred_within_jit(x, y):
    phx.sample("y", dist.Normal(less_the_mean(level(), y), 1.0), obs=y)


def centred_within_branches(x, y):
    w = level()
    mean = lax.cond(w > 0, lambda w: less_the_mean(w, y), lambda w: less_the_mean(w, y) - jnp.sum(w * ONES), w)
    phx.sample("y", dist.Normal(mean, 1.0), obs=y)


MIXING = [centred, standardised, the_row_before, cumulative, first_row, softmax_over_rows, log_of_a_sum, mean_of_terms,
          walk, centred_within_jit, centred_within_branches]  # fmt: skip


@pytest.mark.parametrize("model", MIXING)
def test_a_model_that_mixes_rows_is_refused(model, mesh_of):
    mesh = mesh_of(1, 4)
    words = "Variable 'y': its log density on the whole data is not the sum of those on the rows of each device along "
    with pytest.raises(ValueError, match=re.escape(words + "'data'; on 16 of your rows it is ")) as error:
        phx.Target(model, phx.shard({"x": X, "y": Y}, mesh))
    assert "over all devices, as in jax.lax.pmean(x.mean(0), 'data'); or do not shard these data." in str(error.value)
    phx.Target(model, {"x": X, "y": Y}, mesh=mesh)  # unsharded, it is fine


def whole_and_spread(model, mesh):
    """The log density of a model that makes an array from the number of rows, whole and spread out."""
    given = {"y": Y}, phx.shard({"y": Y}, mesh)
    return [float(phx.Target(model, data, mesh=mesh).log_density({"level": 0.5})) for data in given]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_a_constant_made_from_the_number_of_rows_is_seen(wrap, mesh_of):
    def model(y, first=0.0):
        count = np.array([first, y.shape[0]], np.float32)
        phx.factor("y", jnp.sum(wrap(lambda w: -w * count)(level())))
        phx.sample("rows", dist.Normal(jnp.zeros(y.shape[0]), 1.0), obs=y)

    whole, spread = whole_and_spread(model, mesh_of(1, 4))
    assert whole == pytest.approx(spread, rel=1e-5)
    words = "'y': its log density depends on the number of rows on a device, and does not add up to that of the whole"
    with pytest.raises(ValueError, match=words):
        whole_and_spread(partial(model, first=1.0), mesh_of(1, 4))


def test_a_deterministic_value_that_depends_on_the_number_of_rows_is_refused(mesh_of):
    def model(y):
        phx.deterministic("rows", y.shape[0])
        phx.sample("y", dist.Normal(level(), 1.0), obs=y)

    words = "The deterministic value 'rows' differs between one device and the whole data: it depends on the number of"
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.Target(model, phx.shard({"y": Y}, mesh_of(1, 4)))


def test_a_latent_declared_over_the_wrong_axis_is_refused(mesh_of):
    def model(y):
        rows = phx.sample("rows", dist.Normal(0.0, 1.0).expand([y.shape[0]]), axis="model")
        phx.sample("y", dist.Normal(rows, 1.0), obs=y)

    with pytest.raises(ValueError, match="along 'data' and 'model'; on 16 of your rows"):
        phx.Target(model, phx.shard({"y": Y}, mesh_of(1, 2, 2)))


def test_rows_spread_over_different_axes_do_not_meet(mesh_of):
    mesh = mesh_of(1, 2, 2)

    def model(x, y):
        phx.sample("y", dist.Normal(level() * x[:, 0], 1.0), obs=y)

    with pytest.raises(ValueError, match="Variable 'y': its log density on the whole data is not the sum"):
        phx.Target(model, {"x": phx.shard(X, mesh, "data"), "y": phx.shard(Y, mesh, "model")})


def test_a_model_of_fixed_groups_of_rows_is_tried_on_all_of_them(mesh_of):
    def model(y):
        of_groups = level() * jnp.mean(y.reshape(-1, 8), axis=1, keepdims=True)
        phx.factor("y", -jnp.sum((y.reshape(-1, 8) - of_groups) ** 2))

    def mixing(y):
        phx.factor("y", -(jnp.sum(level() - jnp.mean(y.reshape(-1, 8), axis=1)) ** 2))

    data = phx.shard({"y": np.concatenate([Y, Y])}, mesh_of(1, 2))
    phx.Target(model, data)
    with pytest.raises(ValueError, match="not the sum of those on the rows of each device"):
        phx.Target(mixing, data)


RANDOM = np.random.default_rng(3)
TABLE = {
    "t": np.float32(1.6e9) + RANDOM.uniform(0, 2e6, 64).astype(np.float32),
    "income": RANDOM.lognormal(10, 1, 64).astype(np.float32),
    "x": np.where(RANDOM.random((64, 2)) < 0.1, np.nan, RANDOM.normal(size=(64, 2))).astype(np.float32),
    "year": RANDOM.integers(1950, 2020, 64).astype(np.float32),
    "code": RANDOM.integers(0, 6, 64),
    "image": RANDOM.uniform(size=(64, 8, 8)).astype(np.float32),
    "y": RANDOM.normal(size=64).astype(np.float32),
}


def clipped(v):
    return jnp.clip(v, v.mean() - 2 * v.std(), v.mean() + 2 * v.std())


def standard(v):
    return (v - v.mean()) / v.std()


PREPARED = {
    "time since the first": lambda d: (d["t"] - d["t"].min()) / 86400,
    "income less its mean": lambda d: (d["income"] - d["income"].mean()) / 1e4,
    "imputed by the mean": lambda d: jnp.where(jnp.isnan(d["x"]), jnp.nanmean(d["x"], 0)[None], d["x"]).sum(1),
    "clipped at two deviations": lambda d: clipped(d["income"] / 1e4),
    "logarithms, standardised": lambda d: standard(jnp.log(d["year"] - 1900)),
    "sorted": lambda d: jnp.sort(d["y"], 0),
    "the state before": lambda d: jnp.concatenate([d["y"][:1], d["y"][:-1]]),
    "counts of duplicates": lambda d: (d["code"][:, None] == d["code"][None]).sum(1),
    "less the mean image": lambda d: (d["image"] - d["image"].mean(0)[None]).sum((1, 2)),
    "the number of the row": lambda d: jnp.arange(d["y"].shape[0]) / 10,
}


SHOWN = {"imputed by the mean", "the state before", "counts of duplicates"}


@pytest.mark.parametrize(
    "name", [name if name in SHOWN else pytest.param(name, marks=pytest.mark.slow) for name in PREPARED]
)
def test_preparing_data_in_the_model_over_a_devices_rows_is_refused(name, mesh_of):
    def model(**data):
        phx.sample("y", dist.Normal(level() * PREPARED[name](data), 1.0), obs=data["y"])

    mesh = mesh_of(1, 8)
    with pytest.raises(ValueError, match="Variable 'y': its log density on the whole data is not the sum"):
        phx.Target(model, phx.shard(TABLE, mesh), mesh=mesh)


def test_a_gradient_that_mixes_rows_is_refused(mesh_of):
    @jax.custom_vjp
    def clipped_gradient(x):
        return x

    clipped_gradient.defvjp(lambda x: (x, None), lambda _, g: (g / jnp.linalg.norm(g),))

    def model(x, y):
        phx.sample("y", dist.Normal(clipped_gradient(level() * x[:, 0]), 1.0), obs=y)

    with pytest.raises(ValueError, match="Variable 'y': the gradient of its log density, with respect to 'level', on"):
        phx.Target(model, phx.shard({"x": X, "y": Y}, mesh_of(1, 4)))


def never_finite(x, y):
    phx.factor("y", jnp.cumsum(y) * jnp.nan * level())


def test_what_cannot_be_checked_is_said_or_refused(mesh_of):
    data = phx.shard({"x": X, "y": Y}, mesh_of(1, 4))
    with pytest.warns(UserWarning, match="could not check that .* of 'y' add up to the whole: it is not finite at any"):
        rows = phx.Target(never_finite, data).rows
    assert rows.unchecked.keys() == {"y"} and not rows.passed
    with pytest.raises(ValueError, match="check='strict' refuses such a model"):
        phx.Target(never_finite, data, check="strict")
    with pytest.raises(ValueError, match="check must be one of 'warn', 'strict', 'off'; got 'no'"):
        phx.Target(never_finite, data, check="no")
    rows = phx.Target(centred, data, check="off").rows  # nothing is tried, and that is said
    assert "check='off' was asked for" in rows.problem


def test_a_large_model_is_tried_on_some_of_its_rows(mesh_of, monkeypatch):
    monkeypatch.setattr(row_check, "LARGEST", 64)
    x, y = np.tile(X, (8, 1)), np.tile(Y, 8)
    data = phx.shard({"x": x, "y": y}, mesh_of(1, 4))
    with pytest.raises(ValueError, match="on [0-9]+ of your rows it is"):
        phx.Target(centred, data)


def test_new_data_are_checked_again_and_the_record_says_so(mesh_of):
    """Sums over a device's rows are right by luck where each device has the same; other data tell."""

    def model(y):
        phx.sample("y", dist.Normal(level() + y.mean(), 1.0), obs=y)

    mesh = mesh_of(1, 4)
    alike = np.tile(Y[:4], 4)
    sampler = phx.compile(model, phx.shard({"y": alike}, mesh), kernel=phx.rwmh(0.5), mesh=mesh, num_chains=1)
    record = sampler.run(0, num_warmup=20, num_samples=20, progress=False).record
    assert record.passed == (
        "The devices' shares add up to the whole: 'y' tested on 16 of your rows, also at draws of the one chain, "
        "everything else proved from the program.",
    )
    with pytest.raises(ValueError, match="Variable 'y': its log density on the whole data is not the sum"):
        sampler.run(0, phx.shard({"y": Y}, mesh), num_warmup=20, num_samples=20, progress=False)


def test_nothing_is_done_where_no_data_are_sharded(mesh_of):
    assert phx.Target(centred, {"x": X, "y": Y}, mesh=mesh_of(1, 4)).rows.passed == ""


def test_a_mesh_without_devices_of_some_process_is_refused(mesh_of, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="there are 2 processes, and the mesh of shape .* has no devices of some"):
        phx.mcmc(centred, {"x": X, "y": Y}, mesh=mesh_of(1, 4), num_chains=4, progress=False)
