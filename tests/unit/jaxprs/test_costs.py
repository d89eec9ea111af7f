"""Multiplications and memory of programs of many forms, and the batches of draws that follow from them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax

import phalanx as phx
from phalanx.jaxprs.costs import largest_of_draw, matrix_work
from phalanx.posterior.criticism.model_at_draws import ModelAtDraws, RunDraws
from phalanx.variational.judging.moving import Mover

A, B, X = jnp.eye(6), jnp.ones((6, 4)), jnp.ones(6)


def image_features(x):
    image, kernel = jnp.outer(x, x)[None, None], jnp.ones((5, 1, 3, 3))
    return lax.conv_general_dilated(image, kernel, (1, 1), "VALID")


PROGRAMS = {
    "elementwise": (lambda x: jnp.exp(x) * x, 0),
    "matrix by vector": (lambda x: A @ x, 36),
    "matrix by matrix": (lambda x: A @ B, 6 * 6 * 4),
    "batch": (lambda x: jnp.einsum("bij,bjk->bik", jnp.ones((3, 6, 6)), jnp.ones((3, 6, 4))), 3 * 6 * 6 * 4),
    "jit": (jax.jit(lambda x: A @ x), 36),
    "cholesky": (lambda x: jnp.linalg.cholesky(A), 6**3),
    "batch of factorisations": (lambda x: jnp.linalg.cholesky(jnp.broadcast_to(A, (5, 6, 6))), 5 * 6**3),
    "eigenvalues": (lambda x: jnp.linalg.eigvalsh(A), 6**3),
    "tall": (lambda x: jnp.linalg.svd(B, compute_uv=False), 6 * 4 * 4),
    "triangular": (lambda x: lax.linalg.triangular_solve(A, B, left_side=True), 6 * 6 * 4),
    "convolution": (image_features, 5 * 4 * 4 * 9),
    "scan": (lambda x: lax.scan(lambda c, _: (A @ c, None), x, None, length=7)[0], 7 * 36),
    "known number of turns": (lambda x: lax.fori_loop(0, 7, lambda _, c: A @ c, x), 7 * 36),
    "unknown number of turns": (lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: A @ c, x), 36),
    "branches": (lambda x: lax.cond(x[0] > 0, lambda: A @ x, lambda: x), 36),
    "printed": (lambda x: (jax.debug.print("{x}", x=x), A @ x)[1], 36),
    "no rows": (lambda x: jnp.ones((0, 6)) @ x, 0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_multiplications_of_a_program(name):
    function, expected = PROGRAMS[name]
    assert matrix_work(jax.make_jaxpr(function)(X)) == expected


LARGEST = {
    "of the data": (lambda x, data: jnp.exp(data).sum() + x.sum(), 6),
    "of the draw": (lambda x, data: jnp.outer(x, x).sum() + data.sum(), 36),
    "of both": (lambda x, data: (x[0] * data).sum(), 30),
    "within jit": (lambda x, data: jax.jit(lambda x: jnp.outer(x, x).sum())(x), 36),
    "within a scan": (lambda x, data: lax.scan(lambda c, _: (c + jnp.outer(x, x).sum(), None), 0.0, None, 5)[0], 36),
    "rows of a scan": (lambda x, data: lax.scan(lambda c, _: (c, c), x, None, 9)[1], 54),
    "printed": (lambda x, data: (jax.debug.print("{x}", x=x), x.sum())[1], 6),
    "a key": (lambda x, data: jax.random.normal(jax.random.key(x[0].astype(int)), (3, 4)).sum(), 12),
    "within a branch": (lambda x, data: lax.cond(x[0] > 0, lambda: jnp.outer(x, x).sum(), lambda: 0.0), 36),
}


@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_array_of_a_draw(name):
    function, expected = LARGEST[name]
    assert largest_of_draw(jax.make_jaxpr(function)(X, jnp.ones((5, 6))), [True, False]) == expected


@pytest.mark.parametrize("rows, size", [(100, 512), (1_000, 64)])
def test_draws_of_a_density_with_large_arrays_come_in_small_batches(rows, size):
    """The arrays of a batch have at most 2**26 numbers."""

    def pairs(y):
        scale = phx.sample("scale", dist.HalfNormal(1.0))
        phx.factor("y", -((scale * jnp.outer(y, y) - 1.0) ** 2).mean())

    drawing = phx.fit(pairs, phx.guides.mean_field(), {"y": np.ones(rows)}, num_steps=0, progress=False).proposals
    assert drawing.batch_size == size
    model = ModelAtDraws.of("loo", pairs, {"y": np.ones(rows)}, RunDraws(latents=("scale",)), ["scale"])
    found = model.shapes(
        lambda values, *_: {"s": jnp.outer(values["x"], values["x"]).sum()}, {"x": np.ones((4, 9, rows))}
    )
    assert found[1] == rows**2 and model.batch_size(*found) == min(2**26 // rows**2, 1000)


@pytest.mark.parametrize("rows", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_a_costly_density_has_fewer_draws_moved(rows):
    """A Gaussian process has as few data as the normals, and factorises a matrix for each evaluation."""
    x, y = np.linspace(0, 1, rows, dtype=np.float32), np.ones(rows, np.float32)

    def covariance(scale):
        return jnp.exp(-0.5 * ((x[:, None] - x) / (0.2 + scale)) ** 2) + 0.1 * jnp.eye(rows)

    def process(y):
        scale = phx.sample("scale", dist.HalfNormal(1.0))
        phx.sample("y", dist.MultivariateNormal(jnp.zeros(rows), covariance(scale)), obs=y)

    def normals(y):
        phx.sample("y", dist.Normal(0.0, phx.sample("scale", dist.HalfNormal(1.0))), obs=y)

    def moved(model):
        fit = phx.fit(model, phx.guides.mean_field(), {"y": y}, num_steps=1, progress=False)
        return Mover(fit.proposals).count

    assert moved(normals) == 4096
    assert moved(process) == (4096 if rows == 20 else 512)
