"""Cache of the compiled programs of fits, keyed by their canonical traces.

A program is traced in every call, and compiled unless an equal trace has been: models, guides, objectives and
optimisers are functions that may read anything, and the trace shows what they have read. Data, seeds, rates and learned
values are arguments, so that their values do not change the trace. If the model's trace and Phalanx's own parts already
identify a program, `identity` finds it without a new trace, also if an earlier process compiled it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.stages import Lowered, Traced

from phalanx.errors.model_errors import gradient_errors
from phalanx.jaxprs.canonical import form_of
from phalanx.mesh.compatibility.jax_internals import OF_FEW_NUMBERS, PLAIN, RARELY, Options
from phalanx.mesh.forks import refuse_fork
from phalanx.mesh.processes import on_all_processes
from phalanx.mesh.specs import PyTree
from phalanx.placements import over_mesh
from phalanx.run.compile.compilation import calls_libraries, compiled, sends_in_order, several_cpus
from phalanx.run.compile.executable_cache import settings
from phalanx.run.compile.lru_cache import LRUCache
from phalanx.run.compile.stored_programs import StoredPrograms

FEW_NUMBERS = 2**16
"""Size of the arguments below which XLA's last optimisation level is skipped: the program is as fast, and the level
takes 1.3 to 1.4 times as long to compile (`benchmarks/fits.py`). A step of a network took 1.14 times as long without it
(`benchmarks/training.py`)."""

FEW_LEARNED = 2**12
"""Size of the first argument (learned values and the optimiser's state) below which that level is skipped for data of
any size: steps of regressions are as fast without it (`benchmarks/fits.py`), those of networks may be slower."""

MANY, VERY_MANY = 2**18, 2**22
"""Sizes from which on even a program that is called once is optimised, and fused well: without optimisation, a fit's
first program took three times as long at half a million numbers; with plain fusions, twice as long at 22 million."""


class Compiled:
    """Program that is compiled in a thread; its first call waits for the end.

    Attributes:
        out_info: shapes of its results.
    """

    def __init__(self, out_info: Any, compile_it: Callable[[], Any]):
        self.out_info = out_info
        pool = ThreadPoolExecutor(1)
        self._program = pool.submit(compile_it)
        pool.shutdown(wait=False)

    def __call__(self, *arguments: PyTree) -> PyTree:
        """Call the program."""
        refuse_fork()
        return self._program.result()(*arguments)

    def wait(self) -> None:
        """Wait until the program is compiled."""
        self._program.result()

    @property
    def failed(self) -> bool:
        """True if compiling has failed, as where memory is short."""
        return self._program.done() and self._program.exception() is not None


COMPILED: LRUCache[Compiled] = LRUCache(64, of_programs=True)


class Compiler:
    """Compiler of programs, through the cache.

    Attributes:
        count: number of programs compiled.
        precision: precision of matrix products.
        mesh: devices of programs whose arguments are on none; None if they are not known.
    """

    def __init__(self, matmul_precision: str = "float32", mesh: Mesh | None = None) -> None:
        self.count = 0
        self.precision = matmul_precision
        self.mesh = mesh

    def __call__(
        self,
        f: Callable[..., Any],
        *arguments: PyTree,
        out_shardings: Callable[[PyTree], Any] | None = None,
        rarely: bool = False,
        identity: Hashable | None = None,
        explicit: bool = False,
    ) -> Compiled:
        """Return `f`, compiled for arguments of the shapes and shardings of these.

        Args:
            f: the function.
            *arguments: arrays, or trees of them, like those that it will be called with.
            out_shardings: returns the shardings of its results, given their shapes; by default they are replicated,
                or XLA chooses on one device.
            rarely: True if optimising would take longer than the few calls save.
            identity: key of the function and the layout of its results; None to use its trace.
            explicit: True if devices communicate only by collective operations of the function, as in `shard_map`.
        """
        with jax.default_matmul_precision(self.precision):
            key = None if identity is None else (identity, _kinds(arguments), settings())
            stored_programs = None
            if (program := _look_up(key)) is None:
                mesh = None if key is None else _mesh_of(arguments, self.mesh)
                stored_programs = None if mesh is None else StoredPrograms.of((key, mesh))
                program = None if stored_programs is None or mesh is None else _read_program(stored_programs, mesh)
            program = program or self._traced(
                f, arguments, out_shardings, _options(arguments, rarely), stored_programs, explicit
            )
            COMPILED.keep(key, program)
            return program

    def _traced(
        self,
        f: Callable[..., Any],
        arguments: PyTree,
        out_shardings: PyTree,
        options: Options,
        stored_programs: StoredPrograms | None,
        explicit: bool,
    ) -> Compiled:
        """Return the program of an equal trace, compiled before or now."""
        with gradient_errors():
            mesh = _mesh_of(arguments, self.mesh)
            if explicit or mesh is None or mesh.size == 1:
                f = jax.jit(f)  # traced once, for shapes and for the program
                shapes = jax.eval_shape(f, *arguments)
                shardings = on_all_processes(arguments) if out_shardings is None else out_shardings(shapes)
                trace = (f if shardings is None else jax.jit(f, out_shardings=shardings)).trace(*arguments)
            else:
                shardings = None
                trace = jax.jit(over_mesh(f, mesh, arguments, out_shardings)).trace(*arguments)
        key = _key_of(trace, arguments, shardings)
        if (program := _look_up(key)) is None:
            lowered_program = trace.lower()
            sums = several_cpus(_devices(arguments, shardings)) and sends_in_order(lowered_program)
            storing = stored_programs is not None and not sums and not calls_libraries(lowered_program)
            program = Compiled(
                trace.out_info, partial(_compile, lowered_program, options, stored_programs if storing else None, sums)
            )
            self.count += 1
            COMPILED.keep(key, program)
        return program


def _mesh_of(arguments: PyTree, otherwise: Mesh | None) -> Mesh | None:
    """Return the mesh of arguments; None if there are several."""
    shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(arguments)]
    meshes = {sharding.mesh for sharding in shardings if isinstance(sharding, NamedSharding)} or {otherwise}
    mesh = meshes.pop()
    return mesh if isinstance(mesh, Mesh) and not meshes else None


def _read_program(stored_programs: StoredPrograms, mesh: Mesh) -> Compiled | None:
    """Return the program that an earlier process compiled; None without one."""
    loaded = stored_programs.read(mesh)
    if loaded is None:
        return None
    program = loaded["program"]
    out_info = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), program.out_info)
    return Compiled(out_info, lambda: program)


def _compile(lowered_program: Lowered, options: Options, stored_programs: StoredPrograms | None, sums: bool) -> Any:
    """Return the compiled program, which is stored for other processes or in JAX's cache, unless devices `sums`."""
    program = compiled(lowered_program, options, keep=stored_programs is None and not sums)
    if stored_programs is not None:
        stored_programs.write({"program": program})
    return program


def _options(arguments: PyTree, rarely: bool) -> Options:
    numbers = _numbers(arguments)
    num_learned = _numbers(arguments[0])
    if rarely and numbers < MANY:
        return RARELY
    if rarely and numbers < VERY_MANY:
        return OF_FEW_NUMBERS | PLAIN
    return OF_FEW_NUMBERS if numbers < FEW_NUMBERS or num_learned < FEW_LEARNED else {}


def _numbers(arrays: PyTree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(arrays))


def _look_up(key: Hashable | None) -> Compiled | None:
    entry = COMPILED.look_up(key)
    return None if entry is None or entry.failed else entry


def _key_of(trace: Traced, arguments: PyTree, out_shardings: PyTree) -> Hashable | None:
    """Return the key of a compiled program; None for a trace that cannot be compared by content."""
    form = form_of(trace.jaxpr)
    if form is None:
        return None
    leaves, tree = jax.tree.flatten(out_shardings)
    return form, _kinds(arguments), jax.tree.structure(trace.out_info), tuple(leaves), tree, settings()


def _kinds(arguments: PyTree) -> Hashable:
    """Return the types and shardings of arguments."""
    leaves, tree = jax.tree.flatten(arguments)
    return tree, tuple((jax.typeof(leaf), getattr(leaf, "sharding", None)) for leaf in leaves)


def _devices(arguments: PyTree, out_shardings: PyTree) -> set[Any]:
    """Return the devices of arguments and results."""
    shardings = [getattr(leaf, "sharding", leaf) for leaf in jax.tree.leaves((arguments, out_shardings))]
    return set().union(*(sharding.device_set for sharding in shardings if isinstance(sharding, jax.sharding.Sharding)))
