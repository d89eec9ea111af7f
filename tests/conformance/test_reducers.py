"""Conformance of every reducer: a run that is stopped, saved and continued elsewhere gives the result of one run."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx

R = phx.reducers


class Pooled(NamedTuple):
    """A stranger's: draws of all chains, and the sum of their squares."""

    count: Any
    total: Any


class Both(NamedTuple):
    """A stranger's: the last draw of each chain, draws of each, and how many of all were positive."""

    last: Any
    count: Any
    positive: Any


def pooled_squares() -> R.Reducer:
    def update(state, draw, where):
        here = where.reshape(-1, *[1] * (draw.ndim - 1))
        return Pooled(state.count + where.sum(), state.total + jnp.where(here, draw**2, 0.0).sum(0)[None])

    return R.Reducer(
        "pooled_squares()",
        lambda example: Pooled(jnp.zeros(1, jnp.int32), jnp.zeros((1, *example.shape[1:]))),
        update,
        lambda a, b: Pooled(a.count + b.count, a.total.astype(float) + b.total),
        lambda state: {"count": state.count.sum(0), "square": state.total.sum(0)},
    )


def last_and_positive() -> R.Reducer:
    def update(state, draw, where):
        here = where.reshape(-1, *[1] * (draw.ndim - 1))
        positive = (here & (draw > 0)).sum(0)[None]
        return Both(jnp.where(here, draw, state.last), state.count + where, state.positive + positive)

    def merge(a, b):
        drawn = (b.count > 0).reshape(-1, *[1] * (b.last.ndim - 1))
        return Both(np.where(drawn, b.last, a.last), a.count + b.count, a.positive + b.positive)

    return R.Reducer(
        "last_and_positive()",
        lambda example: Both(
            jnp.zeros(example.shape, example.dtype), jnp.zeros(len(example), jnp.int32),
            jnp.zeros((1, *example.shape[1:]), jnp.int32),
        ),
        update,
        merge,
        lambda state: {"last": state.last, "count": state.count, "positive": state.positive.sum(0)},
    )  # fmt: skip


EDGES = [-1.0, 0.0, 0.5, 1.0]
REDUCERS: dict[str, R.Reducer] = {
    "moments": R.moments(),
    "extremes": R.extremes(),
    "covariance": R.covariance(),
    "rhat": R.rhat(),
    "ess": R.ess(8),
    "autocovariance": R.autocovariance(3),
    "histogram": R.histogram(EDGES),
    "quantiles": R.quantiles([0.1, 0.5]),
    "reservoir": R.reservoir(50),
    "loo": R.loo(20),
    "thinned loo": R.thinned(R.loo(20), 2),
    "thinned": R.thinned(R.histogram(EDGES), 7),
    "thinned twice": R.thinned(R.thinned(R.moments(), 3), 4),
    "thinned ess": R.thinned(R.ess(2), 3),
    "a stranger's, pooled": pooled_squares(),
    "a stranger's, of both": last_and_positive(),
}
REDUCERS["thinned stranger's"] = R.thinned(last_and_positive(), 3)


def test_every_reducer_is_listed():
    listed = {str(reducer).partition("(")[0] for reducer in REDUCERS.values()}
    assert {name for name in R.__all__ if name not in ("Reducer", "reduce")} <= listed


def model():
    x = phx.sample("x", dist.Normal(0.2, 1.0).expand([2]))
    phx.sample("y", dist.Normal(x, 2.0), obs=np.zeros(2, np.float32))


def mesh(devices):
    return phx.make_mesh(chain=devices, devices=jax.devices()[:devices])


def sampler(devices, keep, kernel):
    return phx.compile(model, kernel=kernel, mesh=mesh(devices), num_chains=4, keep=keep, reducers=REDUCERS)


def agree(found, wanted):
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(wanted), strict=True):
        where = jax.tree_util.keystr(path)
        if np.asarray(b).dtype.kind in "iub":
            np.testing.assert_array_equal(a, b, err_msg=where)
        else:
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5, err_msg=where)


@pytest.mark.slow
@pytest.mark.parametrize(
    "first, then, keep, kernel",
    [
        (2, (4,), None, phx.rwmh(0.4)),
        pytest.param(2, (1, 2, 4), [], phx.rwmh(0.4), marks=pytest.mark.slow),
        pytest.param(4, (1, 4), None, phx.nuts(max_depth=3), marks=pytest.mark.slow),
        pytest.param(1, (1, 2), [], phx.nuts(max_depth=3), marks=pytest.mark.slow),
    ],
)
def test_a_run_that_goes_on_elsewhere_knows_what_one_run_knows(first, then, keep, kernel, tmp_path):
    begun = sampler(first, keep, kernel)
    whole = begun.run(0, num_warmup=30, num_samples=200, progress=False)
    begun.run(0, num_warmup=30, num_samples=100, progress=False).save(tmp_path / "run")
    (file,) = tmp_path.iterdir()
    for devices in then:
        saved = phx.Posterior.load(file)
        continued = sampler(devices, keep, kernel).continue_run(saved, 100)
        agree(continued.reduced, whole.reduced)
