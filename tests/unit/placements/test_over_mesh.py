"""Functions of arrays on a mesh: weights divided over `model`, particles over `chain`, random numbers by row."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from jax.sharding import NamedSharding, PartitionSpec

from phalanx.distributions.row_sums import times, total_of
from phalanx.placements import add_together, divide, over_mesh
from phalanx.placements.control_flow import ProgramInterpreter

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(16, 6)).astype(np.float32)
FIRST = RANDOM.normal(size=(6, 8)).astype(np.float32)
SECOND = RANDOM.normal(size=(8, 4)).astype(np.float32)
KEY = random.key(3)


def on_devices(f, mesh, arrays, specs, results=None):
    """Evaluate `f` on a mesh; return its result, and the messages of more than a number for each device."""
    placed = [jax.device_put(array, NamedSharding(mesh, spec)) for array, spec in zip(arrays, specs, strict=True)]
    laid_out = None if results is None else lambda _: NamedSharding(mesh, results)
    messages = []
    found = jax.jit(over_mesh(f, mesh, tuple(placed), laid_out, messages))(*placed)
    return found, [(message.collective, message.axis) for message in messages if message.nbytes > 64]


ROWS, COLUMNS, ALL = PartitionSpec("data"), PartitionSpec(None, "model"), PartitionSpec("model")


def test_a_network_divided_over_both_axes_adds_activations_once(mesh_of):
    def loss(first, second, x):
        return jnp.mean(jnp.tanh(jnp.tanh(x @ first) @ second) ** 2)

    arrays, specs = (FIRST, SECOND, X), (COLUMNS, ALL, ROWS)
    found, messages = on_devices(loss, mesh_of(1, 2, 4), arrays, specs)
    np.testing.assert_allclose(found, loss(*arrays), rtol=1e-5)
    assert messages == [("all-reduce", "model")]


def test_a_gradient_is_added_in_one_message_and_stays_where_its_weights_are(mesh_of):
    def gradient(first, second, x):
        weights = first, second
        slope = jax.grad(lambda w: jnp.sum(jnp.tanh(jnp.tanh(x @ w[0]) @ w[1]) ** 2))(weights)
        first, second = add_together(slope, weights)
        return jnp.sin(first).sum() + jnp.sin(second).sum()  # not linear: the sums are needed

    arrays, specs = (FIRST, SECOND, X), (COLUMNS, ALL, ROWS)
    found, messages = on_devices(gradient, mesh_of(1, 2, 4), arrays, specs)
    np.testing.assert_allclose(found, gradient(*arrays), rtol=1e-4)
    assert messages.count(("all-reduce", "data")) == 1 and ("all-gather", "model") not in messages


def test_a_gradient_of_divided_weights_is_added_on_their_devices_alone(mesh_of):
    def gradient(weights, x):
        slope = add_together(jax.grad(lambda w: jnp.sum((x @ w) ** 3))(weights), weights)
        return jnp.sin(slope)

    found, messages = on_devices(gradient, mesh_of(1, 2), (FIRST, X), (ROWS, ROWS), ROWS)
    np.testing.assert_allclose(found, gradient(FIRST, X), rtol=1e-4, atol=1e-4)
    assert messages == [("all-gather", "data"), ("reduce-scatter", "data")]
    assert found.sharding.spec == ROWS


DRAWS = {
    "normal": lambda x: x + random.normal(KEY, x.shape),
    "normal of columns": lambda x: x[:, 0] + random.normal(KEY, (3, len(x))).sum(0),
    "gamma": lambda x: x[:, 0] + random.gamma(KEY, 2.0, (len(x),)),
    "randint": lambda x: x + random.randint(KEY, x.shape, 0, 1000),
    "bytes": lambda x: x + random.bits(KEY, x.shape, jnp.uint8),
    "double": lambda x: x + random.bits(KEY, x.shape, jnp.uint64),
    "keys": lambda x: x + jax.vmap(lambda key: random.uniform(key, x.shape))(random.split(KEY, 3)).sum(0),
    "keys of rows": lambda x: x + jax.vmap(lambda key: random.uniform(key, (6,)))(random.split(KEY, len(x))),
    "permutation": lambda x: x[:, 0] + random.permutation(KEY, len(x)),
    "other generator": lambda x: x + random.normal(random.key(0, impl="rbg"), x.shape),
}


@pytest.mark.parametrize("name", DRAWS)
def test_each_device_draws_its_own_rows_of_what_one_device_draws(name, mesh_of):
    with jax.enable_x64(True):
        found, messages = on_devices(DRAWS[name], mesh_of(1, 4), (X,), (ROWS,), ROWS)
        np.testing.assert_allclose(found, DRAWS[name](X), rtol=1e-6)
    assert not messages


@pytest.mark.parametrize("size", [8, 16, 5])
def test_totals_of_particles_over_chains_and_rows_send_nothing_but_sums(size, mesh_of):
    def bounds(x):
        def of_particle(number):
            total = times(total_of(jnp.cos(x[:, 0] * number)), 2.0)
            return jnp.tanh(total.value)

        return jax.vmap(of_particle)(divide(jnp.arange(size), "chain") if size % 2 == 0 else jnp.arange(size))

    found, messages = on_devices(bounds, mesh_of(2, 4), (X,), (ROWS,))
    np.testing.assert_allclose(found, bounds(X), rtol=1e-5)
    if size not in X.shape:  # as many particles as rows leave open which dimension is which
        assert not messages


def test_rows_over_two_axes_beside_weights_over_one_of_them(mesh_of):
    def f(weights, x):
        return jnp.sum(jnp.tanh(x @ weights) ** 2, 1)

    both = PartitionSpec(("data", "model"))
    found, _ = on_devices(f, mesh_of(1, 2, 4), (FIRST, X), (COLUMNS, both), both)
    np.testing.assert_allclose(found, f(FIRST, X), rtol=1e-5)
    assert found.sharding.spec == both


def test_a_sum_that_several_expressions_are_linear_in_is_added_once(mesh_of):
    def f(x):
        total = x.sum(0)
        return jnp.exp(total - 1.0) + jnp.tanh(2.0 * total) + jnp.cos(total + X[0])

    found, _ = on_devices(f, mesh_of(1, 4), (X,), (ROWS,))
    np.testing.assert_allclose(found, f(X), rtol=1e-5)
    mesh, messages = mesh_of(1, 4), []
    x = jax.device_put(X, NamedSharding(mesh, ROWS))
    jax.jit(over_mesh(f, mesh, (x,), None, messages)).lower(x)
    assert [message.collective for message in messages] == ["all-reduce"]


@pytest.mark.parametrize("columns", [8, 6])
def test_a_sum_over_two_axes_that_is_added_over_one_of_them_first(columns, mesh_of):
    """The product with a sum over `data` alone needs the sum over that axis; `exp` needs the other one as well."""

    def f(x, y):
        total = 2.0 * x.sum()
        product = total * y.sum()
        rows = jnp.exp(-total) + jnp.arange(8.0, dtype=jnp.float32) * total
        return product + jnp.exp(total) + jnp.sin(y * total).sum() + (rows * y[:8]).sum()

    x = RANDOM.random((16, columns), np.float32) / 100
    y = RANDOM.random(16, np.float32)
    specs = PartitionSpec("data", "model" if columns == 8 else None), ROWS
    found, _ = on_devices(f, mesh_of(1, 2, 4), (x, y), specs)
    np.testing.assert_allclose(found, f(x, y), rtol=1e-5)


def test_nested_loops_are_followed_once_for_each_placement(mesh_of, monkeypatch):
    """Four loops, each of which asks for the placements of its body before it is followed."""
    followed, primitive = [], ProgramInterpreter.primitive

    def counted(self, equation, inputs):
        followed.append(equation.primitive.name)
        return primitive(self, equation, inputs)

    monkeypatch.setattr(ProgramInterpreter, "primitive", counted)

    def nested(x, depth):
        if depth == 0:
            return jnp.tanh(x).sum() * x
        return jax.lax.fori_loop(0, 2, lambda _, y: nested(y, depth - 1), x)

    found, _ = on_devices(lambda x: nested(x, 4), mesh_of(1, 4), (X,), (ROWS,), ROWS)
    np.testing.assert_allclose(found, nested(X, 4), rtol=1e-4)
    assert followed.count("tanh") == 2
