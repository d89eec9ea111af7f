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


def squares_in_a_scan(x, y, w):
    return lax.scan(lambda total, row: (total - 0.5 * (row[1] - row[0] @ w) ** 2, None), 0.0, (x, y))[0]


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
    "squares in a scan": squares_in_a_scan,
    "log of the number": lambda x, y, w: -jnp.log(lax.psum(len(y), "data")) * w[0] ** 2 - w[1] ** 2,
    "number of rows of all": lambda x, y, w: -lax.psum(len(y), "data") * jnp.log1p(w @ w),
    "of a part": lambda x, y, w: jnp.where(y > 0, densities(x, y, w), 0.0).sum(),
    "less the psum": lambda x, y, w: densities(x - lax.psum(x.sum(0), "data")[None] / ROWS, y, w),
    "by the pmax": lambda x, y, w: densities(x / lax.pmax(jnp.abs(x).max(0), "data")[None], y, w),
    "pmean of means": lambda x, y, w: densities(x - lax.pmean(x.mean(0), "data")[None], y, w),
    "psum of all": lambda x, y, w: lax.psum(densities(x, y, w).sum(), "data"),
    "number of rows": lambda x, y, w: -x.shape[0] * jnp.sum(w**2),
    "scan over rows": lambda x, y, w: lax.scan(lambda total, row: (total + row @ w, None), 0.0, x)[0],
    "fori over rows": lambda x, y, w: lax.fori_loop(0, len(y), lambda i, total: total - (y[i] - w[0]) ** 2, 0.0),
}
REFUSED = {
    "mean": lambda x, y, w: densities(x, y, w).mean(),
    "log of a sum": lambda x, y, w: jax.nn.logsumexp(x @ w),
    "square of a sum": lambda x, y, w: -((x @ w).sum() ** 2),
    "gathered": lambda x, y, w: -((lax.all_gather(y, "data", tiled=True) - w[0]) ** 2).sum(),
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
    with pytest.raises(ValueError, match="Variable 'y': (the rows of the data do not|its log density on the whole)"):
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


@pytest.mark.parametrize("name", ["products", "squares in a scan"])
def test_chains_draw_from_such_a_model(name, mesh_of):
    mesh = mesh_of(1, 4)
    run = phx.mcmc(
        model_of(RIGHT[name]), phx.shard({"x": X, "y": Y}, mesh), kernel=phx.hmc(num_steps=3, step_size=0.1),
        num_chains=8, num_warmup=50, num_samples=200, mesh=mesh, progress=False,
    )  # fmt: skip
    precision = X.T.astype(float) @ X + np.eye(3)
    exact = np.linalg.solve(precision, X.T @ Y)
    error = np.sqrt(np.diag(np.linalg.inv(precision)) / 50)  # with as few as fifty independent draws
    assert (np.abs(run.draws["w"].mean((0, 1)) - exact) < 5 * error).all()  # false in less than 1 of 100,000 runs


@pytest.mark.parametrize("name", ["sum", "scan over rows"])
def test_such_a_model_is_not_estimated_from_some_rows(name, mesh_of):
    target = phx.Target(model_of(RIGHT[name]), phx.shard({"x": X, "y": Y}, mesh_of(1, 4)))
    with pytest.raises(ValueError, match="cannot be estimated from some rows"):
        target.in_batches(2)


# -- sums that are corrected, beside rows of latent variables and other terms -------------------------------------


def latent_rows(x, y):
    z, w = phx.sample("z", dist.Normal(jnp.zeros(len(y)), 1.0)), phx.sample("w", dist.Normal(0.0, 1.0).expand([3]))
    phx.factor("f", lax.scan(lambda t, row: (t - (row[1] - row[0] @ w - row[2]) ** 2, None), 0.0, (x, y, z))[0])


def norm_of_latent_rows(x, y):
    z = phx.sample("z", dist.Normal(jnp.zeros(len(y)), 1.0))
    phx.factor("f", -(jnp.linalg.norm(z) ** 2))  # without a derivative at zero
    phx.sample("y", dist.Normal(z, 1.0), obs=y)


def positive_rows(x, y):
    z = phx.sample("z", dist.HalfNormal(1.0).expand([len(y)]))
    phx.factor("f", jnp.cumsum(jnp.log(z) - z * jnp.abs(y))[-1])
    phx.deterministic("product", z * y)


def several_terms(x, y):
    w, s = phx.sample("w", dist.Normal(0.0, 1.0).expand([3])), phx.sample("s", dist.HalfNormal(1.0))
    phx.sample("y", dist.Normal(x @ w, s), obs=y)
    phx.factor("a", -(x @ w).sum())
    phx.factor("b", -x.shape[0] * jnp.log(s))
    phx.factor("c", lax.fori_loop(0, len(y), lambda i, t: t + y[i] * w[0], 0.0))
    phx.factor("d", -(w[1] ** 2))


def sums_of_latent_rows_over_devices(x, y):
    z = phx.sample("z", dist.Normal(jnp.zeros(len(y)), 1.0))
    phx.factor("f", -(lax.psum(z.sum(), "data") ** 2))
    phx.sample("y", dist.Normal(z - lax.pmean(y.mean(), "data"), 1.0), obs=y)


MODELS = [latent_rows, norm_of_latent_rows, positive_rows, several_terms, sums_of_latent_rows_over_devices]


def slow_but(shown, cases):
    return [pytest.param(*case, marks=() if case in shown else pytest.mark.slow) for case in cases]


@pytest.mark.parametrize(
    "model, rows, sizes, axis",
    slow_but(
        [(several_terms, ROWS, (1, 4, 1), "data"), (norm_of_latent_rows, 5, (1, 4, 1), "data")],
        [
            *((model, rows, (1, 4, 1), "data") for model in MODELS for rows in (ROWS, 5)),
            *((model, 13, (1, 2, 4), ("data", "model")) for model in MODELS[:4]),
        ],
    ),
)
def test_terms_beside_rows_of_variables(model, rows, sizes, axis, mesh_of):
    data = {"x": np.resize(X, (rows, 3)), "y": np.resize(Y, rows)}
    found = phx.Target(model, phx.shard(data, mesh_of(*sizes), axis), check="strict")
    one = phx.Target(model, phx.shard(data, mesh_of(1, 1)))
    position = jax.device_get(one.initial_position(jax.random.key(0)))
    (value, gradient), (wanted, slopes) = (jax.device_get(t.value_and_grad(position)) for t in (found, one))
    np.testing.assert_allclose(value, wanted, rtol=2e-5)
    for name, slope in slopes.items():
        np.testing.assert_allclose(gradient[name], slope, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rows", [8, 9])
def test_data_of_several_numbers_of_rows_are_refused_by_name(rows, mesh_of):
    def model(x, y):
        w = phx.sample("w", dist.Normal(0.0, 1.0).expand([3]))
        phx.factor("f", jnp.cumsum(x @ w)[-1] + jnp.cumsum(y)[-1] * w[0])

    with pytest.raises(ValueError, match="Variable 'f': the rows .* data of several numbers of rows are sharded"):
        phx.Target(model, phx.shard({"x": X, "y": Y[:rows]}, mesh_of(1, 4)))


def test_a_last_row_of_density_zero_is_zero(mesh_of):
    def model(y):
        s = phx.sample("s", dist.Normal(0.0, 1.0))
        phx.factor("f", jnp.cumsum(jnp.where(y > 50, -jnp.inf, -((y - s) ** 2)))[-1])

    y = np.append(Y[:-1], np.float32(99.0))
    with pytest.warns(UserWarning, match="could not check"):
        target = phx.Target(model, phx.shard({"y": y}, mesh_of(1, 4)))
    assert target.log_density({"s": np.float32(0.0)}) == -np.inf


def test_a_sample_of_many_rows_is_padded_too(mesh_of, monkeypatch):
    monkeypatch.setattr("phalanx.exactness.row_check.LARGEST", 50)
    data = phx.shard({"x": X, "y": Y}, mesh_of(1, 4))
    assert 4 < phx.Target(model_of(RIGHT["squares in a scan"]), data, check="strict").rows.rows < ROWS
    with pytest.raises(ValueError, match="its log density on the whole data is not the sum"):
        phx.Target(model_of(REFUSED["square of a sum"]), data)
