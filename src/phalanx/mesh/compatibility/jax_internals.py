"""Private and undocumented parts of JAX and XLA, each behind a guarded function with a fallback.

This is the only module of Phalanx that names them. Each is looked up when a program is traced or compiled, and never at
import. `NAMES` lists them with the consequence for a JAX that lacks one: Phalanx is slower, reads less, or refuses by
name. A test deletes each and runs Phalanx all the same.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any
from weakref import WeakValueDictionary

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from phalanx.mesh.compatibility.workarounds import VARIABLE, Workaround

ARRAY_READERS = "jax.interpreters.xla.canonicalize_dtype_handlers"
HOST_CONSTANT = "jax._src.literals.TypedNdArray"
KEPT_FROM = "jax._src.config.persistent_cache_min_compile_time_secs"
LOWERINGS = "jax._src.interpreters.mlir._platform_specific_lowerings"
LINALG = "jax._src.lax.linalg"
LIVE = "jax.interpreters.partial_eval.dce_jaxpr"
SETTINGS = "jax.config.values"

NAMES = {
    ARRAY_READERS: "a NumPy array of 64 bits that was changed in place is read as JAX keeps it",
    HOST_CONSTANT: "a NumPy array of 64 bits that was changed in place is read as JAX keeps it",
    KEPT_FROM: "programs are compiled one after the other, where some may not be kept between processes",
    LOWERINGS: "a jaxlib that deadlocks in batched LAPACK calls is refused",
    LINALG: "a jaxlib that deadlocks in batched LAPACK calls is refused",
    LIVE: "a fit goes on from a checkpoint with a warning: model, guide and optimiser were not compared",
    SETTINGS: "settings of JAX that have no attribute are not compared before compiled blocks are used again",
}
"""Consequence of each name's absence."""

Options = dict[str, str | bool]
"""Options of the compiler."""

PLAIN: Options = {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}
"""Fused operations are compiled the plain way: in half the time, with narrower vectors, which is slower only on many
numbers (a random walk's draw takes twice as long). From JAX 0.11 on there is no choice."""

RARELY: Options = {"xla_backend_optimization_level": "0", **PLAIN}
"""Options of a program that is called a few times: optimising it takes longer than it saves."""

OF_FEW_NUMBERS: Options = {"xla_backend_optimization_level": "2"}
"""Options of a program on few numbers."""

WIDE: Options = {"xla_cpu_prefer_vector_width": "512"}
"""Options of draws that are a few operations on every lane: faster with vectors as wide as a CPU has."""

APART: Options = {"xla_gpu_autotune_level": "0"}
"""No effect on CPU, but part of the key in XLA's cache: forces a miss where an earlier version, or a process without
the work-around, has kept a program that must not be read."""


