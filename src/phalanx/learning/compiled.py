"""Compiled programs of fits, found again by what they compute.

A program is traced in every call and compiled only where no trace equal to it has been: models, guides, objectives and
optimisers are functions that may read anything, and the trace shows what they have read. Data, seeds, rates and what is
learned are arguments, so that other values of them make the same trace. Where all that a program is made of is known
beforehand, the model by its own trace and the rest by being ours, it is found by that (`identity`), and not traced.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from phalanx.jaxprs.canonical import form_of
from phalanx.mesh.compatibility.jax_internals import OF_FEW_NUMBERS, PLAIN, RARELY, Options
from phalanx.run.compile.compilation import compiled, several_cpus
from phalanx.run.compile.executable_cache import settings
from phalanx.run.compile.lru_cache import Recent

FEW_NUMBERS = 2**16
"""Of so few a program is as fast without the last level of optimising, which takes 1.3 to 1.4 times as long
(`benchmarks/fits.py`); a step of a network took 1.14 times as long without it (`benchmarks/training.py`)."""

FEW_LEARNED = 2**12
"""Of a first argument, what is learned and what an optimiser keeps of it, of so few numbers, too, however many data:
without that level steps of regressions are as fast (`benchmarks/fits.py`), but those of networks may be slower."""

MANY, VERY_MANY = 2**18, 2**22
"""Numbers from which on even what is called once is worth optimising, and fusing well: to begin a fit to half a million
of them took three times as long without, and to 22 million twice as long where fusions were plain."""


class Compiled:
    """A program that is compiled while its caller goes on; the first call waits for it.

    Attributes:
        made: shapes of what it gives.
    """

    def __init__(self, traced: Any, options: Options, keep: bool):
        self.made, pool = traced.out_info, ThreadPoolExecutor(1)
        self._program = pool.submit(compiled, traced.lower(), options, keep)
        pool.shutdown(wait=False)

    def __call__(self, *arguments: Any) -> Any:
        """What it gives."""
        return self._program.result()(*arguments)

    def wait(self) -> None:
        """Until it can be called."""
        self._program.result()

    @property
    def failed(self) -> bool:
        """Whether it could not be compiled, as where memory is short."""
        return self._program.done() and self._program.exception() is not None


COMPILED: Recent[Compiled] = Recent(64)


class Compiler:
    """Compiles, and counts how often.

    Attributes:
        count: programs compiled.
        precision: of matrix products.
    """

    def __init__(self, matmul_precision: str = "float32") -> None:
        self.count, self.precision = 0, matmul_precision

    def __call__(
        self,
        f: Callable[..., Any],
        *arguments: Any,
        out_shardings: Callable[[], Any] | None = None,
        rarely: bool = False,
        identity: Hashable | None = None,
    ) -> Compiled:
        """`f`, compiled for arguments of these shapes that lie where these do.

        Args:
            f: the function.
            *arguments: arrays, or trees of them, such as it will be called with.
            out_shardings: says how its results are laid out.
            rarely: whether it is called so rarely that optimising it would take longer.
            identity: what tells it from other functions, how results are laid out with it; None for its trace.
        """
        with jax.default_matmul_precision(self.precision):
            known = None if identity is None else (identity, _kinds(arguments), settings())
            found = _look_up(known) or self._traced(f, arguments, out_shardings, _options(arguments, rarely))
            COMPILED.keep(known, found)
            return found

    def _traced(self, f: Any, arguments: Any, out_shardings: Any, options: Options) -> Compiled:
        """What has been compiled of an equal trace, or is now."""
        made = None if out_shardings is None else out_shardings()
        traced = jax.jit(f, **({} if made is None else {"out_shardings": made})).trace(*arguments)
        key = _key_of(traced, arguments, made)
        if (found := _look_up(key)) is None:
            # who adds up what is for the compiler to say, so that devices that may are taken for devices that do
            found = Compiled(traced, options, keep=not several_cpus(_devices(arguments, made)))
            self.count += 1
            COMPILED.keep(key, found)
        return found


def _options(arguments: Any, rarely: bool) -> Options:
    numbers, learned = _numbers(arguments), _numbers(arguments[0])
    if rarely and numbers < MANY:
        return RARELY
    if rarely and numbers < VERY_MANY:
        return OF_FEW_NUMBERS | PLAIN
    return OF_FEW_NUMBERS if numbers < FEW_NUMBERS or learned < FEW_LEARNED else {}


def _numbers(arrays: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(arrays))


def _look_up(key: Hashable | None) -> Compiled | None:
    found = COMPILED.look_up(key)
    return None if found is None or found.failed else found


def _key_of(traced: Any, arguments: Any, out_shardings: Any) -> Hashable | None:
    """What tells a compiled program from others; None where it cannot be told."""
    form = form_of(traced.jaxpr)
    if form is None:
        return None
    made = jax.tree.flatten(out_shardings)
    return form, _kinds(arguments), jax.tree.structure(traced.out_info), *map(_hashed, made), settings()


def _kinds(arguments: Any) -> Hashable:
    """Of what kind arguments are, and where they lie."""
    leaves, tree = jax.tree.flatten(arguments)
    return tree, tuple((jax.typeof(leaf), getattr(leaf, "sharding", None)) for leaf in leaves)


def _devices(arguments: Any, made: Any) -> set[Any]:
    """Where arguments and results lie."""
    shardings = [getattr(leaf, "sharding", leaf) for leaf in jax.tree.leaves((arguments, made))]
    return set().union(*(sharding.device_set for sharding in shardings if isinstance(sharding, jax.sharding.Sharding)))


def _hashed(value: Any) -> Hashable:
    return tuple(value) if isinstance(value, list) else value
