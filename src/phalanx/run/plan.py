"""What memory a run will take, told before it starts: on the devices by the compiler, here by the draws to store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from phalanx.run.executables import Executables


@dataclass(frozen=True)
class Plan:
    """Bytes that a run needs.

    Attributes:
        on_device: on each device: data, chains, a block's draws or the states of reducers, and room to compute in.
        draws: of the draws to store, by variable.
        devices: how many there are.
        on_cpu: whether the devices' memory is this machine's.
    """

    on_device: int
    draws: Mapping[str, int]
    devices: int
    on_cpu: bool

    @property
    def here(self) -> int:
        """Bytes of this machine's memory."""
        return sum(self.draws.values()) + (self.devices * self.on_device if self.on_cpu else 0)

    def __str__(self) -> str:
        stored = f"{size(sum(self.draws.values()))} for draws" if self.draws else "no draws stored"
        return f"memory: {size(self.on_device)} on each of {self.devices} devices, {stored}"


def plan_memory(executables: Executables, rows: int) -> Plan:
    """The memory of a run that stores `rows` draws, of all chains."""
    blocks = executables.blocks
    target = blocks.target
    shapes = {v.name: (v.spread.rows, *v.shape[1:]) if v.spread.axes else v.shape for v in target.shares.latents}
    draws = {name: 4 * rows * int(np.prod(shapes.get(name, ()))) for name in blocks.names}
    programs = (executables.begin, executables.advance, executables.constrain, executables.fold, executables.reduce)
    devices = list(target.mesh.devices.flat)
    on_device = max((_bytes(program) for program in programs if program is not None), default=0)
    return Plan(on_device, draws, len(devices), devices[0].platform == "cpu")


def check_plan(plan: Plan, device: Any) -> None:
    """Refuse to start a run that does not fit."""
    limit = None if plan.on_cpu else (device.memory_stats() or {}).get("bytes_limit")
    if limit is not None and plan.on_device > limit:
        raise ValueError(
            f"This run needs {size(plan.on_device)} on each device, which has {size(limit)}. Run fewer chains at a "
            f"time (num_chains=), or spread the data over more devices (phx.make_mesh(data=...))."
        )
    free = free_memory()
    if free is not None and plan.here > free:
        largest = max(plan.draws, key=plan.draws.__getitem__, default=None)
        of_these = f", of which {largest!r} {size(plan.draws[largest])}" if largest is not None else ""
        raise ValueError(
            f"This run needs {size(plan.here)} of memory ({size(sum(plan.draws.values()))} for the draws{of_these}), "
            f"and {size(free)} are free. Store fewer variables with keep=[...], or fewer draws with a larger thin= or "
            f"a smaller num_samples=; with keep=[] and reducers= none are stored at all."
        )


def free_memory() -> int | None:
    """Bytes of free memory; None where the system does not tell."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def size(count: float) -> str:
    """Bytes in words."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}" if unit != "bytes" else f"{count:.0f} bytes"
        count /= 1024
    return f"{count:.1f} GiB"


def _bytes(program: Any) -> int:
    """What a compiled program needs on each device, as far as its backend tells."""
    found = program.memory_analysis()
    if found is None:
        return 0
    given, made = found.argument_size_in_bytes, found.output_size_in_bytes
    return given + made + found.temp_size_in_bytes - found.alias_size_in_bytes
