"""Workload of two benchmarks: regression of MNIST's 60,000 labels on 784 pixels, and Phalanx's HMC on it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hmc_blocks
import numpy as np

ROWS, PIXELS, CLASSES = 60_000, 784, 10
STEP_SIZE = 1e-3


def add_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the options for the size of a turn and the data."""
    parser.add_argument("--data", type=Path, help="folder with MNIST's files; random numbers of their shape without it")
    return hmc_blocks.add_sizes(parser, leapfrogs=10)


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the run."""
    return {
        "data": f"{ROWS} x {PIXELS}, {'MNIST' if options.data else 'random numbers of the shape of MNIST'}",
        "draws": options.draws,
        "leapfrogs": options.leapfrogs,
        "step_size": STEP_SIZE,
        "rounds": options.rounds,
    }


def load(folder: Path | None) -> dict[str, np.ndarray]:
    """Return pixels from 0 to 255, and labels."""
    if folder is None:
        random = np.random.default_rng(0)
        x = random.integers(0, 256, (ROWS, PIXELS), np.uint8)
        return {"x": x, "y": random.integers(0, CLASSES, ROWS).astype(np.int32)}
    from phalanx.datasets.mnist import mnist

    data = mnist(folder)
    return {"x": data.train_images.reshape(len(data.train_images), -1), "y": data.train_labels}


def widened(data: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return pixels from 0 to 1 in float32, as users pass them to other systems."""
    return {**data, "x": data["x"].astype(np.float32) / 255}


def model(x, y):
    """Observe labels given pixels as stored: bytes, widened block by block."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    import phalanx as phx

    w = phx.sample("w", dist.Normal(0.0, 1.0).expand([PIXELS, CLASSES]).to_event(2))
    b = phx.sample("b", dist.Normal(0.0, 1.0).expand([CLASSES]).to_event(1))
    per_byte = w / 255  # weights are scaled once, and not the pixels

    def rows(x):
        return dist.Categorical(logits=x.astype(jnp.float32) @ per_byte + b)

    phx.sample("y", phx.blocked(rows, x), obs=y)


def phalanx_block(bytes_: Mapping[str, np.ndarray], options: argparse.Namespace, **sizes: int) -> Callable[[], None]:
    """Return Phalanx's compiled block."""
    return hmc_blocks.phalanx_block(model, bytes_, options, STEP_SIZE, **sizes)
