"""Drawing images of 28 x 28 pixels with a transformer: keys and values kept, against the whole image for every pixel.

Network, weights and keys are the same, hence the images. Without the cache only some evenly chosen positions are timed,
since each costs the same.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import side_by_side
from side_by_side import Times, Way

SIDE, IMAGES, POSITIONS = 28, 4, 8
SIZES = {"width": 64, "layers": 2, "heads": 2, "window": 28}


def both_ways(window: int | None) -> tuple[Way, Way]:
    """Return the ways with the cache and without."""
    import jax
    import jax.numpy as jnp

    from phalanx.networks.pixels import image_transformer, levels, pixel_sampler

    network = image_transformer(SIDE, SIDE, **{**SIZES, "window": window})
    weights, key = network.init(jax.random.key(0)), jax.random.key(1)
    sampler, blank = pixel_sampler(network, levels), jnp.zeros((IMAGES, SIDE * SIDE), jnp.uint8)

    @jax.jit
    def one(weights: Any, images: Any, position: Any) -> Any:
        outputs = network.apply(weights, images)[:, position]
        drawn = levels(outputs).sample(jax.random.fold_in(key, position))
        return images.at[:, position].set(drawn.astype(images.dtype))

    def cached() -> None:
        jax.block_until_ready(sampler(weights, key, blank, 0, 1.0))

    def uncached() -> None:
        images = blank
        for position in range(0, SIDE * SIDE, SIDE * SIDE // POSITIONS):
            images = one(weights, images, jnp.int32(position))
        jax.block_until_ready(images)

    return Way(cached, SIDE * SIDE * IMAGES), Way(uncached, POSITIONS * IMAGES)


def ways(options: argparse.Namespace) -> dict[str, Way]:
    found = {}
    for attention, window in (("28 pixels back", 28), ("all pixels", None)):
        found[f"cached, {attention}"], found[f"uncached, {attention}"] = both_ways(window)
    return found


def rows(times: Times) -> list[dict[str, Any]]:
    return [
        side_by_side.compare(
            f"a pixel of an image, attention to {attention}", f"cached, {attention}", f"uncached, {attention}", times,
            at_most=1 / 50,
        )
        for attention in ("28 pixels back", "all pixels")
    ]  # fmt: skip


def settings(options: argparse.Namespace) -> dict[str, Any]:
    return {**SIZES, "images": IMAGES, "pixels": SIDE * SIDE, "positions": POSITIONS, "rounds": options.rounds}


if __name__ == "__main__":
    parser = side_by_side.arguments(__doc__, rounds=5)
    side_by_side.run(str(Path(__file__)), parser, (1,), ways, rows, settings)
