"""Estimate of a run's memory: on the devices as the compiler reports it, on the host from the draws to store."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import jax
from jax import Array
from jax.errors import JaxRuntimeError

from phalanx.errors.message_text import count
from phalanx.mesh.devices import CHAIN
from phalanx.run.device.executables import Executables

FEWER = "Run fewer chains at a time (num_chains=), or shard chains or data over more devices (phx.make_mesh(data=...))."

OWN_GROUPS = Path("/proc/self/cgroup")
"""File with the names of the control groups of this process."""

GROUPS = Path("/sys/fs/cgroup")
"""Folder with the limits of control groups."""

GROUP = "memory.max", "memory.current", "inactive_file"
"""Files with the limit and the use of a control group, and the entry of `memory.stat` for pages that can be dropped."""

OLD_GROUP = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
"""The same in version 1 of control groups."""


@dataclass(frozen=True)
class MemoryPlan:
    """Memory that a run needs, in bytes.

    Attributes:
        on_device: on each device: data, chains, a block's draws or reducers' states, and temporary arrays.
        placed: the part of `on_device` that is allocated already: the data.
        draws: draws to store, by variable.
        devices: number of devices.
        own_devices: number of those of this process.
        chains: number of chains on each device.
        limit: memory of a device; None on CPUs, which use that of the host, and where it is unknown.
        on_cpu: true if the devices use the memory of the host.
    """

    on_device: int
    placed: int
    draws: Mapping[str, int]
    devices: int
    own_devices: int
    chains: int
    limit: int | None
    on_cpu: bool

    @property
    def here(self) -> int:
        """Bytes of host memory that the run will allocate."""
        computing = self.own_devices * max(self.on_device - self.placed, 0) if self.on_cpu else 0
        return sum(self.draws.values()) + computing

    def what_fits(self, limit: int) -> str:
        """Return how many of a device's chains fit into `limit` bytes, in words."""
        of_a_chain = max(self.on_device - self.placed, 1) / self.chains
        fit = int((limit - self.placed) / of_a_chain)
        if fit < 1:
            return f"not even one chain, of {size(of_a_chain)}, fits beside the data of {size(self.placed)}"
        return f"about {count(min(fit, self.chains), 'chain')} of {self.chains:,} on each device would fit"

    def __str__(self) -> str:
        draws_text = f"{size(sum(self.draws.values()))} for draws" if self.draws else "no draws stored"
        return f"memory: {size(self.on_device)} on each of {count(self.devices, 'device')}, {draws_text}"


def plan_memory(executables: Executables, arrays: Sequence[Array], rows: int) -> MemoryPlan:
    """Return the memory of a run that stores `rows` draws in this process; its data are placed already."""
    draw_shapes = {} if executables.constrain is None else executables.constrain.out_info
    draws = {name: rows * math.prod(info.shape[2:]) * info.dtype.itemsize for name, info in draw_shapes.items()}
    devices = list(executables.blocks.target.mesh.devices.flat)
    data_bytes = sum(array.addressable_shards[0].data.nbytes for array in arrays)
    chains = executables.blocks.num_chains // executables.blocks.target.mesh.shape.get(CHAIN, 1)
    on_cpu = devices[0].platform == "cpu"
    limit = None if on_cpu else (devices[0].memory_stats() or {}).get("bytes_limit")
    local = sum(device.process_index == jax.process_index() for device in devices)
    return MemoryPlan(executables.bytes_on_device, data_bytes, draws, len(devices), local, chains, limit, on_cpu)


def check_plan(plan: MemoryPlan) -> None:
    """Raise if a run needs more memory than a device or the host has."""
    if plan.limit is not None and plan.on_device > plan.limit:
        raise ValueError(
            f"This run needs {size(plan.on_device)} on each device, which has {size(plan.limit)}; "
            f"{plan.what_fits(plan.limit)}. {FEWER}"
        )
    free = free_memory()
    if free is not None and plan.here > free:
        largest = max(plan.draws, key=plan.draws.__getitem__, default=None)
        of_these = f", of which {largest!r} {size(plan.draws[largest])}" if largest is not None else ""
        raise ValueError(
            f"This run needs {size(plan.here)} of memory ({size(sum(plan.draws.values()))} for the draws{of_these}), "
            f"and {size(free)} are free. Store fewer variables with keep=[...], or fewer draws with a larger thin= or "
            f"a smaller num_samples=. With keep=[] and reducers= no draws are stored."
        )


@contextmanager
def explained(plan: MemoryPlan) -> Iterator[None]:
    """Add to the error of a device without memory what the run needs and what would fit."""
    try:
        yield
    except JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        limit, (first, *_) = free_memory() if plan.on_cpu else plan.limit, str(error).splitlines()
        fits = "" if limit is None else f" of {size(limit)}; {plan.what_fits(limit)} if no other arrays were there"
        raise ValueError(
            f"A device has no memory left: {first} The run was estimated to need {size(plan.on_device)} on each "
            f"device{fits}. {FEWER}"
        ) from error


def free_memory() -> int | None:
    """Return the bytes of memory that this process may still take; None if the system does not report them."""
    figures = [bytes_ for bytes_ in (_free_on_host(), *_free_in_groups()) if bytes_ is not None]
    return min(figures, default=None)


def _free_on_host() -> int | None:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        # MemAvailable includes the page cache, which SC_AVPHYS_PAGES does not
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _free_in_groups() -> Iterator[int]:
    """Yield what the control groups of this process leave: a container or a job may have less than its host."""
    try:
        lines = OWN_GROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        names = OLD_GROUP if controllers else GROUP
        root = GROUPS / "memory" if controllers else GROUPS
        for folder in [root / path.lstrip("/"), *(root / path.lstrip("/")).parents]:
            with suppress(OSError, ValueError):  # a group without a limit has none of these files, or the word max
                limit, used_bytes = (int((folder / name).read_text()) for name in names[:2])
                stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                yield max(limit - used_bytes + int(stat.get(names[2], 0)), 0)
            if folder == root:
                break


def size(count: float) -> str:
    """Return a number of bytes as text with a unit."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}" if unit != "bytes" else f"{count:.0f} bytes"
        count /= 1024
    return f"{count:.1f} GiB"
