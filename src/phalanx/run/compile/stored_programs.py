"""Executables that earlier processes compiled: runs and fits that one of them made are not traced or compiled again.

JAX's own cache has the lowered program as its key, so that a process must trace and lower a program to find it. The key
here is all that determines programs: the model's trace, kernel and reducers, or guide and optimiser, sizes and
settings, and with them the versions of the libraries, the files of Phalanx and the machine. A file contains its key and
a digest; one that has been changed, or has another key, is not read. Like JAX's cache, the folder contains code that is
executed as it is; one that another user owns or may write to is ignored.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from collections.abc import Hashable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.stages import Compiled, Lowered
from jax.tree_util import PyTreeDef

from phalanx.jaxprs.canonical import PLAIN, Form, is_of_a_library, library_name
from phalanx.mesh.compatibility import jax_internals
from phalanx.mesh.compatibility.compiler_settings import compiler_settings, processor
from phalanx.mesh.compatibility.jax_internals import Options
from phalanx.mesh.compatibility.loader_messages import without_false_alarms
from phalanx.programs.closure_key import OfThisProcess
from phalanx.run.compile.compilation import (
    calls_libraries,
    compiled,
    is_private,
    own_folder,
    sends_in_order,
    several_cpus,
)

FILES = 300
"""Most files, one for a run and several for a fit; the oldest are removed."""

LIBRARIES = ("jax", "jaxlib", "numpyro", "numpy")

DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True)
class StoredPrograms:
    """File of the programs of a run.

    Attributes:
        path: the file.
        key: all that determines the programs, as text.
    """

    path: Path
    key: str

    @classmethod
    def of(cls, key: Hashable) -> StoredPrograms | None:
        """Return the file for a key; None if the key cannot be compared between processes, or no cache is safe."""
        cache_folder = folder()
        device = jax.devices()[0]
        # GPUs' programs are in JAX's cache alone: whether they can be stored here has not been tried
        if cache_folder is None or jax.process_count() > 1 or device.platform != "cpu":
            return None
        if not all(map(is_private, (cache_folder.parent, cache_folder))):
            return None
        try:
            text = f"{_surroundings()}\n{_text(key)}"
        except _NoText:
            return None
        return cls(cache_folder / hashlib.sha256(text.encode()).hexdigest(), text)

    def read(self, mesh: Mesh) -> dict[str, Compiled] | None:
        """Return the programs by name, on a mesh; None if the file is missing or was changed."""
        try:
            content = self.path.read_bytes()
            digest = content[:DIGEST]
            content = content[DIGEST:]
            if hashlib.sha256(content).digest() != digest:
                return None
            key, programs = pickle.loads(content)
            if key != self.key:
                return None
            os.utime(self.path)  # the files used last are kept
            with without_false_alarms():
                return {name: jax_internals.loaded(it, list(mesh.devices.flat)) for name, it in programs.items()}
        except Exception:  # a file of another release or a full disk: compile instead
            return None

    def write(self, programs: Mapping[str, Compiled]) -> None:
        """Store the programs, if JAX can write them."""
        with suppress(Exception):  # without a file the next process compiles
            content = pickle.dumps((self.key, {name: jax_internals.stored(it) for name, it in programs.items()}))
            for parent in (self.path.parent.parent, self.path.parent):
                parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            aside = self.path.with_name(f"{self.path.name}.{os.getpid()}")
            aside.write_bytes(hashlib.sha256(content).digest() + content)
            os.replace(aside, self.path)
            files = sorted(self.path.parent.iterdir(), key=lambda file: file.stat().st_mtime)
            for file in files[:-FILES]:
                file.unlink()


def read_or_compile(
    key: Hashable | None, mesh: Mesh, programs: Iterable[tuple[str, Lowered, Options]]
) -> dict[str, Compiled]:
    """Return programs by name: those that an earlier process stored for the key, or compile them side by side.

    Args:
        key: all that determines the programs; None if nothing does.
        mesh: devices of the programs.
        programs: name, lowered program and compiler options of each, lowered only if they must be compiled.
    """
    stored_programs = None if key is None else StoredPrograms.of(key)
    executables = None if stored_programs is None else stored_programs.read(mesh)
    if executables is None:
        executables, may_be_stored = _compiled(programs, several_cpus(mesh.devices.flat), stored_programs is not None)
        if stored_programs is not None and may_be_stored:
            stored_programs.write(executables)
    return executables


def _compiled(
    programs: Iterable[tuple[str, Lowered, Options]], several: bool, storing: bool
) -> tuple[dict[str, Compiled], bool]:
    """Return the compiled programs by name, and whether other processes may use them.

    Programs to be stored are not read from JAX's cache: XLA cannot write a program that it has read. Those that call
    libraries are not stored: a process that reads one without lowering it has not loaded the library, and crashes.
    """
    apart: list[bool] = []

    def compile_one(lowered_program: Lowered, options: Options, is_kept: bool) -> Compiled:
        communicating = several and sends_in_order(lowered_program)
        apart.append(communicating or (not is_kept and calls_libraries(lowered_program)))
        return compiled(lowered_program, options, keep=is_kept and not communicating)

    # the compiler releases Python's global lock, so that the next program is traced meanwhile
    with ThreadPoolExecutor() as pool:
        under_way = {}
        for name, program, options in programs:
            if not under_way and storing:  # the first program has the collective operations and calls of the others
                storing = not (several and sends_in_order(program)) and not calls_libraries(program)
            under_way[name] = pool.submit(compile_one, program, options, not storing)
        return {name: program.result() for name, program in under_way.items()}, storing and not any(apart)


def folder() -> Path | None:
    """Return the folder of the files; None if there is no cache, or JAX's, which may be shared or on a bucket."""
    cache_folder = own_folder()
    return None if cache_folder is None else cache_folder / "phalanx-runs"


