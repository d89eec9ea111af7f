"""`phalanx demo NAME`: run a headline workload."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.options import (
    Chains,
    DataShards,
    Devices,
    MatrixPrecision,
    Out,
    Precision,
    Seed,
    Warmup,
    start_devices,
)
from phalanx.demos.options import Options


class Demo(StrEnum):
    """The demos there are."""

    digits = "digits"
    mnist = "mnist"
    chains = "chains"
    covertype = "covertype"
    mixture = "mixture"
    movielens = "movielens"


def demo(
    name: Annotated[Demo, typer.Argument(help="Which demo to run.")],
    data: Annotated[Path | None, typer.Option(help="Folder of the data files.")] = None,
    chains: Chains = None,
    warmup: Warmup = None,
    draws: Annotated[int | None, typer.Option(help="Draws per chain.")] = None,
    samples: Annotated[
        float | None, typer.Option(help="Draws of all chains together, such as 1e9; mixture only.")
    ] = None,
    devices: Devices = None,
    data_shards: DataShards = None,
    seed: Seed = 0,
    out: Out = None,
    precision: Precision = MatrixPrecision.float32,
) -> None:
    """Run a headline workload: prints the model, progress, summary and figures; writes a report and pictures."""
    if samples is not None and name is not Demo.mixture:
        raise typer.BadParameter(
            f"the demo {name.value} counts draws of each chain: give --draws.", param_hint="--samples"
        )
    start_devices(devices)
    folder = out or Path("out") / name.value
    whole = None if samples is None else int(samples)
    options = Options(data, chains, warmup, draws, whole, data_shards, seed, precision.value, folder)
    import_module(f"phalanx.demos.{name.value}").main(options)
