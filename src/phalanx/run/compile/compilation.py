"""Compilation of programs, with a persistent cache from which other processes read them.

The cache is on by default. Set the environment variable `PHALANX_CACHE` to a folder to choose its place, or to `off` to
disable it. JAX's setting `jax_compilation_cache_dir` takes precedence. The cached programs are code that is executed as
it is, so the folder is made for its owner alone, and one that others can write to is not used.

Programs with two or more collective operations of several CPU devices are compiled in every process. XLA orders the
collective operations of a program by a token that they share, but a program that it reads from the cache has one token
for each loop. A sum inside of a loop and one outside may then run at the same time; if devices start them in different
orders, XLA mixes them up, and most often the process crashes. GPUs do not depend on these tokens.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import jax
from jax.stages import Compiled, Lowered

from phalanx.mesh.compatibility.jax_internals import (
    APART,
    LAPACK,
    Options,
    compile_with,
    find,
    kept_from,
    read_cache_within,
)
from phalanx.mesh.compatibility.loader_messages import without_false_alarms
from phalanx.mesh.compatibility.workarounds import Workaround
from phalanx.mesh.output import warn

VARIABLE = "PHALANX_CACHE"

_COMMUNICATION = re.compile(r"stablehlo\.(all_|collective_|reduce_scatter)")
"""Collective operations in a lowered program."""

_FUNCTION = re.compile(r"func\.func [^@]*@\"?([\w.$]+)(.*?)(?=func\.func |\Z)", re.DOTALL)
"""Name and body of a function in a lowered program."""

_CALL = re.compile(r"call @\"?([\w.$]+)")

_CALLED = re.compile(r"stablehlo\.custom_call @\"?([\w.$]+)")
"""Functions that a lowered program calls."""

_OF_XLA = ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "xla.sdy")
"""Those that are annotations."""


def cache_folder() -> Path | None:
    """Return the folder of the persistent cache; None if it is disabled."""
    configured = _configured_folder()
    return _default_folder() if configured is None else Path(configured)


def own_folder() -> Path | None:
    """Return the folder of the cache if it is Phalanx's own, made for its owner alone; None if the user chose JAX's."""
    own = _default_folder()
    return own if _configured_folder() in (None, str(own)) else None


def compiled(program: Lowered, options: Options, keep: bool) -> Compiled:
    """Return a compiled program; the persistent cache is used only with `keep`."""
    _use_cache()
    with _keeping(keep):
        return compile_with(program, options if keep else options | APART)


def several_cpus(devices: Iterable[Any]) -> bool:
    """Return True for several CPU devices, whose collective operations lose their order in the cache."""
    platforms = [device.platform for device in devices]
    return Workaround.SUMS_COMPILED_AFRESH.is_on and len(platforms) > 1 and "cpu" in platforms


def sends_in_order(program: Lowered) -> bool:
    """Return True if a program contains collective operations whose order matters: two or more.

    The text has a function once, however often it is called: a second call counts as a second operation.
    """
    text = program.as_text()
    functions = {match[1]: match[2] for match in _FUNCTION.finditer(text)}
    name = None
    places = [of for of, body in functions.items() for _ in _COMMUNICATION.findall(body)]
    while len(places) == 1 and places[0] != name:
        name = places[0]
        places = [of for of, body in functions.items() for call in _CALL.findall(body) if call == name] or places
    return len(places) > 1


def calls_libraries(program: Lowered) -> bool:
    """Return True if a program calls functions of a library that JAX loads when it lowers a call.

    LAPACK is left out if it can be loaded without such a call.
    """
    prefixes = _OF_XLA if find(LAPACK) is None else (*_OF_XLA, "lapack_")
    return any(not target.startswith(prefixes) for target in _CALLED.findall(program.as_text()))


def is_private(path: Path) -> bool:
    """Return whether only this user can write to a folder, which may be missing; else warn, once."""
    try:
        status = path.stat()
    except OSError:
        return True
    if status.st_uid != os.geteuid():
        _warn(path, f"belongs to user {status.st_uid}")
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        _warn(path, f"may be written to by other users (mode {stat.S_IMODE(status.st_mode):o})")
    else:
        return True
    return False


@cache
def _warn(path: Path, why: str) -> None:
    warn(
        f"PHALANX_CACHE: {str(path)!r} {why}, and this process would execute programs that others store there. It "
        f"neither reads nor writes them, and compiles each run. Set PHALANX_CACHE to a folder that is yours alone "
        f"(chmod 700).",
        stacklevel=2,
    )


def _configured_folder() -> str | None:
    """Return the folder in JAX's setting; None if it is not set."""
    return jax.config.jax_compilation_cache_dir or None  # pyright: ignore[reportAttributeAccessIssue]


def _default_folder() -> Path | None:
    """Return the folder of Phalanx; None if the user disables it."""
    setting = os.environ.get(VARIABLE, "")
    if setting.lower() in ("off", "0", "none"):
        return None
    if setting:
        return Path(setting).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "phalanx"


def _use_cache() -> None:
    """Enable the cache for all later compilations; called before a compilation, never at import."""
    read_cache_within(without_false_alarms)  # also programs of other libraries, which the cache then has
    folder = cache_folder()
    if folder is None or _configured_folder() is not None:
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # who writes to it decides what this process executes
    except OSError:  # with a read-only home folder, run without a cache
        return
    if not is_private(folder):
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # other libraries' programs are cached, too, unless they may contain collective operations of CPUs
    jax.config.update("jax_persistent_cache_min_compile_time_secs", math.inf if several_cpus(jax.devices()) else 0.0)


def _keeping(keep: bool) -> AbstractContextManager[None]:
    """Return a context manager in which this thread's programs are cached, or not."""
    if not keep:
        return kept_from(math.inf)
    ours = _configured_folder() == str(_default_folder())
    return kept_from(0.0) if ours else nullcontext()
