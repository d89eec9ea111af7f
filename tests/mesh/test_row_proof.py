"""Models that mix rows, or see their number, and that a proof could take for ordinary ones: none may be proved."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx

RANDOM = np.random.default_rng(0)
EIGHT = RANDOM.normal(size=8).astype(np.float32)
"""A row on each of eight devices: there it looks like a number for all."""
MANY = RANDOM.normal(size=64).astype(np.float32)
CODES = RANDOM.integers(0, 6, 64)


def standard(*shape):
    return phx.sample("w", dist.Normal(0.0, 1.0).expand(shape))


def widened_to_the_latent(x):
    phx.factor("y", jnp.sum(x * standard(8)))


def density_widened(x):
    phx.factor("y", dist.Normal(standard(8), 1.0).log_prob(x).sum())


def column_widened(x):
    with jax.numpy_rank_promotion("allow"):
        phx.factor("y", jnp.sum(x[:, None] * standard(8, 8)))


def index_times_the_number_of_rows(x, c):
    phx.factor("y", jnp.sum(x) + jnp.sum(jnp.take(standard(40), c * (x.shape[0] // 8), mode="clip")))


def row_numbers_of_few_digits(x):
    number = jnp.arange(x.shape[0] * 8, dtype=jnp.bfloat16).reshape(-1, 8)[:, 0]
    phx.factor("y", jnp.sum(number.astype(jnp.float32) * x) * standard())


def derivative_times_the_number_of_rows(x):
    @jax.custom_jvp
    def same(w):
        return w

    same.defjvp(lambda primals, tangents: (primals[0], tangents[0] * x.shape[0]))
    phx.sample("y", dist.Normal(same(standard()), 1.0).expand([x.shape[0]]), obs=x)


def callback_that_knows_the_number_of_rows(x):
    rows = x.shape[0]
    factor = jax.pure_callback(lambda v: np.float32(v * rows), jax.ShapeDtypeStruct((), jnp.float32), jnp.float32(2.0))
    phx.sample("y", dist.Normal(standard() * factor, 1.0).expand([rows]), obs=x)


@pytest.mark.parametrize(
    "model, data",
    [
        (widened_to_the_latent, {"x": EIGHT}),
        (density_widened, {"x": EIGHT}),
        (column_widened, {"x": EIGHT}),
        (index_times_the_number_of_rows, {"x": MANY, "c": CODES}),
        (row_numbers_of_few_digits, {"x": MANY}),
        (derivative_times_the_number_of_rows, {"x": MANY}),
        (callback_that_knows_the_number_of_rows, {"x": MANY}),
    ],
)
def test_what_sees_other_rows_or_their_number_is_not_proved(model, data, mesh_of):
    mesh = mesh_of(1, 8)
    try:
        target = phx.Target(model, phx.shard(data, mesh), mesh=mesh, check="off")
    except ValueError:
        return  # refused: all the better
    assert "y" not in str(target.rows.proved)


def test_rows_beside_them_are_proved(mesh_of):
    def ordinary(x, c):
        phx.sample("y", dist.Normal(standard(6)[c], 1.0), obs=x)

    mesh = mesh_of(1, 8)
    target = phx.Target(ordinary, phx.shard({"x": MANY, "c": CODES}, mesh), mesh=mesh, check="off")
    assert "y" in str(target.rows.proved)
