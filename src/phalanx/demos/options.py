"""What the user of a demo may choose, and the mesh that follows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jax
from jax.sharding import Mesh

from phalanx.mesh.devices import make_mesh


@dataclass(frozen=True)
class Options:
    """Sizes and places of a demo; None leaves a size to the demo.

    Attributes:
        data: folder of the data files.
        chains, warmup, draws: sizes of the run.
        samples: draws of all chains together, where a demo counts those.
        members: networks of an ensemble.
        epochs: of training.
        binary: whether pixels are drawn to be black or white.
        data_shards: devices the data are spread over.
        seed: of the run.
        precision: of matrix products.
        out: folder to write to.
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
    """The sizes of a run, all chosen."""

    chains: int
    warmup: int
    draws: int


def choose(options: Options, default: Sizes) -> Sizes:
    """The user's sizes, and the demo's where the user has none."""
    return Sizes(
        default.chains if options.chains is None else options.chains,
        default.warmup if options.warmup is None else options.warmup,
        default.draws if options.draws is None else options.draws,
    )


def mesh_with(data_shards: int) -> Mesh:
    """All devices, `data_shards` of them along `data` and what is left along `chain`."""
    count = jax.device_count()
    if data_shards < 1 or count % data_shards:
        divisors = ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)
        raise ValueError(
            f"--data-shards {data_shards}: there are {count} devices, and the data can be spread over {divisors} of "
            f"them."
        )
    return make_mesh(data=data_shards)


def data_and_model(options: Options, batch: int) -> Mesh:
    """All devices: `--data-shards` of them along `data`, what is left along `model`."""
    count = jax.device_count()
    shards = count if options.data_shards is None else options.data_shards
    if shards < 1 or count % shards or batch % shards:
        raise ValueError(
            f"--data-shards {shards}: there are {count} devices and batches of {batch} images, which must both divide "
            f"over as many shards. Take another number, such as --data-shards 1."
        )
    return make_mesh(chain=1, data=shards, model=count // shards)
