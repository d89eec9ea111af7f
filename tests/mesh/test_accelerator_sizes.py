"""Configurations for accelerators, at full size by shape alone: nothing of it is computed, and no speed is known."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import phalanx as phx

IMAGES = 64
MNIST = {"width": 256, "layers": 8, "heads": 8}
WIDE = {"width": 1024, "layers": 24, "heads": 16}


def step_by_shape(sizes, mesh, images=IMAGES):
    """The training step, and shapes of its arguments, laid out as the weights say."""
    network = phx.networks.image_transformer(28, 28, dtype=jnp.bfloat16, **sizes)
    shapes = jax.eval_shape(network.init, jax.random.key(0))
    weights = jax.tree.map(
        lambda leaf, spec: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec)),
        shapes, network.specs,
    )  # fmt: skip
    over_data = NamedSharding(mesh, PartitionSpec("data"))
    pixels = jax.ShapeDtypeStruct((images * mesh.shape["data"], 784), jnp.uint8, sharding=over_data)
    optimizer = optax.adam(1e-3)

    def step(weights, state, pixels):
        def loss(weights):
            return -jnp.mean(phx.networks.levels(network.apply(weights, pixels)).log_prob(pixels))

        value, gradient = jax.value_and_grad(loss)(weights)
        change, state = optimizer.update(gradient, state, weights)
        return optax.apply_updates(weights, change), state, value

    return step, (weights, jax.eval_shape(optimizer.init, weights), pixels)


@pytest.mark.slow
@pytest.mark.parametrize("sizes, millions", [(MNIST, 6.5), (WIDE, 303)], ids=["mnist", "wide"])
def test_the_whole_step_is_lowered(sizes, millions, mesh_of):
    step, arguments = step_by_shape(sizes, mesh_of(1, 4, 2))
    weights = sum(leaf.size for leaf in jax.tree.leaves(arguments[0]))
    assert abs(weights / 1e6 - millions) < 0.01 * millions
    text = jax.jit(step).lower(*arguments).as_text()
    products = re.findall(r"stablehlo\.dot_general .*-> tensor<[\dx]*x(\w+)>", text)
    assert products.count("bf16") >= 3 * 4 * sizes["layers"]  # four matrices a layer, forth and twice back
    assert not [p for p in products if p not in ("bf16", "f32")]
    assert {leaf.dtype for leaf in jax.tree.leaves(arguments[0])} == {jnp.dtype("float32")}


@pytest.mark.slow
def test_a_layer_of_full_width_is_compiled_for_a_mesh(mesh_of):
    """Devices hold their part of the large weights, and what they say to one another is sums alone."""
    step, arguments = step_by_shape({**WIDE, "layers": 1}, mesh_of(1, 2, 4), images=1)
    compiled = jax.jit(step).lower(*arguments).compile()
    held = sum(leaf.sharding.shard_shape(leaf.shape) != leaf.shape for leaf in jax.tree.leaves(arguments[0]))
    assert held == 4
    hlo = compiled.as_text()
    assert hlo is not None and re.search(r" all-reduce(-start)?\(", hlo)
    gathered = re.findall(r"= (\w+)\[([\d,]*)\].* all-gather(?:-start)?\(", hlo)
    assert all(jnp.prod(jnp.array([int(n) for n in dims.split(",")])) < 1024 * 1024 for _, dims in gathered)
