"""Private and undocumented parts of JAX and XLA, each behind a guarded function with a fallback.

No other module of Phalanx names them. Each is found when it is needed, `HAS_STARTED` at import, the others never there.
`NAMES` lists them with the consequence if a release of JAX lacks one: Phalanx is slower, compares less, or raises an
error with the name. A test deletes each name and runs Phalanx without it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache, wraps
from importlib import import_module
from typing import Any
from weakref import WeakValueDictionary

import jax
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Primitive
from jax.stages import Compiled, Lowered
from jax.typing import ArrayLike

from phalanx.mesh.compatibility.workarounds import VARIABLE, Workaround
from phalanx.mesh.specs import PyTree

ARRAY_READERS = "jax.interpreters.xla.canonicalize_dtype_handlers"
HOST_CONSTANT = "jax._src.literals.TypedNdArray"
KEPT_FROM = "jax._src.config.persistent_cache_min_compile_time_secs"
LOWERINGS = "jax._src.interpreters.mlir._platform_specific_lowerings"
LINALG = "jax._src.lax.linalg"
REGISTER = "jax.interpreters.mlir.register_lowering"
LOWER_FUNCTION = "jax.interpreters.mlir.lower_fun"
DERIVATIVES = "jax.interpreters.ad.primitive_jvps"
TRANSPOSES = "jax.interpreters.ad.primitive_transposes"
INSTANTIATE = "jax.interpreters.ad.instantiate_zeros"
BATCHES = "jax.interpreters.batching.primitive_batchers"
LIVE = "jax.interpreters.partial_eval.dce_jaxpr"
SETTINGS = "jax.config.values"
COORDINATION = "jax._src.distributed.global_state"
STORE = "jax.experimental.serialize_executable.serialize"
LOAD = "jax.experimental.serialize_executable.deserialize_and_load"
LAPACK = "jax._src.lax.linalg.initialize_lapack"
CACHE_READ = "jax._src.compilation_cache.get_executable_and_time"
HAS_STARTED = "jax._src.xla_bridge.backends_are_initialized"

_REFUSED = "a jaxlib that deadlocks in batched LAPACK calls is refused"

NAMES = {
    ARRAY_READERS: "a NumPy array of 64 bits that was changed in place is read from JAX's cache",
    HOST_CONSTANT: "a NumPy array of 64 bits that was changed in place is read from JAX's cache",
    KEPT_FROM: "programs are compiled one at a time if some may not be cached between processes",
    **dict.fromkeys((LOWERINGS, LINALG, REGISTER, LOWER_FUNCTION), _REFUSED),
    **dict.fromkeys(
        (DERIVATIVES, TRANSPOSES, INSTANTIATE, BATCHES), "a log density on several devices has no second derivative"
    ),
    LIVE: "a fit continues from a checkpoint with a warning: model, guide and optimiser are not compared",
    SETTINGS: "settings of JAX that have no attribute are not compared before compiled blocks are used again",
    **dict.fromkeys((STORE, LOAD), "programs of earlier processes are traced again"),
    LAPACK: "programs that call LAPACK are traced in every process",
    CACHE_READ: "JAX 0.10 prints a false alarm for each program that it reads from its cache",
    HAS_STARTED: "XLA_FLAGS may hold a flag that had no effect, and no warning says so where a run continues",
    COORDINATION: "several processes are not compared, and an exception in one ends the others late",
}
"""Consequence of each name's absence."""

Options = dict[str, str | bool]
"""Options of the compiler."""

SMALL_LOOP_BYTES = 4 * 2**20
"""Bytes per iteration up to which a loop is faster as one fused function than as several that run in parallel."""

PLAIN: Options = {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}
"""Options for XLA's older fusion: compiles in half the time, with narrower vectors, which is slower only on many
numbers (a random walk's draw takes twice as long). JAX 0.11 and later lack this option."""

RARELY: Options = {"xla_backend_optimization_level": "0", **PLAIN}
"""Options of a program that is called only a few times: optimising it takes longer than it saves."""

OF_FEW_NUMBERS: Options = {"xla_backend_optimization_level": "2"}
"""Options of a program on few numbers."""

WIDE: Options = {"xla_cpu_prefer_vector_width": "512"}
"""Options of draws that are a few operations on every lane: the widest vectors are faster."""

