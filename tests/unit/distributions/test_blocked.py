"""Likelihoods evaluated block by block: value and gradient are those of all rows at once, on any mesh."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from tests.slow import with_slow

import phalanx as phx
from phalanx.distributions.blocked import BLOCK_ELEMENTS, Blocked

ROWS = 103
PIXELS = np.random.default_rng(0).integers(0, 256, (ROWS, 7)).astype(np.uint8)
LABELS = np.random.default_rng(1).integers(0, 3, ROWS)
DATA = {"pixels": PIXELS, "labels": LABELS}


def classes(pixels, labels, likelihood):
    """A weight for every pixel and class, and a latent variable for every row."""
    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([7, 3]))
    rows = phx.sample("rows", dist.Normal(0.0, 1.0).expand([pixels.shape[0]]))

    def of(pixels, rows):
        return dist.CategoricalLogits(pixels.astype(jnp.float32) / 255 @ w + rows[:, None] * jnp.arange(3.0)[None])

    likelihood(of, pixels, rows, labels)


def whole(pixels, labels):
    classes(pixels, labels, lambda of, *rows: phx.sample("labels", of(*rows[:-1]), obs=rows[-1]))


def in_blocks(block=None):
    def model(pixels, labels):
        classes(
            pixels, labels,
            lambda of, *rows: phx.sample("labels", phx.blocked(of, *rows[:-1], block=block), obs=rows[-1]),
        )  # fmt: skip

    return model


def as_factor(pixels, labels):
    def likelihood(of, *rows):
        phx.factor("labels", phx.blocked(lambda x, r, y: of(x, r).log_prob(y), *rows, block=10))

    classes(pixels, labels, likelihood)


@cache
def truth():
    """A position, and what all rows at once say of it."""
    target = phx.Target(whole, DATA)
    position = target.initial_position(jax.random.key(3))
    return position, *target.value_and_grad(position)


def agree(model, mesh=None, tolerance=1e-4):
    position, value, gradient = truth()
    target = phx.Target(model, DATA if mesh is None else phx.shard(DATA, mesh), mesh=mesh)
    found, found_gradient = target.value_and_grad(position)
    np.testing.assert_allclose(found, value, rtol=1e-5)
    np.testing.assert_allclose(target.log_density(position), value, rtol=1e-5)
    for name, leaf in gradient.items():
        np.testing.assert_allclose(found_gradient[name], leaf, rtol=1e-4, atol=tolerance, err_msg=name)


BLOCKS = [1, 10, 50, 102, 103, 1000, None]


@pytest.mark.parametrize("block", with_slow(BLOCKS, {*BLOCKS} - {103}))
def test_any_block_gives_the_same(block):
    agree(in_blocks(block))


@pytest.mark.slow
def test_a_factor_of_log_densities():
    agree(as_factor)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", [(2, 4), *(pytest.param(sizes, marks=pytest.mark.slow) for sizes in ((1, 8), (4, 2)))]
)
def test_rows_that_do_not_divide_on_any_mesh(sizes, mesh_of):
    agree(in_blocks(5), mesh_of(*sizes))
    agree(as_factor, mesh_of(*sizes))


@pytest.mark.slow
def test_draws_are_those_of_all_rows_at_once(mesh_of):
    options = {
        "kernel": phx.hmc(5, step_size=0.02),
        "num_chains": 4,
        "num_warmup": 0,
        "num_samples": 5,
        "progress": False,
    }
    runs = [phx.mcmc(m, DATA, mesh=mesh_of(1, 1), **options).draws["w"] for m in (whole, in_blocks(20))]
    np.testing.assert_allclose(*runs, rtol=1e-3, atol=1e-4)


def loops_and_products(model, data):
    """Loops over blocks, and matrix products, of a gradient."""
    target = phx.Target(model, data)
    position = target.initial_position(jax.random.key(0))
    text = str(jax.make_jaxpr(target.value_and_grad)(position))
    return text.count("scan["), text.count("dot_general[")


def test_one_pass_has_no_more_products_than_two():
    loops, products = loops_and_products(in_blocks(10), DATA)
    assert (loops, products) == (1, 2)  # logits, and the gradient of w; pixels are not differentiated
    assert loops_and_products(whole, DATA) == (0, 2)


@pytest.mark.parametrize("block", [3, *(pytest.param(block, marks=pytest.mark.slow) for block in (4, 5, 12))])
def test_rows_in_the_second_dimension_of_a_product(block):
    """Then the gradient of the rows ends in a transpose, too; with blocks of 3 its shape does not tell."""
    y = (np.random.default_rng(0).random((12, 5)) < 0.5).astype(np.int8)

    def products(y, wrap):
        v = phx.sample("v", dist.Normal(0.0, 1.0).expand([5, 3]))
        u = phx.sample("u", dist.Normal(0.0, 1.0).expand([y.shape[0], 3]))
        phx.sample("y", wrap(lambda u: dist.Bernoulli(logits=(v @ u.T).T).to_event(1), u), obs=y)

    targets = [
        phx.Target(lambda y, wrap=wrap: products(y, wrap), {"y": y})
        for wrap in (lambda f, u: f(u), lambda f, u: phx.blocked(f, u, block=block))
    ]
    position = targets[0].initial_position(jax.random.key(0))
    (value, gradient), (found, found_gradient) = (target.value_and_grad(position) for target in targets)
    np.testing.assert_allclose(found, value, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found_gradient, gradient)


def test_gradients_of_half_precision_are_added_up_in_float32():
    x = np.random.default_rng(0).normal(size=(40_000, 4)).astype(np.float32)

    def model(x, wrap):
        w = phx.sample("w", dist.Normal(0.0, 1.0).expand([4]))
        half = w.astype(jnp.bfloat16)
        phx.factor("x", wrap(lambda x: -0.5 * (x @ half.astype(jnp.float32)) ** 2, x))

    plain, blocks = (
        phx.Target(lambda x, wrap=wrap: model(x, wrap), {"x": x})
        for wrap in (lambda f, x: f(x), lambda f, x: phx.blocked(f, x, block=64))
    )
    position = {"w": jnp.asarray([0.5, -0.3, 0.2, 0.9])}
    exact, found = (target.value_and_grad(position)[1]["w"] for target in (plain, blocks))
    np.testing.assert_allclose(found, exact, rtol=1e-2)  # bfloat16 has three digits; 625 blocks would leave one


def elements(model, data):
    """Elements of the largest array of real numbers that a gradient makes."""
    target = phx.Target(model, data)
    position = target.initial_position(jax.random.key(0))

    def largest(jaxpr):
        made = [v.aval for eqn in jaxpr.eqns for v in eqn.outvars]
        sizes = [int(np.prod(a.shape)) for a in made if jnp.issubdtype(a.dtype, jnp.floating)]
        inner = [p for eqn in jaxpr.eqns for p in jax.tree.leaves(eqn.params, is_leaf=_is_jaxpr) if _is_jaxpr(p)]
        return max([*sizes, *(largest(getattr(p, "jaxpr", p)) for p in inner)], default=0)

    return largest(jax.make_jaxpr(target.value_and_grad)(position).jaxpr)


def _is_jaxpr(node):
    return hasattr(node, "eqns") or hasattr(getattr(node, "jaxpr", None), "eqns")


def test_no_array_is_as_long_as_the_data():
    watched = np.zeros((3000, 500), np.int8)

    def factorised(watched):
        users, films = watched.shape
        rows = phx.sample("rows", dist.Normal(0.0, 1.0).expand([users]))
        films = phx.sample("films", dist.Normal(0.0, 1.0).expand([films]))
        logits = phx.blocked(lambda rows: dist.Bernoulli(logits=rows[:, None] * films[None]).to_event(1), rows)
        phx.sample("watched", logits, obs=watched)

    assert elements(factorised, {"watched": watched}) <= BLOCK_ELEMENTS < watched.size


def test_functions_that_a_function_calls_count():
    watched = np.zeros((4096, 3000), np.int8)

    def model(watched):
        rows = phx.sample("rows", dist.Normal(0.0, 1.0).expand([watched.shape[0]]))
        films = phx.sample("films", dist.Normal(0.0, 1.0).expand([watched.shape[1]]))
        logits = jax.jit(lambda rows: rows[:, None] * films[None])
        phx.sample("w", phx.blocked(lambda rows: dist.Bernoulli(logits=logits(rows)).to_event(1), rows), obs=watched)

    assert elements(model, {"watched": watched}) <= BLOCK_ELEMENTS < watched.size


def test_blocks_shrink_with_the_lanes(monkeypatch):
    monkeypatch.setattr("phalanx.distributions.blocked.BLOCK_ELEMENTS", 2**12)
    seen = []

    def rows(a, b):
        if not seen or seen[-1] != a.shape[0]:
            seen.append(a.shape[0])
        return dist.Normal(a[:, None] * b[None], 1.0).to_event(1)

    def model(y):
        a = phx.sample("a", dist.Normal(0.0, 1.0).expand([y.shape[0]]))
        b = phx.sample("b", dist.Normal(0.0, 1.0).expand([64]))
        phx.sample("y", phx.blocked(lambda a: rows(a, b), a), obs=y)

    smallest = []
    for lanes in (1, 4):
        seen.clear()
        target = phx.Target(model, {"y": np.zeros((1024, 64), np.float32)})
        jax.make_jaxpr(target.on_device(target.place_arrays(), lanes).value_and_grad)(
            {"a": jnp.zeros(1024), "b": jnp.zeros(64)}
        )
        smallest.append(min(seen))
    assert smallest == [64, 16]


def test_it_is_a_distribution():
    made = phx.blocked(lambda x: dist.Normal(x, 1.0), jnp.arange(4.0))
    assert isinstance(made, Blocked) and made.batch_shape == (4,) and made.event_shape == ()
    assert made.sample(jax.random.key(0)).shape == (4,)
    np.testing.assert_allclose(made.log_prob(jnp.arange(4.0)), np.full(4, -0.9189385), rtol=1e-6)
    drawn = phx.trace(phx.seed(lambda: phx.sample("y", made), 0))()
    assert drawn["y"].shape == (4,)
    joint = phx.log_joint(lambda: phx.sample("y", made))
    np.testing.assert_allclose(joint({"y": jnp.arange(4.0)}), 4 * -0.9189385, rtol=1e-6)


def test_it_crosses_transformations():
    def of(x):
        return phx.blocked(lambda x: dist.Normal(x, 1.0), x)

    many = jax.vmap(of)(jnp.stack([jnp.zeros(5), jnp.ones(5)]))
    totals = jax.vmap(lambda one: one.total(jnp.zeros(5)))(many)
    np.testing.assert_allclose(totals.value, [5 * -0.9189385, 5 * -1.4189385], rtol=1e-6)


def test_scaled_terms_are_scaled():
    data = np.arange(6.0, dtype=np.float32)

    def model(y):
        m = phx.sample("m", dist.Normal(0.0, 1.0))
        phx.sample("y", phx.blocked(lambda y: dist.Normal(m + 0 * y, 1.0), y, block=2), obs=y)

    def scaled(y):
        phx.scale(model, 3.0)(y)

    def by_hand(y):
        m = phx.sample("m", dist.Normal(0.0, 1.0))
        phx.factor("prior", 2 * dist.Normal(0.0, 1.0).log_prob(m))
        phx.factor("y", 3 * dist.Normal(m, 1.0).log_prob(y))

    position = {"m": jnp.float32(0.7)}
    for a, b in zip(*(phx.Target(m, {"y": data}).value_and_grad(position) for m in (scaled, by_hand)), strict=True):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), a, b)


def test_observations_out_of_support_are_named():
    def model(y):
        rate = phx.sample("rate", dist.HalfNormal(1.0))
        phx.sample("y", phx.blocked(lambda y: dist.Exponential(rate * jnp.ones(y.shape[0])), y), obs=y)

    sizes = {"kernel": phx.rwmh(0.5), "num_warmup": 5, "num_samples": 5, "progress": False}
    with pytest.raises(ValueError, match="Variable 'y': 1 observed value lies outside"):
        phx.mcmc(model, {"y": np.array([1.0, -2.0, 3.0], np.float32)}, **sizes)


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: phx.blocked(lambda x: dist.Normal(x, 1.0), jnp.ones(3), jnp.ones(4)), ValueError, "of one length"),
        (lambda: phx.blocked(lambda: dist.Normal(0.0, 1.0)), ValueError, "of one length"),
        (lambda: phx.blocked(lambda x: dist.Normal(x, 1.0), jnp.ones(())), ValueError, "of one length"),
        (lambda: phx.blocked(lambda x: dist.Normal(x, 1.0), jnp.ones((0, 2))), ValueError, "at least 1"),
        (lambda: phx.blocked(lambda x: dist.Normal(x.mean(), 1.0), jnp.ones(3)), ValueError, "3 rows and returned"),
        (lambda: phx.blocked(lambda x: dist.Normal(x, 1.0), jnp.ones(3), block=0), ValueError, "block must be"),
        (lambda: phx.blocked(dist.Normal(0.0, 1.0), jnp.ones(3)), TypeError, "must be a function of rows"),
    ],
)
def test_wrong_blocks_are_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()
