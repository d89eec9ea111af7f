"""Command `phalanx info`: devices, mesh, versions."""

from __future__ import annotations

import jax
from rich.table import Table

from phalanx.cli.options import Devices, start_devices
from phalanx.mesh.devices import count_cores, default_mesh
from phalanx.report.terminal import console
from phalanx.run.compile.compilation import cache_folder
from phalanx.run.describe import versions


def info(devices: Devices = None) -> None:
    """Show devices, the mesh of a run of four chains, versions, and the folder of compiled programs."""
    start_devices(devices)
    table = Table(show_header=False, box=None)
    table.add_row("devices", ", ".join(str(device) for device in jax.devices()))
    table.add_row("cores", str(count_cores()))
    table.add_row("mesh of 4 chains", ", ".join(f"{axis} {size}" for axis, size in default_mesh(4).shape.items()))
    table.add_row("versions", ", ".join(f"{name} {version}" for name, version in versions().items()))
    table.add_row("compilation cache", str(cache_folder() or "off"))
    console().print(table)
