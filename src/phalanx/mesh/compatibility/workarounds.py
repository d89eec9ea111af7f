"""List of work-arounds for operations that are slow in XLA on CPUs, and for faults of JAX and NumPyro.

Each work-around is a few lines where it is used, which check here if it is on. The environment variable
`PHALANX_WORKAROUNDS` turns work-arounds off: `off` all of them, and names separated by commas, such as
`tiles,lanes-last`, only those. It is read once, before anything is compiled. Draws with and without them agree up to
rounding. `benchmarks/workarounds.py` measures each work-around for speed, on against off: delete those that no longer
gain. For each fault a test shows if it still exists.
"""

from __future__ import annotations

import os
from enum import Enum
from functools import cache

VARIABLE = "PHALANX_WORKAROUNDS"


class Workaround(Enum):
    """A work-around for a slow operation of XLA on CPUs, or for a fault of JAX or NumPyro."""

    FUSED_LOOPS = "fused-loops"
    """A loop over small arrays is compiled into one function, not into a list of functions."""

    WIDE_VECTORS = "wide-vectors"
    """Draws that are reduced are compiled for the widest vectors of the CPU; XLA chooses narrower ones."""

    WRITTEN_ROWS = "written-rows"
    """Draws are written lane by lane, in a loop: a scatter would split a step into several functions."""

    TILES = "tiles"
    """Many lanes are processed in tiles that fit in a core's cache."""

    LANES_LAST = "lanes-last"
    """Lanes are the last axis of all values in a log density; `jax.vmap` would make them the first."""

    ROWS_OF_LANES = "rows-of-lanes"
    """Vectors of a few lanes are stored lane by lane for a product with a matrix: columns are slower."""

    PRODUCTS_AS_THEY_ARE = "products-as-they-are"
    """The gradient of a matrix over blocks of rows is transposed once at the end, not in every product."""

    WRITTEN_OUT_PRODUCTS = "written-out-products"
    """A product with a small matrix is written as sums: a dot would split a step into several functions."""

    WRITTEN_OUT_HASH = "written-out-hash"
    """The hash for random numbers is unrolled: XLA cannot fuse JAX's loop with other operations."""

    MEMBERS_APART = "members-apart"
    """Members of an ensemble on one device are trained in turn: batched convolutions are slow."""

    STEPS_IN_BRANCHES = "steps-in-branches"
    """The step of a small fit is a branch of its own: XLA parallelises every operation that reads a long array."""

    FRESH_CONSTANTS = "fresh-constants"
    """NumPy arrays of 64 bits are read anew in every trace: JAX caches their earlier contents."""

    BERNOULLI_AT_ZERO = "bernoulli-at-zero"
    """Phalanx computes the log density of Bernoulli variables: NumPyro's gradient is off by 1/2 at logits of zero."""

    SUMS_COMPILED_AFRESH = "sums-compiled-afresh"
    """Programs that sum over several CPU devices are not cached between processes: XLA loses the order of the sums."""

    LAPACK_IN_PIECES = "lapack-in-pieces"
    """Batches of matrices are factorised in pieces: in JAX 0.10 and 0.11.0 threads that share a batch may deadlock."""

    REFUSED_RELEASES = "refused-releases"
    """Phalanx refuses JAX releases that compute wrong numbers, or crash, on the platform in use."""

    HASHES_APART = "hashes-apart"
    """A key is computed before its first use in a hash: LLVM of jaxlib 0.12 hangs on hashes chained in one loop."""

    GROUP_SUMS = "group-sums"
    """Sums by group on GPUs avoid scatter-adds into few cells, whose atomics collide; not measured."""

    ONE_DEVICE_CHECK = "one-device-check"
    """A log density on a mesh is compared with that on one device before a run: rules of placement may have faults."""

    @property
    def is_on(self) -> bool:
        """True if the work-around is on; its code may also require a CPU."""
        return self not in _turned_off()


@cache
def _turned_off() -> frozenset[Workaround]:
    names = [name.strip() for name in os.environ.get(VARIABLE, "").lower().split(",") if name.strip()]
    if names == ["off"]:
        return frozenset(Workaround)
    by_name = {workaround.value: workaround for workaround in Workaround}
    if strange := [name for name in names if name not in by_name]:
        raise ValueError(
            f"{VARIABLE} has an unknown name: {', '.join(map(repr, strange))}. Set it to 'off', or to names from "
            f"{', '.join(by_name)}, separated by commas."
        )
    return frozenset(by_name[name] for name in names)
