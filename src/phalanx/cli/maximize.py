"""Command `phalanx maximize FILE.py:NAME`, which finds the most probable values of a user's model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from phalanx.cli import options
from phalanx.cli.data.data_file import read_values
from phalanx.cli.data.request import Request, say
from phalanx.cli.interruption import explain_interrupt
from phalanx.cli.user_model import load, naming_lines_of, split_reference
from phalanx.report import write_result
from phalanx.variational.maximum import maximize as find_maximum


def maximize(
    model: options.ModelPlace,
    data: options.DataFiles = None,
    init: Annotated[Path | None, typer.Option(help="A .json file of values by variable to begin from.")] = None,
    devices: options.Devices = None,
    data_shards: options.DataShards = None,
    seed: options.Seed = 0,
    out: options.Out = None,
    precision: options.Precision = options.MatrixPrecision.float32,
    quiet: options.Quiet = False,
) -> None:
    """Find the most probable values of your model's variables: print them, and write them to a folder."""
    path, name = split_reference(model)
    options.start_devices(devices)
    program = load(model)
    begins = None if init is None else read_values(init, "--init")
    request = Request.of(program, data or [], data_shards)
    folder = options.folder_for(out, name)
    request.introduce(model, quiet)
    with naming_lines_of(path), explain_interrupt("no maximum was found, so no file was written."):
        maximum = find_maximum(
            program, request.arguments, mesh=request.mesh, init=begins, seed=seed, matmul_precision=precision.value
        )
    values = {name: np.asarray(value).tolist() for name, value in maximum.values.items()}
    file = write_result({"values": values, "log_density": maximum.log_density, "at_bounds": maximum.at_bounds}, folder)
    if quiet:
        return
    say([f"{name}: {np.array2string(np.asarray(value), threshold=20)}" for name, value in maximum.values.items()])
    say([f"log density: {maximum.log_density:.6g}", *([maximum.unchecked] if maximum.unchecked else [])])
    if maximum.at_bounds:
        say([f"at the edge of their support: {', '.join(maximum.at_bounds)}"])
    say([f"written: {file}"])
