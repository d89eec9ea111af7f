"""Command `phalanx resume PATH`, which continues a run of `phalanx sample`."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from phalanx.cli.data.request import say
from phalanx.cli.sample import sample
from phalanx.cli.saved import read_command


def resume(
    path: Annotated[
        Path, typer.Argument(help="A folder of phalanx sample --checkpoint, or the checkpoint or store in it.")
    ],
) -> Any:
    """Continue a run of `phalanx sample --checkpoint` by the same command, which runs the model file that it names."""
    folder, arguments = read_command(path)
    os.chdir(folder)
    say([f"phalanx sample {shlex.join(arguments)}"])
    sys.argv = [sys.argv[0], "sample", *arguments]
    again = typer.Typer(add_completion=False)
    again.command()(sample)
    return again(arguments, standalone_mode=False)
