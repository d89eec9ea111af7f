"""The command `phalanx`: thin commands over public functions."""

from __future__ import annotations

import sys
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated

try:
    import typer
    from rich.console import Console
    from rich.table import Table
except ModuleNotFoundError as missing:
    sys.exit(f"phalanx: error: {missing.name} is needed here and is not installed: pip install 'phalanx[cli]'")

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Probabilistic programming for many chains.")


class Demo(StrEnum):
    """The demos there are."""

    digits = "digits"
    mnist = "mnist"
    chains = "chains"


class Precision(StrEnum):
    """Precisions of matrix products."""

    float32 = "float32"
    tensorfloat32 = "tensorfloat32"
    bfloat16 = "bfloat16"


@app.command()
def demo(
    name: Annotated[Demo, typer.Argument(help="Which demo to run.")],
    data: Annotated[Path | None, typer.Option(help="Folder of the data files.")] = None,
    chains: Annotated[int | None, typer.Option(help="Chains in all.")] = None,
    warmup: Annotated[int | None, typer.Option(help="Warm-up iterations per chain.")] = None,
    draws: Annotated[int | None, typer.Option(help="Draws per chain.")] = None,
    devices: Annotated[int | None, typer.Option(help="CPU devices; one per core by default.")] = None,
    data_shards: Annotated[int | None, typer.Option(help="Devices the data are spread over.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the run.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder to write to; out/NAME by default.")] = None,
    precision: Annotated[Precision, typer.Option(help="Precision of matrix products.")] = Precision.float32,
) -> None:
    """Run a headline workload: prints the model, progress, summary and figures; writes a report and pictures."""
    _start(devices)
    options = import_module("phalanx.demos.options").Options(
        data, chains, warmup, draws, data_shards, seed, precision.value, out or Path("out") / name.value
    )
    import_module(f"phalanx.demos.{name.value}").main(options)


@app.command()
def info(devices: Annotated[int | None, typer.Option(help="CPU devices; one per core by default.")] = None) -> None:
    """Show devices, the mesh a run of four chains would use, versions, and where compiled programs are kept."""
    _start(devices)
    import jax

    from phalanx.mesh.devices import count_cores, default_mesh
    from phalanx.run.compilation import cache_folder
    from phalanx.run.describe import versions

    table = Table(show_header=False, box=None)
    table.add_row("devices", ", ".join(str(device) for device in jax.devices()))
    table.add_row("cores", str(count_cores()))
    table.add_row("mesh of 4 chains", ", ".join(f"{axis} {size}" for axis, size in default_mesh(4).shape.items()))
    table.add_row("versions", ", ".join(f"{name} {version}" for name, version in versions().items()))
    table.add_row("compilation cache", str(cache_folder() or "off"))
    Console().print(table)


def main() -> None:
    """Run the command; a user's mistake is one line on standard error, and exit status 2."""
    try:
        app(standalone_mode=False)
    except typer.Exit as done:
        sys.exit(done.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
        _fail(str(error))
    except Exception as error:
        if not hasattr(error, "format_message"):  # Click's errors about arguments have it; all else is ours to mend
            raise
        _fail(error.format_message())  # pyright: ignore[reportAttributeAccessIssue]


def _fail(message: str) -> None:
    print(f"phalanx: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def _start(devices: int | None) -> None:
    """Ask for CPU devices before anything else touches JAX."""
    from phalanx.mesh.devices import use_cpu_devices, use_every_core

    if devices is not None:
        use_cpu_devices(devices)
    else:
        use_every_core()
