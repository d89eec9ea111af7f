"""Compiler settings that change rounding, and a warning if a saved run had others."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import jax

from phalanx.mesh.compatibility.workarounds import VARIABLE, Workaround
from phalanx.mesh.output import warn

DEVICES = re.compile(r"--xla_force_host_platform_device_count=\S*")
"""Flag of XLA that changes no program."""

WAY_OUT = (
    " import phalanx adds a flag to XLA_FLAGS, unless the script has used JAX before: import it where it was imported "
    "there."
)


def compiler_settings() -> dict[str, str]:
    """Return XLA's flags, the work-arounds that are turned off, the kind of the devices, and the processor."""
    names = re.findall(r"^model name\s*: (.*)$", processor(), re.MULTILINE)
    return {
        "XLA_FLAGS": _flags(),
        VARIABLE: ", ".join(one.value for one in Workaround if not one.is_on),
        "the kind of the devices": jax.devices()[0].device_kind,
        "the processor": ", ".join(names) or platform.machine(),
    }


@cache
def _flags() -> str:
    """Return the flags at the first call, soon after JAX has started: later changes have no effect."""
    return " ".join(DEVICES.sub("", os.environ.get("XLA_FLAGS", "")).split())


def warn_of_other_settings(title: str, there: Mapping[str, str]) -> None:
    """Warn if a run was compiled under other settings than those of this process; older releases recorded none."""
    here = compiler_settings() if there else {}
    if differs := [name for name, value in here.items() if there.get(name) != value]:
        values = "; ".join(f"{name} is {there.get(name)!r} there, and {here[name]!r} here" for name in differs)
        warn(
            f"{title} was compiled otherwise: {values}. Programs then round differently: what follows is as correct, "
            f"but not bit for bit what would have followed there.{WAY_OUT if 'XLA_FLAGS' in differs else ''}",
            stacklevel=3,
        )


@cache
def processor() -> str:
    """Return the processor with its instruction sets, for which programs of CPUs are compiled."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    return f"{platform.machine()} {platform.processor()}"
