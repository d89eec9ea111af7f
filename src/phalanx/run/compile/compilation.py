"""How programs are compiled: options of the compiler, and the cache by which a second process does not compile again.

The persistent cache is on by default. Set the environment variable `PHALANX_CACHE` to a folder to choose where, or to
`off` to have none. JAX's own setting (`jax_compilation_cache_dir`) goes before ours.

Programs in which several CPU devices add up what they have are compiled in every process. XLA keeps what devices say to
each other in one order by an object that all those steps of a program share; a program that it reads from the cache has
one such object for each loop. A sum within a loop and another outside of it may then be under way at once, and devices
that take them in different orders add one to the other: mostly the process crashes. A GPU has no such order to lose.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import jax

from phalanx.mesh.compatibility.jax_internals import APART, Options, compile_with, kept_from
from phalanx.mesh.compatibility.loader_messages import without_false_alarms
from phalanx.mesh.compatibility.workarounds import Workaround

VARIABLE = "PHALANX_CACHE"

_COMMUNICATION = re.compile(r"stablehlo\.(all_|collective_|reduce_scatter)")
"""What devices say to each other, in a program that is not compiled yet."""


def cache_folder() -> Path | None:
    """Where compiled programs are kept between processes; None when they are not."""
    configured = _configured()
    return _chosen() if configured is None else Path(configured)


def compiled(lowered: Any, options: Options, keep: bool) -> Any:
    """A program, compiled or read from the cache; without `keep` it is neither read nor written there."""
    _use_cache()
    with _keeping(keep), without_false_alarms():
        return compile_with(lowered, options if keep else options | APART)


def several_cpus(devices: Iterable[Any]) -> bool:
    """Whether these are several devices of CPUs, whose sums XLA does not keep in order when it reads them."""
    platforms = [device.platform for device in devices]
    return Workaround.SUMS_COMPILED_AFRESH.is_on and len(platforms) > 1 and "cpu" in platforms


def communicates(lowered: Any) -> bool:
    """Whether what runs on a device, by `jax.shard_map`, says anything to the others."""
    return _COMMUNICATION.search(lowered.as_text()) is not None


def _configured() -> str | None:
    """Return JAX's own setting of the folder."""
    return jax.config.jax_compilation_cache_dir or None  # pyright: ignore[reportAttributeAccessIssue]


def _chosen() -> Path | None:
    """The folder that is ours."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen.lower() in ("off", "0", "none"):
        return None
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "phalanx"


def _use_cache() -> None:
    """Switch the cache on for what is compiled from now on. Called when a program is compiled, never at import."""
    folder = cache_folder()
    if folder is None or _configured() is not None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a read-only home is no reason not to sample
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # what others compile in this process is kept, too, unless it may be what cannot be read again
    jax.config.update("jax_persistent_cache_min_compile_time_secs", math.inf if several_cpus(jax.devices()) else 0.0)


def _keeping(keep: bool) -> AbstractContextManager[Any]:
    """Within it, programs of this thread are kept, or are not."""
    if not keep:
        return kept_from(math.inf)
    ours = _configured() == str(_chosen())
    return kept_from(0.0) if ours else nullcontext()
