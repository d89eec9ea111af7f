"""What XLA does slowly on CPUs, or JAX or NumPyro get wrong, and what is done about it: a list, so that it can go.

Each work-around is a few lines where it is used, which ask here whether it is on. The environment variable
`PHALANX_WORKAROUNDS` says which are not: `off` turns all off, and names with commas between them, such as
`tiles,lanes-last`, turn off those. It is read once, before anything is compiled. Draws with and without them agree up
to rounding. `benchmarks/workarounds.py` measures each that is for speed, on against off: one that gains nothing any
more can go. Of what is wrong, a test says whether it still is.
"""

from __future__ import annotations

import os
from enum import Enum
from functools import cache

VARIABLE = "PHALANX_WORKAROUNDS"


class Workaround(Enum):
    """A way around something that XLA does slowly on CPUs, or that JAX or NumPyro gets wrong."""

    FUSED_LOOPS = "fused-loops"
    """A loop over small arrays is one function, and no list of functions that are called one by one."""

    WIDE_VECTORS = "wide-vectors"
    """Draws that are folded are compiled for vectors as wide as the CPU has; XLA chooses narrower ones."""

    WRITTEN_ROWS = "written-rows"
    """Draws are written lane by lane, in a loop: a scatter would cut a tick into several functions."""

    TILES = "tiles"
    """Many lanes are worked on in tiles that stay in a core's cache."""

    LANES_LAST = "lanes-last"
    """Lanes are the last axis of whatever a density computes, where `jax.vmap` would make them the first."""

    ROWS_OF_LANES = "rows-of-lanes"
    """A few lanes' positions are laid out lane by lane before they meet a matrix: a product with columns is slower."""

    PRODUCTS_AS_THEY_ARE = "products-as-they-are"
    """The gradient of a matrix over blocks of rows is transposed once at the end, and not within every product."""

    WRITTEN_OUT_PRODUCTS = "written-out-products"
    """A product with a small matrix is written out as sums: a dot would cut a tick into several functions."""

    WRITTEN_OUT_HASH = "written-out-hash"
    """The hash that random numbers come from is written out: JAX's is a loop, which is fused with nothing."""

    MEMBERS_APART = "members-apart"
    """Members of an ensemble on a device are trained one after the other: batched convolutions are slow."""

    STEPS_IN_BRANCHES = "steps-in-branches"
    """A small fit's step is a branch of its own: XLA runs what reads a long array as if much could be done at once."""

    FRESH_CONSTANTS = "fresh-constants"
    """NumPy's arrays of 64 bits are read as they are when a program is traced: JAX keeps what was in them before."""

    BERNOULLI_AT_ZERO = "bernoulli-at-zero"
    """The log density of Bernoulli variables is ours: the gradient of NumPyro's is off by a half at logits of zero."""

    SUMS_COMPILED_AFRESH = "sums-compiled-afresh"
    """Programs that add up over several CPU devices are not kept between processes: XLA forgets their sums' order."""

    LAPACK_IN_PIECES = "lapack-in-pieces"
    """Batches of matrices are factorised piece by piece: in JAX 0.10 and 0.11.0 threads that share one may deadlock."""

    REFUSED_RELEASES = "refused-releases"
    """JAX releases that compute wrong numbers, or crash, on the platform in use are refused."""

    HASHES_APART = "hashes-apart"
    """A key is computed before it is hashed with: LLVM of jaxlib 0.12 does not end where one loop chains hashes."""

    GROUP_SUMS = "group-sums"
    """On GPUs sums by group are no scatter-adds into few cells, whose atomics collide; unmeasured."""

    @property
    def is_on(self) -> bool:
        """Whether it is to be used; where it is used may ask for a CPU, too."""
        return self not in _turned_off()


@cache
def _turned_off() -> frozenset[Workaround]:
    said = [name.strip() for name in os.environ.get(VARIABLE, "").lower().split(",") if name.strip()]
    if said == ["off"]:
        return frozenset(Workaround)
    known = {workaround.value: workaround for workaround in Workaround}
    if strange := [name for name in said if name not in known]:
        raise ValueError(
            f"{VARIABLE} names {', '.join(map(repr, strange))}, which is no work-around. Set it to 'off', or to some "
            f"of {', '.join(known)}, with commas between them."
        )
    return frozenset(known[name] for name in said)
