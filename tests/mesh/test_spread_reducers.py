"""Reducers of variables whose rows are sharded: their results are those of the same draws on one device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax
from jax.tree_util import DictKey
from tests.apart import compiled_in

import phalanx as phx

R = phx.reducers
Y = np.random.default_rng(0).normal(size=(10, 2)).astype(np.float32)
SIZES = {"num_chains": 4, "num_warmup": 60, "num_samples": 150, "progress": False, "kernel": phx.rwmh(0.4)}
REDUCERS = {
    "moments": R.moments(),
    "extremes": R.extremes(),
    "rhat": R.rhat(),
    "ess": R.ess(10),
    "quantiles": R.quantiles([0.1, 0.5]),
    "histogram": R.histogram([-1.0, 0.0, 1.0]),
    "autocovariance": R.autocovariance(3),
    "some": R.reservoir(600),
    "thinned": phx.reduce(lambda values: values["row"][:, 0], R.thinned(R.moments(), 5)),
    "square": phx.reduce(lambda values: {"both": values["row"] ** 2, "mean": values["mean"]}, R.moments()),
}


QUICK = ("moments", "quantiles", "thinned", "square")
"""With a state for each row, with draws that are taken, of a function, and of several."""


def rows(y):
    mean = phx.sample("mean", dist.Normal(0.0, 1.0))
    row = phx.sample("row", dist.Normal(mean, 1.0).expand(y.shape))
    phx.deterministic("first", row[:, 0] > 0)
    phx.sample("y", dist.Normal(row, 0.5), obs=y)


def reduced(mesh, names=tuple(REDUCERS), **options):
    data = {"y": Y} if mesh is None else phx.shard({"y": Y}, mesh)
    mesh = phx.make_mesh(devices=jax.devices()[:1]) if mesh is None else mesh
    reducers = {name: REDUCERS[name] for name in names}
    return phx.mcmc(rows, data, mesh=mesh, reducers=reducers, **{**SIZES, **options})


def agree(a, b):
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True):
        assert np.shape(x) == np.shape(y), path
        if path[0] == DictKey("some"):  # all draws, in an order that follows where the run was cut
            x, y = np.sort(x, 0), np.sort(y, 0)
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-3, err_msg=str(path))


@pytest.mark.slow
@pytest.mark.parametrize(
    "chains, data, keep, names",
    [
        pytest.param(2, 2, [], QUICK, id="some, reduced 2x2"),
        *(
            pytest.param(*sizes, list(REDUCERS), id=name, marks=pytest.mark.slow)
            for name, sizes in {
                "reduced 1x8": (1, 8, []),
                "stored 2x4": (2, 4, None),
            }.items()
        ),
    ],
)
def test_the_same_on_any_mesh(chains, data, keep, names, mesh_of):
    """Ten rows: padded on 4 devices and on 8."""
    found = reduced(mesh_of(chains, data), names, keep=keep).reduced
    agree(found, reduced(None, names, keep=keep).reduced)
    assert found["moments"]["row"].mean.shape == (10, 2) and found["square"]["both"].mean.shape == (10, 2)
    assert found["quantiles"]["row"].shape == (2, 10, 2)


@pytest.mark.slow
def test_states_stay_where_the_rows_are(mesh_of):
    mesh = mesh_of(2, 2)
    reducers = {name: REDUCERS[name] for name in QUICK}
    sampler = phx.compile(rows, phx.shard({"y": Y}, mesh), mesh=mesh, keep=[], reducers=reducers, **compiled_in(SIZES))
    accumulate: Any = sampler.executables.accumulate
    hlo = accumulate.as_text()
    assert "all-gather" not in hlo and "all-to-all" not in hlo
    states = accumulate.out_info.sinks.states[1]["moments"]["row"]
    assert states.mean.sharding.shard_shape(states.mean.shape) == (2, 5, 2)


@pytest.mark.slow
def test_variables_of_as_many_rows_on_a_device_and_not_over_all(mesh_of):
    """Seven rows and eight on two devices are four on each."""

    def two(a, b):
        u = phx.sample("u", dist.Normal(0.0, 1.0).expand([a.shape[0]]))
        v = phx.sample("v", dist.Normal(0.0, 1.0).expand([b.shape[0]]))
        phx.sample("a", dist.Normal(u, 1.0), obs=a)
        phx.sample("b", dist.Normal(v, 1.0), obs=b)

    mesh = mesh_of(1, 2)
    data = phx.shard({"a": np.ones(7, np.float32), "b": np.ones(8, np.float32)}, mesh)
    found = phx.mcmc(two, data, mesh=mesh, reducers={"m": R.moments()}, **SIZES).reduced["m"]
    assert found["u"].mean.shape == (7,) and found["v"].mean.shape == (8,)
    both = phx.reduce(lambda values: jnp.concatenate([values["v"], values["u"]]), R.moments())
    run = phx.mcmc(two, data, mesh=mesh, reducers={"m": both}, **SIZES)
    expected = np.concatenate([run.draws["v"], run.draws["u"]], -1).mean((0, 1))
    np.testing.assert_allclose(run.reduced["m"].mean, expected, rtol=1e-3, atol=1e-4)


def of_rows(fn):
    return phx.reduce(lambda values: fn(values["row"]), R.moments())


MIXED = {
    "sum": lambda z: z.sum(),
    "sort": lambda z: jnp.sort(z, 0),
    "cumulative": lambda z: jnp.cumsum(z, 0),
    "centred": lambda z: z - z.mean(0, keepdims=True),
    "reversed": lambda z: z[::-1],
    "the row before": lambda z: jnp.roll(z, 1, 0),
    "share of the sum": lambda z: z / jnp.abs(z).sum(),
    "number of rows": lambda z: z * z.shape[0],
    "number of rows alone": lambda z: jnp.float32(z.shape[0]),
    "ranks": lambda z: jnp.argsort(z, 0),
    "in a rare region": lambda z: jnp.where(z > 1, z.mean(), z),
    "by a matrix": lambda z: jnp.linalg.qr(z)[0],
    "rows behind": lambda z: z.T,
    "some rows": lambda z: z[1:8],
    "every second row": lambda z: z[::2],
    "groups of rows": lambda z: z.reshape(5, 4),
    "twice the rows": lambda z: jnp.concatenate([z, z[:3]]),
    "all pairs": lambda z: z @ z.T,
}
APART = {
    "softmax of columns": lambda z: jax.nn.softmax(z, 1),
    "sorted columns": lambda z: jnp.sort(z, 1),
    "the total": lambda z: lax.psum(z.sum(0), "data"),
    "the mean": lambda z: lax.pmean(z.mean(0), "data"),
    "less the mean": lambda z: z - lax.pmean(z.mean(0, keepdims=True), "data"),
    "by a scan": lambda z: lax.scan(lambda c, row: (c, jnp.where(row > 0, row, jnp.expm1(row))), 0.0, z)[1],
    "a branch": lambda z: jnp.where(z > 0, jnp.log1p(jnp.abs(z)), z**2),
    "largest of all": lambda z: lax.pmax(z.max(), "data"),
    "by the place of a device": lambda z: z * lax.axis_index("data") + lax.axis_size("data"),
}


SOME = ["centred", "some rows", "ranks", "less the mean"]


@pytest.mark.parametrize(
    "names, data",
    [
        pytest.param(SOME, 4, id="some"),
        *(pytest.param([*MIXED, *APART], n, id=f"all on {n}", marks=pytest.mark.slow) for n in (2, 8)),
    ],
)
def test_functions_are_of_all_rows(names, data, mesh_of):
    functions = {name: {**MIXED, **APART}[name] for name in names}
    mesh = mesh_of(1, data)
    run = phx.mcmc(
        rows, phx.shard({"y": Y}, mesh), mesh=mesh, reducers={name: of_rows(fn) for name, fn in functions.items()},
        **{**SIZES, "num_samples": 30},
    )  # fmt: skip
    draws = run.draws["row"].reshape(-1, 1, *Y.shape)
    for name, fn in functions.items():
        each = np.asarray(jax.vmap(jax.vmap(fn, axis_name="data"))(draws))[:, 0]
        assert run.reduced[name].mean.shape == each.shape[1:], name
        np.testing.assert_allclose(run.reduced[name].mean, each.mean(0), rtol=1e-3, atol=1e-3, err_msg=name)


def test_covariances_are_of_all_rows(mesh_of):
    mesh = mesh_of(2, 4)
    reducers = {"all": R.covariance(), "row": phx.reduce(lambda values: values["row"], R.covariance())}
    run = phx.mcmc(rows, phx.shard({"y": Y}, mesh), mesh=mesh, reducers=reducers, **SIZES)
    expected = np.cov(run.draws["row"].reshape(-1, Y.size).astype(float), rowvar=False)
    for found in (run.reduced["all"]["row"], run.reduced["row"]):
        np.testing.assert_allclose(found.covariance, expected, rtol=2e-3, atol=2e-3)