APART: Options = {"xla_gpu_autotune_level": "0"}
"""No effect on CPU, but part of the key in XLA's cache: forces a miss, so that programs cached by an earlier version,
or without the work-around, are not read."""


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
    """Make JAX read the current contents of NumPy arrays in every trace; no effect if the work-around is off.

    Without 64 bits JAX converts a `float64` or `int64` array to a copy of 32 bits. It finds the copy by the identity of
    the array for as long as the copy is referenced, for instance by a cached trace. After the array is changed in
    place, every later trace reads the old numbers. (Arrays of 32 bits are not copied.) The cache is in JAX's compiled
    part and cannot be cleared, but the function that makes the copies can be replaced: the replacement compares the
    copy with the array.

    The replacement affects all later traces in this process. A function that JAX does not trace again, such as a jitted
    function in the model, keeps its copy, as without Phalanx.
    """
    readers = find(ARRAY_READERS)
    constant = find(HOST_CONSTANT)
    if readers is None or constant is None or not Workaround.FRESH_CONSTANTS.is_on:
        return
    copies: WeakValueDictionary[int, Any] = WeakValueDictionary()  # a program that reads an array twice has one copy

    def read(array: np.ndarray) -> Any:
        now = np.asarray(array, jax.dtypes.canonicalize_dtype(array.dtype))
        before = copies.get(id(array))
        if before is None or not _is_same(np.asarray(before), now):
            before = copies[id(array)] = constant(now)
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


