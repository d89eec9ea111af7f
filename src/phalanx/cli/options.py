"""Options that several commands share, and the start of JAX's devices."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from phalanx.diagnostics import Verdict


class MatrixPrecision(StrEnum):
    """Precisions of matrix products."""

    float32 = "float32"
    tensorfloat32 = "tensorfloat32"
    bfloat16 = "bfloat16"


class Missing(StrEnum):
    """Treatments of missing entries, besides their refusal."""

    impute = "impute"


DataFiles = Annotated[
    list[Path] | None, typer.Option("--data", help="The model's arguments: an .npz, .csv or .json file; repeatable.")
]
ModelPlace = Annotated[str, typer.Argument(help="The model: a function in a Python file.", metavar="FILE.py:NAME")]
MissingEntries = Annotated[Missing | None, typer.Option(help="Make missing entries of observed variables latent.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print errors only.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit with status 3 if the verdict is 'not good', with 0 if it is 'usable'.")
]
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


def folder_for(out: Path | None, name: str) -> Path:
    """Return the folder to write to, and make it: an error comes before a long run."""
    folder = Path("out") / name if out is None else out
    folder.mkdir(parents=True, exist_ok=True)
    return folder


BAD = 3
"""Exit status with `--strict` of a verdict of the grade "not good"."""


def end(verdict: Verdict, strict: bool) -> None:
    """End the command with status 3 if `strict` is True and the verdict's grade is "not good", not if "usable"."""
    if strict and verdict.grade == "not good":
        raise typer.Exit(BAD)
