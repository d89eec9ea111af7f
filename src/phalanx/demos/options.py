"""Options of the demos, and the meshes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jax
from jax.sharding import Mesh

from phalanx.mesh.devices import make_mesh


@dataclass(frozen=True)
class DemoOptions:
    """Options of a demo; None leaves a size to the demo.

    Attributes:
        data: folder of the data files.
        chains, warmup, draws: sizes of the run.
        samples: draws over all chains, for the demo that counts these.
        members: networks of an ensemble.
        epochs: epochs of training.
        data_shards: devices that the data are sharded over.
        seed: seed of the run.
        precision: precision of matrix products.
        out: folder to write to.
        binary: True samples black or white pixels.
    """

    data: Path | None = None
    chains: int | None = None
    warmup: int | None = None
    draws: int | None = None
    samples: int | None = None
    members: int | None = None
    epochs: int | None = None
    data_shards: int | None = None
    seed: int = 0
    precision: str = "float32"
    out: Path = Path("out")
    binary: bool = False


@dataclass(frozen=True)
class Sizes:
    """Sizes of a run: chains, and warm-up iterations and draws of each."""

    chains: int
    warmup: int
    draws: int


def choose(options: DemoOptions, default: Sizes) -> Sizes:
    """Return the user's sizes, and the demo's for those that the user left out."""
    return Sizes(
        default.chains if options.chains is None else options.chains,
        default.warmup if options.warmup is None else options.warmup,
        default.draws if options.draws is None else options.draws,
    )


def mesh_with(data_shards: int) -> Mesh:
    """Return a mesh of all devices, `data_shards` of them along `data` and the rest along `chain`."""
    count = jax.device_count()
    if data_shards < 1 or count % data_shards:
        divisors = ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)
        raise ValueError(
            f"--data-shards {data_shards}: there are {count} devices, and the data can be sharded over {divisors} of "
            f"them."
        )
    return make_mesh(data=data_shards)


def data_and_model(options: DemoOptions, batch: int) -> Mesh:
    """Return a mesh of all devices, `--data-shards` of them along `data` and the rest along `model`."""
    count = jax.device_count()
    shards = count if options.data_shards is None else options.data_shards
    if shards < 1 or count % shards or batch % shards:
        raise ValueError(
            f"--data-shards {shards}: there are {count} devices and batches of {batch} images; the number of "
            f"shards must divide both. Choose another one, such as --data-shards 1."
        )
    return make_mesh(chain=1, data=shards, model=count // shards)
