"""Bytes that devices send in a training step, read off the compiled program, on meshes of 1, 2, 4 and 8 devices.

A gradient of as many bytes as a device has weights is summed over `data`, whatever the batch; activations are summed
over `model`. The sum of both is the ideal. An all-reduce of b bytes over n devices sends 2 (n - 1) / n b from each, in
a ring; predicted times follow from published link speeds and are not measured.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import side_by_side
from collectives import by_kind, collectives

BATCH = 96
MESHES = ((1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (1, 4), (1, 8), (2, 4))
"""Devices along `data` and along `model`."""

ARITHMETIC = 0.4 * 989e12
"""Operations per second of a device: 40% of an H100's dense bfloat16, by its data sheet."""

LINKS = {8: ("NVLink 4 within a node", 450e9), 64: ("InfiniBand NDR", 50e9), 256: ("InfiniBand NDR", 50e9)}
"""Of so many devices, what joins them, and bytes per second that one sends; from the vendors' data sheets."""


def vae() -> Any:
    """Return the steps of the autoencoder of `phalanx demo vae`, a state, a batch, and bytes of a row's activations."""
    import optax

    import phalanx as phx
    from phalanx.demos.vae import VAE
    from phalanx.variational.guides.guide_and_model import for_steps
    from phalanx.variational.methods.step import FitState, Steps

    model, optimizer, objective = VAE(784), optax.with_extra_args_support(optax.adam(1e-3)), phx.guides.elbo(path=False)
    rows = phx.batches({"x": np.zeros((2 * BATCH, 784), np.uint8)}, BATCH)
    fit = phx.fit(
        model.model, model.encoder, rows, num_particles=1, num_steps=1, objective=objective, optimizer=optimizer,
        training=phx.training(every=1), progress=False,
    )  # fmt: skip
    state = FitState.of(fit.free, optimizer.init(fit.free), averages=False)
    # activations that leave layers with sharded inputs; gradients of those that enter layers with sharded outputs
    outputs, inputs = 3 * 48 + 6 * 784 + 4 * 2 * 48, 48 + 4 * 48 + 2 * 48
    return Steps(for_steps(fit.pair), objective, optimizer, 1), state, fit.arrays, 4 * (outputs + inputs)


MODELS = {"VAE": vae}


def on_mesh(steps: Any, state: Any, arrays: Any, data: int, model: int) -> dict[str, Any]:
    """Return the row of a mesh: bytes that a step sends, and the ideal."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    import phalanx as phx
    from phalanx.mesh.compatibility.jax_internals import RARELY
    from phalanx.placements import over_mesh
    from phalanx.variational.methods.step import StepBounds, StepOrder, laid_out

    mesh = phx.make_mesh(chain=1, data=data, model=model, devices=jax.devices()[: data * model])
    pair = replace(steps.pair, problem=replace(steps.pair.problem, mesh=mesh))
    steps, layout = replace(steps, pair=pair), laid_out(pair, steps.optimizer, state)
    everywhere = NamedSharding(mesh, PartitionSpec())

    def like(leaf: Any, sharding: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    rows = tuple(like(array, NamedSharding(mesh, PartitionSpec("data"))) for array in arrays)
    order = StepOrder(np.int32(1), np.float32(1.0), np.bool_(False))
    given = jax.tree.map(like, state, layout), np.uint32(0), rows, order
    results = layout, StepBounds(everywhere, everywhere)
    step = jax.jit(over_mesh(steps.single, mesh, given, lambda _: results), out_shardings=results)
    program = step.lower(*given).compile(RARELY).as_text()
    found = by_kind(collectives(program, data * model), lambda one: one.size)
    shapes = [(leaf.size, math.prod(leaf.sharding.shard_shape(leaf.shape))) for leaf in jax.tree.leaves(given[0].free)]
    mine = 4 * sum(part for _, part in shapes)
    return {
        "data": data,
        "model": model,
        "weights_on_a_device": mine,
        "sent": found,
        "sent_in_all": sum(found.values()),
    }


def predicted(gradient: int, flops: float) -> list[dict[str, Any]]:
    """Return the time of summing a gradient in a ring, and the rows of a device whose arithmetic needs that time."""
    found = []
    for n, (name, rate) in LINKS.items():
        seconds = 2 * (n - 1) / n * gradient / rate
        rows = math.ceil(seconds * ARITHMETIC / flops)
        found.append({"devices": n, "links": name, "milliseconds": round(1e3 * seconds, 4), "rows_as_long": rows})
    return found


def table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the table for README.md."""
    lines = [
        [str(r["data"]), str(r["model"]), f"{r['weights_on_a_device']:,}", f"{r['sent_in_all']:,}", f"{r['ideal']:,}"]
        for r in rows
    ]
    return {"columns": ["data", "model", "bytes of weights", "bytes summed in a step", "ideal"], "lines": lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=side_by_side.RESULTS, help="folder for the JSON file")
    options = parser.parse_args()
    import phalanx as phx
    from phalanx.variational.monitoring.watching import flops_of_a_step

    phx.use_cpu_devices(8)
    watch, rows, predictions = side_by_side.Watch(), [], {}
    for name, make in MODELS.items():
        *made, activations = make()
        found = [{"model_of": name, **on_mesh(*made, *mesh)} for mesh in MESHES]
        whole = found[0]["weights_on_a_device"]
        for row in found:
            of_data = row["weights_on_a_device"] if row["data"] > 1 else 0
            of_model = BATCH // row["data"] * activations if row["model"] > 1 else 0
            row["ideal"] = of_data + of_model
            row["ratio"] = round(row["sent_in_all"] / row["ideal"], 3) if row["ideal"] else None
        rows += found
        steps, state, arrays = made
        predictions[name] = predicted(whole, flops_of_a_step(steps, state, np.uint32(0), arrays) / BATCH)
        print(json.dumps(predictions[name]))
    more = {"meshes": rows, "predicted": predictions, "table": table(rows)}
    side_by_side.write("communication", [], {"batch": BATCH}, watch, options.results, **more)


if __name__ == "__main__":
    main()
