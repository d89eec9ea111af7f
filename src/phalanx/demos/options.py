"""Options of the demos, the meshes and data that follow from them, and the output that all demos share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import jax
import numpy as np
from jax.sharding import Mesh

import phalanx as phx
from phalanx.report import console, print_run, write_folder, write_result
from phalanx.report.plots.figures import save_pictures

if TYPE_CHECKING:
    from jaxtyping import Shaped, UInt8
    from matplotlib.figure import Figure


class Sizes(TypedDict):
    """Sizes of a run, as `phx.mcmc` takes them."""

    num_chains: int
    num_warmup: int
    num_samples: int


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

    def sizes(self, chains: int, warmup: int, draws: int) -> Sizes:
        """Return the sizes of a run: the user's, and the given ones for those that the user left out."""
        return {
            "num_chains": chains if self.chains is None else self.chains,
            "num_warmup": warmup if self.warmup is None else self.warmup,
            "num_samples": draws if self.draws is None else self.draws,
        }

    def mesh(self, default: int) -> Mesh:
        """Return a mesh of all devices, `--data-shards` of them along `data` and the rest along `chain`."""
        return mesh_with(default if self.data_shards is None else self.data_shards)

    def data_and_model(self, batch: int) -> Mesh:
        """Return a mesh of all devices, `--data-shards` of them along `data` and the rest along `model`."""
        count = jax.device_count()
        shards = count if self.data_shards is None else self.data_shards
        if shards < 1 or count % shards or batch % shards:
            raise ValueError(
                f"--data-shards {shards}: there are {count} devices and batches of {batch} images; the number of "
                f"shards must divide both. Choose another one, such as --data-shards 1."
            )
        return phx.make_mesh(chain=1, data=shards, model=count // shards)

    def images(self) -> phx.datasets.Classification:
        """Return MNIST, or scikit-learn's digits if MNIST is missing and the user named no folder."""
        try:
            return phx.datasets.mnist(self.data)
        except FileNotFoundError:
            if self.data is not None:
                raise
            return phx.datasets.digits()


LARGE = 10_000
"""Number of images from which on training has fewer epochs."""


def mesh_with(data_shards: int) -> Mesh:
    """Return a mesh of all devices, `data_shards` of them along `data` and the rest along `chain`."""
    count = jax.device_count()
    if data_shards < 1 or count % data_shards:
        divisors = ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)
        raise ValueError(
            f"--data-shards {data_shards}: there are {count} devices, and the data can be sharded over {divisors} of "
            f"them."
        )
    return phx.make_mesh(data=data_shards)


def as_bytes(images: Shaped[np.ndarray, "..."]) -> UInt8[np.ndarray, "..."]:
    """Return images with pixels as bytes from 0 to 255."""
    return images if images.dtype == np.uint8 else np.round(255 * images / images.max()).astype(np.uint8)


def introduce(title: str, mathematics: str, source: str) -> None:
    """Print the title, the model and the source of the data."""
    to = console()
    to.rule(f"[bold]{title}")
    to.print(mathematics, markup=False, highlight=False)
    to.print(f"data: {source}", markup=False, highlight=False)


def finish(
    posterior: phx.Posterior, headline: Mapping[str, Any], text: str, figures: Mapping[str, Figure], out: Path
) -> None:
    """Print the summary and the headline; write the report, the pictures and `result.json` to `out`."""
    print_run(posterior)
    console().print(f"\n{text}", style="bold", markup=False, highlight=False)
    _print_written(write_folder(posterior, out, headline=headline, figures=figures))


def save(figures: Mapping[str, Figure], result: Mapping[str, Any], out: Path) -> None:
    """Write pictures and `result.json` to `out`, and print their paths."""
    _print_written([*save_pictures(figures, out), write_result(result, out)])


def _print_written(files: Sequence[Path]) -> None:
    console().print(f"written: {', '.join(map(str, files))}", markup=False, highlight=False, soft_wrap=True)
