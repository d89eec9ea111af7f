"""The position of greatest density, by gradient ascent: what one would do who wants no posterior."""

from __future__ import annotations

import jax
from jax import Array, lax, random
from jax.sharding import PartitionSpec

from phalanx.extras import require
from phalanx.mesh.placement import partition_spec
from phalanx.programs.target import Target


def most_probable(target: Target, seed: int, steps: int = 400, rate: float = 0.05) -> dict[str, Array]:
    """Values of the variables where Adam leads from a random position, its rate falling to zero; on all devices.

    Args:
        target: the model and its data.
        seed: of the position.
        steps: of the ascent.
        rate: of learning, to begin with.

    Returns:
        Values of the latent and deterministic variables.
    """
    optax = require("optax")
    adam = optax.adam(optax.cosine_decay_schedule(rate, steps))

    def on_device(key: Array, arrays: tuple[Array, ...]) -> dict[str, Array]:
        density = target.on_device(arrays)
        position = density.initial_position(random.wrap_key_data(key), 0.1)

        def step(carry, _):
            position, state = carry
            gradient = jax.tree.map(lambda g: -g, density.value_and_grad(position)[1])
            change, state = adam.update(gradient, state)
            return (optax.apply_updates(position, change), state), None

        (position, _), _ = lax.scan(step, (position, adam.init(position)), length=steps)
        return density.constrain(position)

    specs = {name: partition_spec(target.sharding(name)) for name in target.value_names()}
    in_specs = (PartitionSpec(), target.array_specs())
    run = jax.shard_map(on_device, mesh=target.mesh, in_specs=in_specs, out_specs=specs, check_vma=False)
    values = jax.jit(run)(random.key_data(random.key(seed)), target.place_arrays())
    return {name: target.trim(name, value) for name, value in values.items()}
