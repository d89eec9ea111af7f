"""The workload of two benchmarks: regression of MNIST's 60,000 labels on 784 pixels, and Phalanx's HMC on it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROWS, PIXELS, CLASSES = 60_000, 784, 10
STEP_SIZE = 1e-3


def add_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The size of a turn, and the data."""
    parser.add_argument("--data", type=Path, help="folder with MNIST's files; random numbers of their shape without it")
    parser.add_argument("--draws", type=int, default=2, help="draws in a turn")
    parser.add_argument("--leapfrogs", type=int, default=10, help="leapfrogs in a draw")
    return parser


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """What was run."""
    return {
        "data": f"{ROWS} x {PIXELS} float32, {'MNIST' if options.data else 'random numbers of the shape of MNIST'}",
        "draws": options.draws,
        "leapfrogs": options.leapfrogs,
        "step_size": STEP_SIZE,
        "rounds": options.rounds,
    }


def load(folder: Path | None) -> dict[str, np.ndarray]:
    """Pixels from 0 to 1, and labels."""
    if folder is None:
        random = np.random.default_rng(0)
        x = random.random((ROWS, PIXELS), np.float32)
        return {"x": x, "y": random.integers(0, CLASSES, ROWS).astype(np.int32)}
    from phalanx.datasets.mnist import mnist

    data = mnist(folder)
    x = data.train_images.reshape(len(data.train_images), -1).astype(np.float32) / 255
    return {"x": x, "y": data.train_labels}


def model(x, y):
    import numpyro.distributions as dist

    import phalanx as phx

    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([PIXELS, CLASSES]).to_event(2))
    b = phx.sample("b", dist.Normal(0.0, 1.0).expand([CLASSES]).to_event(1))
    phx.sample("y", dist.Categorical(logits=x @ w + b), obs=y)


def phalanx_block(
    host: Mapping[str, np.ndarray], options: argparse.Namespace, *, num_chains: int = 1, **sizes: int
) -> Callable[[], None]:
    """Phalanx's compiled block: so many draws, from where the last block ended."""
    import jax

    import phalanx as phx

    mesh = phx.make_mesh(**sizes)
    kernel = phx.hmc(num_steps=options.leapfrogs, step_size=STEP_SIZE)
    sampler = phx.compile(
        model,
        phx.shard(host, mesh),
        kernel=kernel,
        num_chains=num_chains,
        num_samples=options.draws,
        mesh=mesh,
        progress=False,
    )
    from phalanx.run.executables import order_of

    blocks, seed = sampler.executables, np.uint32(0)
    underway = blocks.begin(seed, sampler.arrays).underway
    everywhere = jax.NamedSharding(mesh, jax.P())
    tuning = jax.device_put(kernel.tuning, everywhere)
    order = order_of(np.full(num_chains, options.draws), ticks=options.draws)

    def run() -> None:
        nonlocal underway
        advanced = jax.block_until_ready(blocks.advance(seed, sampler.arrays, tuning, order, underway))
        underway = advanced.underway

    return run
