"""Deep ensembles of the standard CNN of MNIST, against plain Flax: 8 members, and the cost of Phalanx around one.

Plain Flax is one jitted update of an NNX module and its optimiser, called in a loop over batches, one network after the
other. Phalanx trains its 8 members with one device per core; a single member, and Flax, use one device with its
threads.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import side_by_side
from side_by_side import Times, Way

MEMBERS, BATCH = 8, 128


def batches(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Return images as bytes, and labels, of this many batches."""
    random, rows = np.random.default_rng(0), BATCH * options.steps
    if options.data is None:
        return random.integers(0, 256, (rows, 28, 28), np.uint8), random.integers(0, 10, rows).astype(np.int32)
    from phalanx.datasets import mnist

    data = mnist(options.data)
    return data.train_images[:rows], data.train_labels[:rows]


def plain_flax(images: np.ndarray, labels: np.ndarray, networks: int) -> Any:
    """Train networks one after the other, each by a loop over batches."""
    import jax
    import optax
    from flax import nnx

    from phalanx.demos.ensemble import make_cnn

    make, optimizer = make_cnn(28, 10), optax.sgd(0.05, momentum=0.9)
    graph = nnx.split(make(nnx.Rngs(0)), nnx.Param, ...)[0]
    images, labels = jax.device_put((images, labels))

    def loss(params, x, y):
        logits = nnx.merge(graph, params)(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def update(params, state, images, labels, rows):
        value, gradient = jax.value_and_grad(loss)(params, images[rows], labels[rows])
        change, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, change), state, value

    step = jax.jit(update, donate_argnums=(0, 1))
    states = []
    for member in range(networks):
        _, own, _ = nnx.split(make(nnx.Rngs(member)), nnx.Param, ...)
        states.append((own, optimizer.init(own)))

    def run() -> None:
        for member in range(networks):
            params, state = states[member]
            order = np.random.default_rng(member).permutation(len(labels)).reshape(-1, BATCH)
            values = []
            for rows in order:
                params, state, value = step(params, state, images, labels, rows)
                values.append(value)
            states[member] = jax.block_until_ready((params, state))
            np.mean([float(value) for value in values])

    return run


def phalanx_ensemble(images: np.ndarray, labels: np.ndarray, members: int) -> Any:
    import jax
    import optax

    import phalanx as phx
    from phalanx.demos.ensemble import make_cnn

    def loss(logits, y):
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    network = phx.ensembles.nnx_learner(make_cnn(28, 10), loss, optax.sgd(0.05, momentum=0.9))
    ensemble = phx.ensemble(network.init, network.update, members)
    images, labels = jax.device_put((images, labels))

    def run() -> None:
        for _ in ensemble.train((images, labels), batch_size=BATCH):
            pass

    return run


def ways(options: argparse.Namespace) -> dict[str, Way]:
    data = batches(options)
    if options.serve_on > 1:
        return {"Phalanx, 8 members": Way(phalanx_ensemble(*data, MEMBERS), MEMBERS * options.steps)}
    return {
        "plain Flax, 8 networks": Way(plain_flax(*data, MEMBERS), MEMBERS * options.steps),
        "Phalanx, 1 member": Way(phalanx_ensemble(*data, 1), options.steps),
        "plain Flax, 1 network": Way(plain_flax(*data, 1), options.steps),
    }


def rows(times: Times) -> list[dict[str, Any]]:
    eight = "a step of one of 8 members", "Phalanx, 8 members", "plain Flax, 8 networks"
    one = "a step of one network", "Phalanx, 1 member", "plain Flax, 1 network"
    return [
        side_by_side.compare(*eight, times, at_most=0.65), side_by_side.compare(*one, times, at_most=1.03)
    ]  # fmt: skip


def settings(options: argparse.Namespace) -> dict[str, Any]:
    network = "conv 32, conv 64, dense 256, 10"
    return {"network": network, "batch": BATCH, "steps": options.steps, "rounds": options.rounds}


if __name__ == "__main__":
    parser = side_by_side.arguments(__doc__, rounds=7)
    parser.add_argument("--data", type=Path, help="folder of MNIST; random images without it")
    parser.add_argument("--steps", type=int, default=20, help="steps of each network in a turn")
    devices = (1, max(2, side_by_side.machine()["cores"]))
    side_by_side.run(str(Path(__file__)), parser, devices, ways, rows, settings)