def find(name: str) -> Any:
    """Return the value of a dotted name; None if this JAX lacks it."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(import_module(module), attribute, None)
    except ImportError:
        return None


# -- NumPy's arrays as constants ---------------------------------------------------------------------------------------


@cache
def read_arrays_anew() -> None:
    """Have JAX read NumPy's arrays as they are whenever it traces; no effect where the work-around is turned off.

    Without 64 bits JAX reads a `float64` or `int64` array from a copy of 32 bits. It finds the copy by the array's
    identity, for as long as anything holds the copy, such as a kept trace. After the array is changed in place, every
    later trace reads the old numbers. (An array of 32 bits is not copied, and read as it is.) The copies live in JAX's
    compiled part and cannot be cleared, but the function that makes them can be replaced: the replacement compares the
    copy with the array.

    The replacement holds for all that JAX traces in this process afterwards. A function that JAX does not trace again,
    such as one within the model that is jitted once, keeps its copy, as without Phalanx.
    """
    readers, constant = find(ARRAY_READERS), find(HOST_CONSTANT)
    if readers is None or constant is None or not Workaround.FRESH_CONSTANTS.is_on:
        return
    known: WeakValueDictionary[int, Any] = WeakValueDictionary()  # a program that reads an array twice has it once

    def read(array: np.ndarray) -> Any:
        now = np.asarray(array, jax.dtypes.canonicalize_dtype(array.dtype))
        before = known.get(id(array))
        if before is None or not _is_same(np.asarray(before), now):
            before = known[id(array)] = constant(now)
        return before

    readers[np.ndarray] = read


def _is_same(before: np.ndarray, now: np.ndarray) -> bool:
    """Return True if two arrays are the same memory, or have the same bits."""
    if before.__array_interface__ == now.__array_interface__:
        return True
    if (before.dtype, before.shape) != (now.dtype, now.shape):
        return False
    return np.array_equal(_bits(before), _bits(now))


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


# -- compiling ---------------------------------------------------------------------------------------------------------

_unknown: set[str] = set()
"""Options that this XLA does not know."""

_one_at_a_time = threading.RLock()


def compile_with(lowered: Any, options: Options) -> Any:
    """Return a compiled program; options that this XLA does not know are left out."""
    while True:
        try:
            return lowered.compile({name: value for name, value in options.items() if name not in _unknown})
        except Exception as error:
            found = re.search(r"No such compile option: '(\w+)'", str(error))
            if found is None or found[1] in _unknown or found[1] not in options:
                raise
            _unknown.add(found[1])


@contextmanager
def kept_from(seconds: float) -> Iterator[None]:
    """Keep programs of this thread in JAX's persistent cache if compiling takes so long; `math.inf` keeps none."""
    if (setting := find(KEPT_FROM)) is not None:
        with setting(seconds):
            yield
        return
    with _one_at_a_time:  # the public setting is one for all threads
        name = f"jax_{KEPT_FROM.rpartition('.')[2]}"
        before = getattr(jax.config, name)
        jax.config.update(name, seconds)
        try:
            yield
        finally:
            jax.config.update(name, before)


def settings() -> dict[str, Any]:
    """Return all settings of JAX, as they hold in this thread."""
    values = getattr(jax.config, "values", None)
    if values is None:
        values = dict.fromkeys(name for name in dir(jax.config) if name.startswith("jax_"))
    return {name: getattr(jax.config, name, value) for name, value in values.items()}


def cpu_lowerings(version: str, primitives: Sequence[str]) -> dict[Any, Any]:
    """Return the lowering rules for CPUs, by primitive of linear algebra.

    Args:
        version: version of jaxlib, which needs other rules.
        primitives: names of primitives; those that this JAX lacks are left out.

    Raises:
        RuntimeError: when the rules cannot be found.
    """
    lowerings, linalg = find(LOWERINGS), find(LINALG)
    if lowerings is None or linalg is None:
        missing = LINALG if linalg is None else LOWERINGS
        raise RuntimeError(
            f"jaxlib {version} may wait for ever in batched LAPACK calls on CPUs, and this JAX has no {missing}, by "
            f"which Phalanx avoids that. Install JAX 0.11.2 or later. To run with it nevertheless, set the environment "
            f"variable {VARIABLE}={Workaround.LAPACK_IN_PIECES.value}."
        )
    known = [getattr(linalg, name) for name in primitives if hasattr(linalg, name)]
    return {primitive: lowerings["cpu"][primitive] for primitive in known if primitive in lowerings["cpu"]}


# -- reading traces ----------------------------------------------------------------------------------------------------


def live(trace: ClosedJaxpr) -> ClosedJaxpr | None:
    """Return the part of a trace that its outputs need; None if this JAX cannot determine it."""
    if (dce := find(LIVE)) is None:
        return None
    needed, _ = dce(trace.jaxpr, [True] * len(trace.jaxpr.outvars), instantiate=True)
    return ClosedJaxpr(needed, trace.consts)


def scan_sizes(params: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many inputs of a scan are the same in each turn, and how many are carried; the others have rows.

    Raises:
        NotImplementedError: when this JAX describes scans in another way.
    """
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    if "ft_in" in params:  # from JAX 0.11 on
        constants, carry, _ = params["ft_in"].unpack()
        return len(constants), len(carry)
    raise NotImplementedError(
        f"This JAX describes jax.lax.scan by {', '.join(params)}, which this release of Phalanx cannot read. Install a "
        f"release of JAX below 0.13."
    )


def tracked_axes(value: Any) -> frozenset[str]:
    """Return the mesh axes along which JAX tracks that a value differs; none if it does not track them."""
    kind = jax.typeof(value)
    of = getattr(kind, "manual_axis_type", None)
    return frozenset(getattr(kind, "vma", ()) if of is None else of.varying)
