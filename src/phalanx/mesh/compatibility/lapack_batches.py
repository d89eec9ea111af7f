"""Batched LAPACK calls in pieces: a work-around for the deadlock of JAX 0.10 and 0.11.0 on CPUs.

In these releases a LAPACK call on a batch of matrices cuts the batch into tasks, queues the tasks on XLA's pool of
threads, and waits for them (`ParallelBatchMap` in `jaxlib/cpu/lapack_kernels.cc`). The waiting thread is often one of
that pool. If every thread of the pool waits, no thread runs the tasks: the program hangs for ever. Chains on several
devices cause this, and so do many independent factorisations on one device. JAX 0.11.1 removed the tasks.

The calling thread computes a batch that jaxlib estimates to be little work. Therefore the lowering rules for CPUs are
replaced: a larger batch is lowered as a loop over pieces, each of them that small, or a single matrix. The replacement
acts when a program is lowered, after `vmap` and differentiation. It covers chains, fits, predictions and checks, and
all that a model calls. It also applies to other programs that this process compiles for CPUs afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax import Array, lax
from jax.extend.core import Primitive

from phalanx.mesh.compatibility.jax_internals import cpu_lowerings, lower_function, register_cpu_lowering
from phalanx.mesh.compatibility.workarounds import Workaround

FIRST, MENDED = (0, 10, 0), (0, 11, 1)
"""The first jaxlib with the deadlock, and the first without it."""

PRIMITIVES = (
    "cholesky_p",
    "eig_p",
    "eigh_p",
    "geqp3_p",
    "geqrf_p",
    "hessenberg_p",
    "householder_product_p",
    "lu_p",
    "ormqr_p",
    "schur_p",
    "svd_p",
    "triangular_solve_p",
    "tridiagonal_p",
    "tridiagonal_solve_p",
)
"""Names, in JAX, of the primitives that a CPU computes with LAPACK."""

LEAST_SHARED = 200_000
"""Floating-point operations from which jaxlib cuts a batch into tasks."""

MOST_PER_ENTRY = 30
"""Bound on jaxlib's estimate for a matrix, in operations per entry and column: 10 for SVD, times 3 if complex."""


def deadlocks(version: str) -> bool:
    """Return True if batched LAPACK calls of this version of jaxlib may wait for one another for ever."""
    return FIRST <= _numbers(version) < MENDED


def avoid_deadlock(version: str) -> None:
    """Install lowering in pieces if this version of jaxlib needs it."""
    if not (deadlocks(version) and Workaround.LAPACK_IN_PIECES.is_on):
        return
    for primitive, entry in cpu_lowerings(version, PRIMITIVES).items():
        if not isinstance(entry.rule, _InPieces):
            register_cpu_lowering(primitive, _InPieces(primitive, entry.rule), entry.inline)


class _InPieces:
    """A lowering rule that cuts batches into pieces which the calling thread computes."""

    def __init__(self, primitive: Primitive, rule: Any):
        self._primitive = primitive
        self._rule = rule

    def __call__(self, context: Any, *operands: Any, **parameters: Any) -> Any:
        if not all(map(_can_be_cut, context.avals_in)):
            return self._rule(context, *operands, **parameters)
        batch, piece = pieces([aval.shape for aval in context.avals_in])
        if math.prod(batch) <= piece:
            return self._rule(context, *operands, **parameters)

        def loop(*operands: Array) -> Any:
            flat = [operand.reshape(-1, *operand.shape[len(batch) :]) for operand in operands]
            results = lax.map(lambda one: self._primitive.bind(*one, **parameters), flat, batch_size=piece)
            return jax.tree.map(lambda result: result.reshape(*batch, *result.shape[1:]), results)

        return lower_function(loop, self._primitive.multiple_results)(context, *operands)


def pieces(shapes: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], int]:
    """Return the shape of a batch, and the number of matrices that one thread computes without tasks.

    Args:
        shapes: of the operands, at least one of which is a batch of matrices; others may be batches of vectors.
    """
    leading = max(map(len, shapes)) - 2
    sizes = [shape[leading:] for shape in shapes]
    work = MOST_PER_ENTRY * max(map(math.prod, sizes)) * max(max(size, default=1) for size in sizes)
    return shapes[0][:leading], max(1, (LEAST_SHARED - 1) // max(work, 1))


def _can_be_cut(aval: Any) -> bool:
    """Return True unless sizes are symbolic, as in exports, or the type fixes how the array is sharded."""
    is_explicit = any(axis is not None for axis in aval.sharding.spec)
    return all(isinstance(size, int) for size in aval.shape) and not is_explicit


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in version.split(".")[:3])
