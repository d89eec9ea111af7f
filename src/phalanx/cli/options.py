"""Options that several commands share, and the start of JAX's devices."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class MatrixPrecision(StrEnum):
    """Precisions of matrix products."""

    float32 = "float32"
    tensorfloat32 = "tensorfloat32"
    bfloat16 = "bfloat16"


Chains = Annotated[int | None, typer.Option("--chains", "--num-chains", help="Number of chains.")]
Warmup = Annotated[int | None, typer.Option("--warmup", "--num-warmup", help="Warm-up iterations per chain.")]
Devices = Annotated[int | None, typer.Option(help="CPU devices; one per core by default.")]
DataShards = Annotated[int | None, typer.Option(help="Devices that the rows of the data are sharded over.")]
Seed = Annotated[int, typer.Option(help="Seed of the run.")]
Out = Annotated[Path | None, typer.Option(help="Folder to write to; out/NAME by default.")]
Precision = Annotated[MatrixPrecision, typer.Option(help="Precision of matrix products.")]


def start_devices(devices: int | None) -> None:
    """Request CPU devices; call it before JAX starts."""
    from phalanx.mesh.devices import use_cpu_devices, use_every_core

    if devices is not None:
        use_cpu_devices(devices)
    else:
        use_every_core()
