"""Bytes that the devices of a mesh send in a training step of an image transformer, read from its HLO.

Bytes per step and device, against the least possible: gradients are added over `data`, and over `model` the outputs of
each block's heads and hidden units, forward and backward. A ring sends 2 (n - 1) / n of an array that n devices add up.
The link speeds that vendors publish predict the waiting time of a step of the configurations for accelerators, without
overlap; no accelerator has run it.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from collectives import by_kind, collectives

FOLDER = Path(__file__).parent / "results"
SIZES = {"width": 64, "layers": 2, "heads": 8, "window": 28}
SIDE, BATCH = 28, 16
MESHES = [(1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 4), (8, 1), (4, 2), (2, 4), (1, 8)]
"""Devices along data and along model."""

NEAR, FAR = "H100, NVLink within 8", "H100, 400 Gb/s InfiniBand between"
LINKS = {NEAR: 450e9, FAR: 50e9}
"""Bytes per second that one device sends, from the vendors' data sheets."""

LARGE = {"width": 1024, "layers": 24, "heads": 16, "batch": 64, "positions": 784, "peak": 989e12, "utilisation": 0.4}
"""The configuration for accelerators: images of a device in a step; weights float32, what is computed bfloat16."""


def step_hlo(data: int, model: int) -> tuple[str, int]:
    """Return the compiled training step and the number of weights."""
    import jax
    import optax
    from jax.sharding import NamedSharding, PartitionSpec

    import phalanx as phx
    from phalanx.placements import add_together, over_mesh

    mesh = phx.make_mesh(chain=1, data=data, model=model, devices=jax.devices()[: data * model])
    network = phx.networks.image_transformer(SIDE, SIDE, **SIZES)
    optimizer = optax.sgd(1e-3)
    shapes = jax.eval_shape(network.init, jax.random.key(0))
    placed = jax.tree.map(
        lambda s, spec: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=NamedSharding(mesh, spec)),
        shapes,
        network.specs,
    )
    pixels = jax.ShapeDtypeStruct(
        (BATCH, SIDE * SIDE), "uint8", sharding=NamedSharding(mesh, PartitionSpec("data"))
    )  # fmt: skip

    def step(weights: Any, pixels: Any) -> Any:
        def loss(weights: Any) -> Any:
            return -phx.networks.levels(network.apply(weights, pixels)).log_prob(pixels).mean()

        gradient = add_together(jax.grad(loss)(weights), weights)
        change, _ = optimizer.update(gradient, optimizer.init(weights))
        return optax.apply_updates(weights, change)

    kept = jax.tree.map(lambda s: s.sharding, placed)
    step = over_mesh(step, mesh, (placed, pixels), lambda _: kept)
    hlo = jax.jit(step, out_shardings=kept).lower(placed, pixels).compile().as_text()
    return hlo, sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def ideal(data: int, model: int, weights: int) -> int:
    """Return the least bytes: gradients of a device's weights over data, and activations of blocks over model."""
    width, layers = SIZES["width"], SIZES["layers"]
    divided = layers * 12 * width**2
    held = divided / model + weights - divided
    gradients = 4 * held * 2 * (data - 1) / data
    shown = 4 * BATCH / data * SIDE**2 * width
    activations = 4 * layers * shown * 2 * (model - 1) / model  # two sums a block forth, and two back
    return int(gradients + activations)


def seconds_to_add_up(size: float, devices: int, model: int) -> float:
    """Return the seconds to add up `size` bytes over data: within machines of 8, between machines, and back."""
    within, machines = max(1, 8 // model), devices // 8
    return 2 * size * (within - 1) / within / LINKS[NEAR] + 2 * size / within * (machines - 1) / machines / LINKS[FAR]


def predicted() -> list[dict[str, Any]]:
    """Return rows of predicted times of a step of the large configuration, by devices: data only, or 8 along model."""
    width, layers, positions = LARGE["width"], LARGE["layers"], LARGE["positions"]
    weights, tokens = layers * 12 * width**2, LARGE["batch"] * positions
    computing = 6 * weights * tokens / (LARGE["peak"] * LARGE["utilisation"])
    rows = []
    for devices in (8, 64, 256):
        for model in (1, 8):
            data = devices // model
            gradients = 4 * weights / model * 2 * (data - 1) / data
            activations = 4 * layers * 2 * tokens * model * width * 2 * (model - 1) / model
            waiting = activations / LINKS[NEAR] + seconds_to_add_up(4 * weights / model, devices, model)
            rows.append(
                {
                    "devices": devices, "model": model, "computing_ms": round(1e3 * computing, 1),
                    "gradients_MB": round(gradients / 1e6), "activations_MB": round(activations / 1e6),
                    "waiting_ms": round(1e3 * waiting, 1),
                    "efficiency_without_overlap": round(computing / (computing + waiting), 2),
                }
            )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=FOLDER)
    options = parser.parse_args()
    import phalanx as phx

    phx.use_cpu_devices(8)
    rows = []
    for data, model in MESHES:
        hlo, weights = step_hlo(data, model)
        by_operation = by_kind(collectives(hlo, data * model), lambda one: one.sent)
        must, total = ideal(data, model, weights), sum(by_operation.values())
        rows.append({"data": data, "model": model, "bytes": total, "ideal": must, "by_operation": by_operation})
        print(json.dumps(rows[-1]), flush=True)
    large = predicted()
    for row in large:
        print(json.dumps(row))
    record = {
        "name": "transformer_communication", "sizes": SIZES, "batch": BATCH, "weights": weights, "steps": rows,
        "large": LARGE,
        "links": LINKS, "predicted_not_measured": large, "table": table(rows, large),
    }  # fmt: skip
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "transformer_communication.json").write_text(json.dumps(record, indent=1) + "\n")


def table(rows: list[dict[str, Any]], large: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one table of counted bytes, and of predictions for the large configuration."""
    columns = ["mesh", "sent by a device in a step", "ideal", "predicted efficiency, nothing overlapped"]
    counted = [
        [f"data {r['data']}, model {r['model']}", f"{r['bytes'] / 1e6:.2f} MB", f"{r['ideal'] / 1e6:.2f} MB", ""]
        for r in rows
    ]
    predictions = [
        [
            f"{r['devices']} accelerators, model {r['model']}: wide configuration, not measured", "",
            f"{r['gradients_MB'] + r['activations_MB']:,} MB", f"{r['efficiency_without_overlap']}",
        ]
        for r in large
    ]  # fmt: skip
    return {"columns": columns, "lines": counted + predictions}


if __name__ == "__main__":
    main()
