"""Cache of the compiled programs of fits, keyed by their canonical traces.

A program is traced in every call, and compiled unless an equal trace has been: models, guides, objectives and
optimisers are functions that may read anything, and the trace shows what they have read. Data, seeds, rates and learned
values are arguments, so that their values do not change the trace. If the model's trace and Phalanx's own parts already
identify a program, `identity` finds it without a new trace.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
from jax.stages import Traced

from phalanx.jaxprs.canonical import form_of
from phalanx.mesh.compatibility.jax_internals import OF_FEW_NUMBERS, PLAIN, RARELY, Options
from phalanx.mesh.processes import on_all_processes
from phalanx.mesh.specs import PyTree
from phalanx.run.compile.compilation import compiled, several_cpus
from phalanx.run.compile.executable_cache import settings
from phalanx.run.compile.lru_cache import Recent

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
        made: shapes of its results.
    """

    def __init__(self, traced: Traced, options: Options, keep: bool):
        self.made, pool = traced.out_info, ThreadPoolExecutor(1)
        self._program = pool.submit(compiled, traced.lower(), options, keep)
        pool.shutdown(wait=False)

    def __call__(self, *arguments: PyTree) -> PyTree:
        """Call the program."""
        return self._program.result()(*arguments)

    def wait(self) -> None:
        """Wait until the program is compiled."""
        self._program.result()

    @property
    def failed(self) -> bool:
        """True if compiling has failed, as where memory is short."""
        return self._program.done() and self._program.exception() is not None


COMPILED: Recent[Compiled] = Recent(64)


class Compiler:
    """Compiler of programs, through the cache.

    Attributes:
        count: number of programs compiled.
        precision: precision of matrix products.
    """

    def __init__(self, matmul_precision: str = "float32") -> None:
        self.count, self.precision = 0, matmul_precision

    def __call__(
        self,
        f: Callable[..., Any],
        *arguments: PyTree,
        out_shardings: Callable[[], Any] | None = None,
        rarely: bool = False,
        identity: Hashable | None = None,
    ) -> Compiled:
        """Return `f`, compiled for arguments of the shapes and shardings of these.

        Args:
            f: the function.
            *arguments: arrays, or trees of them, like those that it will be called with.
            out_shardings: returns the shardings of its results; by default XLA chooses them, or every process gets
                whole results.
            rarely: True if optimising would take longer than the few calls save.
            identity: key of the function and the layout of its results; None to use its trace.
        """
        with jax.default_matmul_precision(self.precision):
            known = None if identity is None else (identity, _kinds(arguments), settings())
            found = _look_up(known) or self._traced(f, arguments, out_shardings, _options(arguments, rarely))
            COMPILED.keep(known, found)
            return found

    def _traced(self, f: Callable[..., Any], arguments: PyTree, out_shardings: PyTree, options: Options) -> Compiled:
        """Return the program of an equal trace, compiled before or now."""
        made = on_all_processes(arguments) if out_shardings is None else out_shardings()
        chosen: dict[str, Any] = {} if made is None else {"out_shardings": made}
        traced = jax.jit(f, **chosen).trace(*arguments)
        key = _key_of(traced, arguments, made)
        if (found := _look_up(key)) is None:
            # XLA decides where to sum over devices, so assume that several devices do
            found = Compiled(traced, options, keep=not several_cpus(_devices(arguments, made)))
            self.count += 1
            COMPILED.keep(key, found)
        return found


def _options(arguments: PyTree, rarely: bool) -> Options:
    numbers, learned = _numbers(arguments), _numbers(arguments[0])
    if rarely and numbers < MANY:
        return RARELY
    if rarely and numbers < VERY_MANY:
        return OF_FEW_NUMBERS | PLAIN
    return OF_FEW_NUMBERS if numbers < FEW_NUMBERS or learned < FEW_LEARNED else {}


def _numbers(arrays: PyTree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(arrays))


def _look_up(key: Hashable | None) -> Compiled | None:
    found = COMPILED.look_up(key)
    return None if found is None or found.failed else found


def _key_of(traced: Traced, arguments: PyTree, out_shardings: PyTree) -> Hashable | None:
    """Return the key of a compiled program; None for a trace that cannot be compared by content."""
    form = form_of(traced.jaxpr)
    if form is None:
        return None
    made = jax.tree.flatten(out_shardings)
    return form, _kinds(arguments), jax.tree.structure(traced.out_info), *map(_hashed, made), settings()


def _kinds(arguments: PyTree) -> Hashable:
    """Return the types and shardings of arguments."""
    leaves, tree = jax.tree.flatten(arguments)
    return tree, tuple((jax.typeof(leaf), getattr(leaf, "sharding", None)) for leaf in leaves)


def _devices(arguments: PyTree, made: PyTree) -> set[Any]:
    """Return the devices of arguments and results."""
    shardings = [getattr(leaf, "sharding", leaf) for leaf in jax.tree.leaves((arguments, made))]
    return set().union(*(sharding.device_set for sharding in shardings if isinstance(sharding, jax.sharding.Sharding)))


def _hashed(value: object) -> Hashable:
    return tuple(value) if isinstance(value, list) else value