class _NoText(Exception):
    """A value that cannot be compared between processes."""


def _text(value: object) -> str:
    """Return a value as text that is equal in all processes, and differs for different values."""
    if isinstance(value, OfThisProcess):
        raise _NoText
    if isinstance(value, PLAIN):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, Form):
        others = (_text(other) if isinstance(other, tuple) else _record(other) for other in value.others)
        return f"form {value.digest.hex()} {value.rules} {_all(others)}"
    if isinstance(value, Mesh):
        devices = [(d.id, d.platform, d.device_kind) for d in value.devices.flat]
        return f"mesh {value.shape_tuple} {value.axis_types} {devices}"
    if isinstance(value, NamedSharding):
        return f"sharding {_text(value.mesh)} {value.spec} {value.memory_kind}"
    if isinstance(value, tuple | frozenset):
        items = map(_text, value)
        return f"{_type(value)}{_all(sorted(items) if isinstance(value, frozenset) else items)}"
    if isinstance(value, type):
        return f"type {value.__module__}.{value.__qualname__}"
    if is_dataclass(value):
        return f"{_type(value)}{_all(_text(getattr(value, field.name)) for field in fields(value) if field.compare)}"
    if is_of_a_library(value):
        return f"function {library_name(value)}"
    return _record(value)


def _record(value: object) -> str:
    """Return a record of JAX, a tree's structure, or an object of Phalanx without attributes, in its own words."""
    if isinstance(value, np.ndarray | jax.Array):  # their words leave out elements
        raise _NoText
    text = f"{_type(value)} {value!r}"
    owner = _type(value).split(".")[0]
    bare = owner == "phalanx" and not getattr(value, "__dict__", None)
    if " at 0x" in text or not (bare or isinstance(value, PyTreeDef) or owner in ("jax", "jaxlib", "numpy")):
        raise _NoText
    return text


def _type(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _all(texts: Any) -> str:
    return f"({', '.join(texts)})"


@cache
def _surroundings() -> str:
    """Return what determines programs besides their key: versions, files of Phalanx, compiler settings, the machine."""
    root = Path(__file__).parents[2]
    files = sorted((str(file.relative_to(root)), file.stat()) for file in root.rglob("*.py"))
    device = jax.devices()[0]
    return _text(
        (
            tuple((name, import_module(name).__version__) for name in LIBRARIES),
            sys.version,
            tuple((name, status.st_size, status.st_mtime_ns) for name, status in files),
            tuple(compiler_settings().items()),
            os.environ.get("JAX_PLATFORMS"),
            tuple((d.id, d.platform, d.device_kind) for d in jax.devices()),
            device.client.platform_version,
            processor(),
        )
    )