def prefer_fused_loops() -> None:
    """Ask XLA to compile loops over small arrays into one function each, unless JAX has started.

    By default a CPU runs a loop as a list of small functions. In a leapfrog step of few numbers the calls
    take 8 microseconds, the functions 1. XLA reads this option from the environment only, once, when JAX starts. The
    variable may name a file of flags instead: that is the user's, and is left as it is.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    has_started = find(HAS_STARTED)
    if has_started is not None and has_started():  # processes that inherit the variable would compile otherwise
        return
    is_file = flags.strip() and not flags.lstrip().startswith("-")
    with suppress(ValueError):  # a work-around that does not exist is reported by the first run, not by an import
        if is_file or "xla_backend_extra_options" in flags or not Workaround.FUSED_LOOPS.is_on:
            return
        wish = f"--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold={SMALL_LOOP_BYTES}"
        os.environ["XLA_FLAGS"] = f"{flags} {wish}".strip()


_unknown: set[str] = set()
"""Options that this XLA does not know."""

_one_at_a_time = threading.RLock()


def compile_with(program: Lowered, options: Options) -> Compiled:
    """Return a compiled program; options that this XLA does not know are left out."""
    while True:
        try:
            return program.compile({name: value for name, value in options.items() if name not in _unknown})
        except Exception as error:
            match = re.search(r"such compile option: '(\w+)'", str(error))
            if match is None or match[1] in _unknown or match[1] not in options:
                raise
            _unknown.add(match[1])


def stored(program: Compiled) -> tuple[bytes, PyTree, PyTree]:
    """Return an executable as bytes, and trees of the structures of its arguments and results."""
    if (serialize := find(STORE)) is None:
        raise NotImplementedError(NAMES[STORE])
    content, in_tree, out_tree = serialize(program)
    # structures with nodes of other libraries cannot be pickled, but trees of that structure can
    return (
        content,
        jax.tree.unflatten(in_tree, [0] * in_tree.num_leaves),
        jax.tree.unflatten(out_tree, [0] * out_tree.num_leaves),
    )


def loaded(program: tuple[bytes, Any, Any], devices: Sequence[Any]) -> Any:
    """Return the executable that `stored` wrote, on the devices that it was compiled for."""
    if (load := find(LOAD)) is None:
        raise NotImplementedError(NAMES[LOAD])
    content, in_tree, out_tree = program
    if (initialize := find(LAPACK)) is not None:  # JAX does when it lowers a call; without, the program would crash
        initialize()
    return load(content, jax.tree.structure(in_tree), jax.tree.structure(out_tree), execution_devices=devices)


@cache
def read_cache_within(context: Callable[[], AbstractContextManager[None]]) -> None:
    """Make JAX read every program of its persistent cache within a context, in all threads of this process."""
    if (read_entry := find(CACHE_READ)) is None:
        return

    @wraps(read_entry)
    def reading(*args: Any, **options: Any) -> Any:
        with context():
            return read_entry(*args, **options)

    module, _, name = CACHE_READ.rpartition(".")
    setattr(import_module(module), name, reading)


@contextmanager
def kept_from(seconds: float) -> Iterator[None]:
    """Cache programs of this thread between processes if compiling takes that long; `math.inf` disables the cache."""
    if (setting := find(KEPT_FROM)) is not None:
        with setting(seconds):
            yield
        return
    with _one_at_a_time:  # all threads share the public setting
        name = f"jax_{KEPT_FROM.rpartition('.')[2]}"
        before = getattr(jax.config, name)
        jax.config.update(name, seconds)
        try:
            yield
        finally:
            jax.config.update(name, before)


def settings() -> dict[str, Any]:
    """Return all settings of JAX in this thread."""
    values = getattr(jax.config, "values", None)
    if values is None:
        values = dict.fromkeys(name for name in dir(jax.config) if name.startswith("jax_"))
    return {name: getattr(jax.config, name, value) for name, value in values.items()}


def cpu_lowerings(version: str, primitives: Sequence[str]) -> dict[Primitive, Any]:
    """Return the lowering rules for CPUs, by primitive of linear algebra.

    Args:
        version: version of jaxlib that needs other rules, for the message.
        primitives: names of primitives; those that this JAX lacks are left out.

    Raises:
        RuntimeError: when the rules cannot be found or replaced.
    """
    modules = {name: find(name) for name in (LINALG, LOWERINGS, REGISTER, LOWER_FUNCTION)}
    if missing := [name for name, value in modules.items() if value is None]:
        raise RuntimeError(
            f"jaxlib {version} may deadlock in batched LAPACK calls on CPUs, and this JAX lacks {missing[0]}, with "
            f"which Phalanx avoids that. Install JAX 0.11.2 or later. To run with it nevertheless, set the environment "
            f"variable {VARIABLE}={Workaround.LAPACK_IN_PIECES.value}."
        )
    lowerings = modules[LOWERINGS]
    linalg = modules[LINALG]
    existing = [getattr(linalg, name) for name in primitives if hasattr(linalg, name)]
    return {primitive: lowerings["cpu"][primitive] for primitive in existing if primitive in lowerings["cpu"]}


def register_cpu_lowering(primitive: Primitive, rule: Callable[..., Any], inline: bool) -> None:
    """Replace the lowering rule of a primitive for CPUs."""
    find(REGISTER)(primitive, rule, platform="cpu", inline=inline)


def lower_function(f: Callable[..., Any], multiple_results: bool) -> Callable[..., Any]:
    """Return the lowering rule of a primitive that computes what `f` computes."""
    return find(LOWER_FUNCTION)(f, multiple_results=multiple_results)


def define(primitive: Primitive, evaluate: Any, derivative: Any, transpose: Any, batch: Any) -> None:
    """Define the lowering, derivative, transpose and batches of a primitive that is linear in its last operands.

    Args:
        primitive: a primitive with several results; its parameter `count` is the number of the other operands.
        evaluate: computes the results.
        derivative: `f(primals, tangents, **parameters)`, the results and their tangents.
        transpose: `f(cotangents, other operands, **parameters)`, the cotangents of the last operands.
        batch: `f(operands, dimensions of the batch, **parameters)`, results with the batch along their first dimension.
    """
    instantiate = find(INSTANTIATE)

    def of_tangents(primals: Any, tangents: Any, **parameters: Any) -> Any:
        return derivative(primals, [instantiate(tangent) for tangent in tangents], **parameters)

    def of_cotangents(cotangents: Any, *operands: Any, count: int, **parameters: Any) -> Any:
        arrays = [instantiate(cotangent) for cotangent in cotangents]
        return [*[None] * count, *transpose(arrays, operands[:count], **parameters)]

    def of_batch(operands: Any, dims: Any, **parameters: Any) -> Any:
        static_dims = [None if dim is None or not isinstance(dim, int) else dim for dim in dims]
        results = batch(operands, static_dims, **parameters)
        return results, [0] * len(results)

    find(REGISTER)(primitive, lower_function(evaluate, multiple_results=True))
    find(DERIVATIVES)[primitive] = of_tangents
    find(TRANSPOSES)[primitive] = of_cotangents
    find(BATCHES)[primitive] = of_batch


# -- reading traces ----------------------------------------------------------------------------------------------------


def live(trace: ClosedJaxpr) -> ClosedJaxpr | None:
    """Return the part of a trace that its outputs need; None if this JAX cannot determine it."""
    if (dce := find(LIVE)) is None:
        return None
    small_jaxpr, _ = dce(trace.jaxpr, [True] * len(trace.jaxpr.outvars), instantiate=True)
    return ClosedJaxpr(small_jaxpr, trace.consts)


def bind(primitive: Primitive, arrays: Sequence[Array], params: Mapping[str, Any]) -> list[Array]:
    """Return the results of a primitive on arrays, given the parameters of an equation.

    Releases of JAX differ in the form in which functions among the parameters are bound: as operands, before 0.11.
    """
    bound = primitive.get_bind_params(dict(params))
    functions, options = bound if isinstance(bound, tuple) else ((), bound)
    results = primitive.bind(*functions, *arrays, **options)
    return results if primitive.multiple_results else [results]


def scan_sizes(params: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of constants and the number of carried inputs of a scan; the others have rows.

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


def tracked_axes(value: ArrayLike) -> frozenset[str]:
    """Return the mesh axes along which JAX tracks that a value differs; none if it does not track them."""
    kind = jax.typeof(value)
    of = getattr(kind, "manual_axis_type", None)
    return frozenset(getattr(kind, "vma", ()) if of is None else of.varying)
