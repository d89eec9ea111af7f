"""Terms that a model adds up over rows itself, where rows do not divide evenly: right, or refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax

import phalanx as phx

ROWS = 19
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 3)).astype(np.float32)
Y = X.sum(1) + RNG.normal(size=ROWS).astype(np.float32)
POSITION = {"w": np.array([0.3, -0.2, 0.5], np.float32)}


def densities(x, y, w):
    return dist.Normal(x @ w, 1.0).log_prob(y)


def by_row(x, y, w):
    return jax.vmap(lambda row, value: dist.Normal(row @ w, 1.0).log_prob(value))(x, y)


def products(x, y, w):
    return w @ (x.T @ y) - 0.5 * w @ (x.T @ x) @ w


def in_a_cond(x, y, w):
    return lax.cond(w[0] > 0, lambda: densities(x, y, w).sum(), lambda: -(y * w[1]).sum())


def over_columns(x, y, w):
    return lax.scan(lambda total, column: (total - (column * w[0]).sum(), None), 0.0, x.T)[0]


RIGHT = {
    "sum": lambda x, y, w: densities(x, y, w).sum(),
    "vmap": lambda x, y, w: by_row(x, y, w).sum(),
    "products": products,
    "einsum": lambda x, y, w: -jnp.einsum("ij,ik,j,k->", x, x, w, w),
    "jitted": lambda x, y, w: jax.jit(lambda x, y: densities(x, y, w).sum())(x, y),
    "checkpointed": lambda x, y, w: jax.checkpoint(lambda x, y: densities(x, y, w).sum())(x, y),
    "a sum of ones": lambda x, y, w: densities(x, y, w).sum() - jnp.ones(len(y)).sum() * w.sum(),
    "in a cond": in_a_cond,
    "over columns": over_columns,
    "of a part": lambda x, y, w: jnp.where(y > 0, densities(x, y, w), 0.0).sum(),
    "less the psum": lambda x, y, w: densities(x - lax.psum(x.sum(0), "data")[None] / ROWS, y, w),
    "by the pmax": lambda x, y, w: densities(x / lax.pmax(jnp.abs(x).max(0), "data")[None], y, w),
}
REFUSED = {
    "mean": lambda x, y, w: densities(x, y, w).mean(),
    "pmean of means": lambda x, y, w: densities(x - lax.pmean(x.mean(0), "data")[None], y, w),
    "number of rows": lambda x, y, w: -x.shape[0] * jnp.sum(w**2),
    "log of a sum": lambda x, y, w: jax.nn.logsumexp(x @ w),
    "square of a sum": lambda x, y, w: -((x @ w).sum() ** 2),
    "scan over rows": lambda x, y, w: lax.scan(lambda total, row: (total + row @ w, None), 0.0, x)[0],
    "fori over rows": lambda x, y, w: lax.fori_loop(0, len(y), lambda i, total: total - (y[i] - w[0]) ** 2, 0.0),
}


def model_of(term):
    def model(x, y):
        phx.factor("y", term(x, y, phx.sample("w", dist.Normal(0.0, 1.0).expand([3]))))

    return model


@pytest.mark.parametrize("name", RIGHT)
def test_padded_rows_are_left_out_of_sums(name, mesh_of):
    mesh = mesh_of(1, 4)
    found = phx.Target(model_of(RIGHT[name]), phx.shard({"x": X, "y": Y}, mesh), check="strict")
    assert not found.rows.unchecked
    one = phx.Target(model_of(RIGHT[name]), phx.shard({"x": X, "y": Y}, mesh_of(1, 1)))
    (value, gradient), (wanted, slope) = (jax.device_get(t.value_and_grad(POSITION)) for t in (found, one))
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    np.testing.assert_allclose(gradient["w"], slope["w"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_sum_is_refused_by_name(name, mesh_of):
    with pytest.raises(ValueError, match="Variable 'y': (the rows of the data do not|its log density depends on the)"):
        phx.Target(model_of(REFUSED[name]), phx.shard({"x": X, "y": Y}, mesh_of(1, 4)))


def test_values_of_rows_beside_a_sum_over_devices_are_taken_and_those_that_depend_on_it_are_not(mesh_of):
    def model(x, y, of_sum):
        w = phx.sample("w", dist.Normal(0.0, 1.0).expand([3]))
        total = lax.psum(x.sum(0), "data")[None]
        phx.factor("y", densities(x - total / ROWS, y, w))
        phx.deterministic("rows", (x + total if of_sum else x) @ w)

    data = phx.shard({"x": X, "y": Y}, mesh_of(1, 4))
    found = phx.Target(model, {**data, "of_sum": False}).constrain(POSITION)
    np.testing.assert_allclose(found["rows"], X @ POSITION["w"], rtol=1e-5)
    with pytest.raises(ValueError, match="The value of 'rows' depends, or may depend, on values that the model"):
        phx.Target(model, {**data, "of_sum": True})


def test_chains_draw_from_such_a_model(mesh_of):
    mesh = mesh_of(1, 4)
    run = phx.mcmc(
        model_of(RIGHT["products"]), phx.shard({"x": X, "y": Y}, mesh), kernel=phx.hmc(num_steps=3, step_size=0.1),
        num_chains=8, num_warmup=50, num_samples=200, mesh=mesh, progress=False,
    )  # fmt: skip
    precision = X.T.astype(float) @ X + np.eye(3)
    exact = np.linalg.solve(precision, X.T @ Y)
    error = np.sqrt(np.diag(np.linalg.inv(precision)) / 50)  # with as few as fifty independent draws
    assert (np.abs(run.draws["w"].mean((0, 1)) - exact) < 5 * error).all()  # false in less than 1 of 100,000 runs


def test_such_a_model_is_not_estimated_from_some_rows(mesh_of):
    target = phx.Target(model_of(RIGHT["sum"]), phx.shard({"x": X, "y": Y}, mesh_of(1, 4)))
    with pytest.raises(ValueError, match="cannot be estimated from some rows"):
        target.in_batches(2)
