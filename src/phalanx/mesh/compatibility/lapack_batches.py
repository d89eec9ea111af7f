"""Batched LAPACK calls in pieces: a work-around for the deadlock of JAX 0.10 and 0.11.0 on CPUs.

In these releases a LAPACK call on a batch of matrices cuts the batch into tasks, queues the tasks on XLA's pool of
threads, and waits for them (`ParallelBatchMap` in `jaxlib/cpu/lapack_kernels.cc`). The waiting thread is often one of
that pool. As soon as every thread of the pool waits, nothing runs the tasks: the program hangs for ever. Chains on
several devices get there, and so do many independent factorisations on one device. JAX 0.11.1 removed the tasks.

A batch that jaxlib takes for little work is computed by the calling thread. The lowering rules for CPUs are therefore
replaced: a larger batch is lowered as a loop over pieces, each of them that small, or a single matrix. The replacement
acts when a program is lowered, after `vmap` and differentiation. It covers chains, fits, predictions and checks, and
whatever a model calls. It also holds for other programs that this process compiles for CPUs afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax import Array, lax
from jax.interpreters import mlir

from phalanx.mesh.compatibility.jax_internals import cpu_lowerings
from phalanx.mesh.compatibility.workarounds import Workaround

FIRST, MENDED = (0, 10, 0), (0, 11, 1)
"""The first jaxlib with the deadlock, and the first without it again."""

PRIMITIVES = (
    "cholesky_p", "eig_p", "eigh_p", "geqp3_p", "geqrf_p", "hessenberg_p", "householder_product_p", "lu_p", "ormqr_p",
    "schur_p", "svd_p", "triangular_solve_p", "tridiagonal_p", "tridiagonal_solve_p",
)  # fmt: skip
"""Names, in JAX, of the primitives that a CPU computes with LAPACK."""

LEAST_SHARED = 200_000
"""Floating-point operations from which on jaxlib cuts a batch into tasks."""

MOST_PER_ENTRY = 30
"""Bound on what jaxlib estimates for a matrix, in operations per entry and column: 10 for SVD, 3 times for complex."""


def deadlocks(version: str) -> bool:
    """Return True if batched LAPACK calls of this version of jaxlib may wait for one another for ever."""
    return FIRST <= _numbers(version) < MENDED


def avoid_deadlock(version: str) -> None:
    """Have batches lowered in pieces from now on, if this version of jaxlib needs it."""
    if not (deadlocks(version) and Workaround.LAPACK_IN_PIECES.is_on):
        return
    for primitive, entry in cpu_lowerings(version, PRIMITIVES).items():  # the public API only replaces rules
        if not isinstance(entry.rule, _InPieces):
            mlir.register_lowering(primitive, _InPieces(primitive, entry.rule), platform="cpu", inline=entry.inline)


class _InPieces:
    """A lowering rule that cuts batches into pieces which the calling thread computes."""

    def __init__(self, primitive: Any, rule: Any):
        self._primitive, self._rule = primitive, rule

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

        return mlir.lower_fun(loop, multiple_results=self._primitive.multiple_results)(context, *operands)


def pieces(shapes: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], int]:
    """Return the shape of a batch, and how many matrices at a time a thread computes by itself.

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
