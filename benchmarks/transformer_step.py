"""A training step of an image transformer through phx.fit against the same network and loss in Flax and optax."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import side_by_side
from side_by_side import Measured, Times, Way

SIDE, BATCH = 28, 8
SIZES = {"width": 64, "layers": 2, "heads": 2, "window": 28}


def images(steps: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, size=(steps * BATCH, SIDE * SIDE)).astype(np.uint8)


def plain_flax(steps: int) -> Any:
    import jax
    import optax
    from flax import nnx

    from phalanx.networks.transformer import ImageTransformer

    graph, weights = nnx.split(ImageTransformer(SIDE, SIDE, **SIZES, rngs=nnx.Rngs(0)), nnx.Param)
    optimizer = optax.adam(1e-3)

    @jax.jit
    def step(weights: Any, state: Any, pixels: Any) -> Any:
        def loss(weights: Any) -> Any:
            logits = nnx.merge(graph, weights)(pixels)
            return optax.softmax_cross_entropy_with_integer_labels(logits, pixels.astype("int32")).mean()

        value, gradient = jax.value_and_grad(loss)(weights)
        change, state = optimizer.update(gradient, state, weights)
        return optax.apply_updates(weights, change), state, value

    data, begun = images(steps), (weights, optimizer.init(weights))

    def run() -> None:
        weights, state = begun
        order, values = np.random.default_rng(0).permutation(len(data)).reshape(steps, BATCH), []
        for rows in order:
            weights, state, value = step(weights, state, data[rows])
            values.append(value)
        jax.block_until_ready((weights, values))

    return run


def through_fit(steps: int) -> Any:
    import optax

    import phalanx as phx

    network = phx.networks.image_transformer(SIDE, SIDE, **SIZES)
    optimizer = optax.adam(1e-3)

    def model(pixels: Any) -> None:
        outputs = phx.network("transformer", network)(pixels)
        phx.sample("pixels", phx.networks.levels(outputs).to_event(1), obs=pixels)

    data = images(steps)

    def run() -> Measured:
        batches = phx.batches({"pixels": data}, BATCH)
        learned = phx.fit(model, None, batches, optimizer=optimizer, num_steps=steps, progress=False)
        return Measured(learned.timing.sampling, steps)  # compiling apart: the other way compiles in its first turn

    return run


def ways(options: argparse.Namespace) -> dict[str, Way]:
    return {
        "Phalanx": Way(through_fit(options.steps), options.steps),
        "Flax and optax": Way(plain_flax(options.steps), options.steps),
    }


def rows(times: Times) -> list[dict[str, Any]]:
    return [side_by_side.compare("a training step of a transformer", "Phalanx", "Flax and optax", times, at_most=1.03)]


def settings(options: argparse.Namespace) -> dict[str, Any]:
    return {**SIZES, "batch": BATCH, "pixels": SIDE * SIDE, "steps": options.steps, "rounds": options.rounds}


if __name__ == "__main__":
    parser = side_by_side.arguments(__doc__, rounds=5)
    parser.add_argument("--steps", type=int, default=30, help="steps of a turn")
    side_by_side.run(str(Path(__file__)), parser, (1,), ways, rows, settings)
