"""`Sharded` in hand-written SPMD code: draws, log densities and gradients are those of the unsharded whole."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax
from jax.sharding import PartitionSpec
from numpyro.distributions import biject_to

import phalanx as phx

COUNTS = [4, pytest.param(8, marks=pytest.mark.slow)]


def data_mesh(devices):
    return phx.make_mesh(chain=1, data=devices)


def nested_mesh():
    return phx.make_mesh(chain=1, data=4, model=2)


@pytest.mark.parametrize("devices", COUNTS)
def test_one_key_gives_different_draws_on_different_devices(devices):
    draw = phx.spmd(
        lambda key: phx.Sharded(dist.Normal(0.0, 1.0).expand([3]), "data").sample(key), data_mesh(devices), None, "data"
    )
    draws = draw(jax.random.key(0))
    assert draws.shape == (devices, 3)
    assert len(np.unique(draws)) == draws.size


@pytest.mark.parametrize("nest", [
    lambda d: phx.Sharded(phx.Sharded(d, "data"), "model"),
    lambda d: phx.Sharded(d, ("data", "model")),
])  # fmt: skip
def test_nested_axes_give_different_draws_along_both(nest):
    both = PartitionSpec("data", "model")
    draw = phx.spmd(lambda key: nest(dist.Normal(0.0, 1.0)).sample(key, (2,)), nested_mesh(), None, both)
    draws = draw(jax.random.key(0))
    assert draws.shape == (4, 2, 2)
    assert len(np.unique(draws)) == draws.size


def test_a_distribution_sharded_over_one_axis_is_alike_along_the_other():
    both = PartitionSpec("data", "model")

    def draw(key):
        return phx.Sharded(dist.Normal(0.0, 1.0), "data").sample(key)

    draws = phx.spmd(draw, nested_mesh(), None, both)(jax.random.key(0))
    np.testing.assert_array_equal(draws[:, 0], draws[:, 1])
    assert len(np.unique(draws)) == 4


def test_nesting_knows_both_axes():
    assert phx.Sharded(phx.Sharded(dist.Normal(0.0, 1.0), "i"), "j").axes == ("i", "j")


@pytest.mark.parametrize(
    "inner, axis, listed", [("i", "i", "['i', 'i']"), ("i", ("j", "i"), "['i', 'j', 'i']"), ((), "jj", None)]
)
def test_a_repeated_axis_is_an_error_that_lists_them(inner, axis, listed):
    nested = phx.Sharded(dist.Normal(0.0, 1.0), inner)
    if listed is None:
        assert phx.Sharded(nested, axis).axes == ("jj",)
        return
    with pytest.raises(ValueError, match=re.escape(f"Sharded: an axis is named more than once in {listed}.")):
        phx.Sharded(nested, axis)


def test_no_axis_is_an_error():
    words = "Sharded: axis is None; name the mesh axis, or axes, that the value is sharded over."
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.Sharded(dist.Normal(0.0, 1.0), None)


def test_an_empty_list_of_axes_changes_nothing():
    plain, sharded = dist.Normal(0.5, 2.0), phx.Sharded(dist.Normal(0.5, 2.0), [])
    key = jax.random.key(3)
    assert sharded.sample(key) == plain.sample(key)
    assert sharded.log_prob(1.0) == plain.log_prob(1.0)


@pytest.mark.parametrize("devices", COUNTS)
def test_log_prob_is_that_of_the_whole_on_every_device_and_so_are_gradients(devices):
    x = np.linspace(-1, 2, devices, dtype=np.float32)

    def on_device(x, loc):
        f = lambda x, loc: phx.Sharded(dist.Normal(loc, 1.5), "data").log_prob(x)  # noqa: E731
        return f(x, loc), *jax.grad(f, (0, 1))(x, loc)

    value, gx, gloc = phx.spmd(on_device, data_mesh(devices), ("data", None), ("data", "data", "data"))(x, 0.3)

    def whole(x, loc):
        return dist.Normal(loc, 1.5).log_prob(x).sum()

    np.testing.assert_allclose(value, np.full(devices, whole(x, 0.3)), rtol=1e-5)
    np.testing.assert_allclose(gx, jax.grad(whole)(x, 0.3), rtol=1e-5)
    np.testing.assert_allclose(gloc, np.full(devices, jax.grad(whole, 1)(x, 0.3)), rtol=1e-5)


def test_a_product_of_a_sharded_vector_and_a_global_number():
    def on_device(x, y):
        f = lambda x, y: lax.psum(x * y, "data")  # noqa: E731
        return f(x, y), *jax.grad(f, (0, 1))(x, y)

    run = phx.spmd(on_device, data_mesh(4), ("data", None), ("data", "data", "data"))
    value, gx, gy = run(jnp.arange(4.0), 2.0)
    np.testing.assert_array_equal(value, np.full(4, 12.0))
    np.testing.assert_array_equal(gx, np.full(4, 2.0))
    np.testing.assert_array_equal(gy, np.full(4, 6.0))


def test_differences_of_log_densities():
    x, y = np.array([0.1, -0.5, 2.0, 1.0], np.float32), np.array([1.1, 0.5, -2.0, 0.3], np.float32)

    def on_device(x, y, loc):
        def f(x, loc):
            d = phx.Sharded(dist.Normal(loc, 1.0), "data")
            return d.log_prob(x) - d.log_prob(y)

        return f(x, loc), *jax.grad(f, (0, 1))(x, loc)

    run = phx.spmd(on_device, data_mesh(4), ("data", "data", None), ("data", "data", "data"))
    value, gx, gloc = run(x, y, 0.5)
    np.testing.assert_allclose(value, np.full(4, np.sum((y - 0.5) ** 2 - (x - 0.5) ** 2) / 2), rtol=1e-5)
    np.testing.assert_allclose(gx, 0.5 - x, rtol=1e-5)
    np.testing.assert_allclose(gloc, np.full(4, np.sum(x - y)), rtol=1e-5)


def test_log_determinants_and_supports_that_depend_on_a_global_variable():
    """u -> Uniform(0, top) on each device: log density of u is that of the whole."""
    u = np.array([-1.0, 0.2, 0.5, 3.0], np.float32)

    def piece(u, top):
        transform = biject_to(dist.Uniform(0.0, top).support)
        return transform, transform(u)

    def whole(u, top):
        transform, x = piece(u, top)
        return jnp.sum(dist.Uniform(0.0, top).log_prob(x) + transform.log_abs_det_jacobian(u, x)), x

    def on_device(u, top):
        def f(u, top):
            d = phx.Sharded(dist.Uniform(0.0, top), "data")
            transform = biject_to(d.support)
            x = transform(u)
            return d.log_prob(x) + lax.psum(transform.log_abs_det_jacobian(u, x), "data"), x

        (value, x), gradient = jax.value_and_grad(f, (0, 1), has_aux=True)(u, top)
        return value, x, *gradient

    value, x, gu, gtop = phx.spmd(on_device, data_mesh(4), ("data", None), ("data",) * 4)(u, 2.5)
    (expected, expected_x), (eu, etop) = jax.value_and_grad(whole, (0, 1), has_aux=True)(u, 2.5)
    np.testing.assert_allclose(value, np.full(4, expected), rtol=1e-5)
    np.testing.assert_allclose(x, expected_x, rtol=1e-6)
    np.testing.assert_allclose(gu, eu, rtol=1e-4)
    np.testing.assert_allclose(gtop, np.full(4, etop), rtol=1e-4, atol=1e-6)


def test_transformed_distributions_carry_their_log_determinant():
    x = np.array([0.5, 1.5, 2.5, 0.1], np.float32)
    value = phx.spmd(lambda x: phx.Sharded(dist.LogNormal(0.2, 0.7), "data").log_prob(x), data_mesh(4), "data", None)(x)
    np.testing.assert_allclose(value, dist.LogNormal(0.2, 0.7).log_prob(x).sum(), rtol=1e-5)


@pytest.mark.slow
def test_one_value_along_each_axis_and_one_along_both():
    x, y = np.array([0.0, 1.0, 2.0, 3.0], np.float32), np.array([-1.0, 0.5], np.float32)
    z = np.arange(8, dtype=np.float32).reshape(4, 2) / 4

    def joint(p, over_x, over_y, over_both):
        return (
            over_x(dist.Normal(p["loc"], 1.0)).log_prob(p["x"])
            + over_y(dist.Normal(p["loc"], 2.0)).log_prob(p["y"])
            + over_both(dist.Normal(p["x"] * p["y"], 1.0)).log_prob(p["z"])
        )

    def on_device(x, y, z, loc):
        def f(p):
            return joint(
                p,
                lambda d: phx.Sharded(d, "data"),
                lambda d: phx.Sharded(d, "model"),
                lambda d: phx.Sharded(d, ("model", "data")),
            )

        value, g = jax.value_and_grad(f)({"x": x, "y": y, "z": z, "loc": loc, "unused": loc})
        return value, g["x"], g["y"], g["z"], g["loc"], g["unused"]

    both = PartitionSpec("data", "model")
    run = phx.spmd(on_device, nested_mesh(), ("data", "model", both, None), (both, "data", "model", both, both, None))
    value, gx, gy, gz, gloc, unused = run(x, y, z, 0.5)

    class Plain:
        def __init__(self, d):
            self.d = d

        def log_prob(self, v):
            return self.d.log_prob(v).sum()

    def whole(p):
        p = {**p, "x": p["x"][:, None], "y": p["y"][None, :]}
        return joint(p, Plain, Plain, Plain)

    expected, g = jax.value_and_grad(whole)({"x": x, "y": y, "z": z, "loc": 0.5})
    np.testing.assert_allclose(value, np.full((4, 2), expected), rtol=1e-5)
    np.testing.assert_allclose(gx, g["x"], rtol=1e-5)
    np.testing.assert_allclose(gy, g["y"], rtol=1e-5)
    np.testing.assert_allclose(gz, g["z"], rtol=1e-5)
    np.testing.assert_allclose(gloc, np.full((4, 2), g["loc"]), rtol=1e-5)
    assert unused == 0


def test_integer_data_and_structured_parameters():
    counts = np.array([0, 3, 1, 7])
    labels = np.array([0, 1, 1, 0])

    def f(counts, labels, p, wrap):
        return jnp.sum(wrap(dist.Poisson(jnp.exp(p["rates"][labels]) * p["scale"])).log_prob(counts))

    def on_device(counts, labels, p):
        return jax.grad(lambda p: f(counts, labels, p, lambda d: phx.Sharded(d, "data")))(p)

    parameters = {"rates": jnp.array([0.1, 0.7]), "scale": jnp.array(1.3), "unused": jnp.ones(2)}
    found = phx.spmd(on_device, data_mesh(4), ("data", "data", None), None)(counts, labels, parameters)
    expected = jax.grad(lambda p: f(counts, labels, p, lambda d: d))(parameters)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


def test_reparameterised_gradients_of_draws():
    def on_device(loc, weight):
        def f(loc):
            return lax.psum(weight * phx.Sharded(dist.Normal(loc, 1.0), "data").sample(jax.random.key(0)) ** 2, "data")

        draw = phx.Sharded(dist.Normal(loc, 1.0), "data").sample(jax.random.key(0))
        return jax.grad(f)(loc), draw

    weight = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    gradient, draws = phx.spmd(on_device, data_mesh(4), (None, "data"), ("data", "data"))(0.5, weight)
    np.testing.assert_allclose(gradient, np.full(4, np.sum(2 * weight * draws)), rtol=1e-5)


def pmapped(f):
    return lambda x: jax.pmap(f, axis_name="data", devices=jax.devices()[:4])(x)


def vmapped(f):
    return jax.vmap(f, axis_name="data")


def unchecked(f):
    spec = PartitionSpec("data")
    return jax.shard_map(f, mesh=data_mesh(4), in_specs=spec, out_specs=spec, check_vma=False)


@pytest.mark.parametrize("use", ["sample", "log_prob"])
@pytest.mark.parametrize("context", [vmapped, unchecked, pmapped])
def test_it_refuses_where_gradients_would_be_wrong(context, use):
    def f(x):
        d = phx.Sharded(dist.Normal(0.0, 1.0), "data")
        return d.log_prob(x) if use == "log_prob" else d.sample(jax.random.key(0)) + x

    words = (
        "Sharded over 'data': JAX does not track here which values differ from device to device, and gradients "
        "through the sum over devices would be wrong. Use phx.spmd, or jax.shard_map with its default check_vma=True, "
        "instead of pmap, vmap or an unchecked shard_map."
    )
    with pytest.raises(RuntimeError, match=re.escape(words)):
        context(f)(jnp.zeros(4))


def test_outside_of_any_mesh_it_says_where_to_call_it():
    words = (
        "Sharded over 'data': there is no mesh axis of this name here. Call it inside phx.spmd or jax.shard_map over "
        "a mesh with that axis."
    )
    with pytest.raises(RuntimeError, match=re.escape(words)):
        phx.Sharded(dist.Normal(0.0, 1.0), "data").log_prob(0.0)
