"""How programs are compiled: options of the compiler, and the cache by which a second process does not compile again.

The persistent cache is on by default. Set the environment variable `PHALANX_CACHE` to a folder to choose where, or to
`off` to have none. JAX's own setting (`jax_compilation_cache_dir`) goes before ours.
"""

from __future__ import annotations

import os
from pathlib import Path

import jax

VARIABLE = "PHALANX_CACHE"

Options = dict[str, str | bool]
"""Options of the compiler."""

PLAIN: Options = {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}
"""Operations that are fused are compiled the plain way: in half the time, and worth as little where they see many
numbers, as vectors are narrower (a random walk's draw takes twice as long). From JAX 0.11 on nobody can choose."""

RARELY: Options = {"xla_backend_optimization_level": "0", **PLAIN}
"""What is called a few times is not worth optimising."""


def cache_folder() -> Path | None:
    """Where compiled programs are kept between processes; None when they are not."""
    if configured := jax.config.values["jax_compilation_cache_dir"]:
        return Path(configured)
    chosen = os.environ.get(VARIABLE, "")
    if chosen.lower() in ("off", "0", "none"):
        return None
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "phalanx"


def use_cache() -> None:
    """Switch the cache on for what is compiled from now on. Called when a sampler is compiled, never at import."""
    folder = cache_folder()
    if folder is None or jax.config.values["jax_compilation_cache_dir"]:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a read-only home is no reason not to sample
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
