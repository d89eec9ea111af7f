"""Random numbers by coordinate: the i-th is a function of the key and i, so any device can generate any part of them.

A counter-based generator (Threefry, JAX's default) hashes (key, i). `jax.random` numbers the elements of every array
from zero; here the caller numbers them, so that a sharded array gets the same numbers as the whole one.

Every draw's key is a function of (seed, chain, draw) alone. A chain is therefore the same for any number of lanes,
blocks or devices, and no key is used for two draws: draw 0 is the chain's initial position, draws 1, 2, ... its steps,
warm-up first.

A key is two words, and `jax.random.fold_in` hashes a number under them. Here the hash is computed for all lanes in one
fused operation.

Source: Salmon, Moraes, Dror, Shaw (2011), Parallel random numbers: as easy as 1, 2, 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.extend.random import threefry2x32_p
from jax.typing import ArrayLike, DTypeLike

from phalanx.mesh.compatibility.workarounds import Workaround

if TYPE_CHECKING:
    from jaxtyping import Float, Integer

Bits = tuple[Array, Array]
"""Two arrays of 32 random bits."""

INITIAL_POSITION = 0
"""The draw number of a chain's initial position."""


def uniforms(key: Array, numbers: Integer[Array, "*shape"], dtype: DTypeLike) -> Float[Array, "*shape"]:
    """Return uniforms on [0, 1), one for each of `numbers`."""
    return uniforms_from(_bits(key, numbers), dtype)


def standard_normals(key: Array, numbers: Integer[Array, "*shape"], dtype: DTypeLike) -> Float[Array, "*shape"]:
    """Return standard normals, one for each of `numbers`, by inversion."""
    return standard_normals_from(_bits(key, numbers), dtype)


def uniforms_from(pair: Bits, dtype: DTypeLike) -> Float[Array, "*shape"]:
    """Return uniforms on [0, 1) made from random bits."""
    first, second = pair
    if jnp.dtype(dtype) == jnp.float64:
        bits = first.astype(jnp.uint64) << 32 | second.astype(jnp.uint64)
        return lax.bitcast_convert_type(bits >> 12 | np.uint64(0x3FF0000000000000), jnp.float64) - 1.0
    # 23 random bits as the mantissa of a number in [1, 2)
    bits = (first ^ second) >> 9 | np.uint32(0x3F800000)
    return (lax.bitcast_convert_type(bits, jnp.float32) - 1.0).astype(dtype)


def standard_normals_from(bits: Bits, dtype: DTypeLike) -> Float[Array, "*shape"]:
    """Return standard normals made from random bits, by inversion."""
    wide = jnp.float64 if jnp.dtype(dtype) == jnp.float64 else jnp.float32
    low = np.nextafter(np.array(-1.0, wide), np.array(0.0, wide))  # erf_inv is infinite at -1
    symmetric = jnp.maximum(low, uniforms_from(bits, wide) * (1.0 - low) + low)
    inverse = _erf_inv(symmetric) if wide == jnp.float32 else lax.erf_inv(symmetric)
    return (np.sqrt(2).astype(wide) * inverse).astype(dtype)


@jax.jit
def _erf_inv(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return the inverse of the error function on (-1, 1) in float32, to 3e-7 of itself.

    JAX computes the logarithm of 1 - x**2 as `log1p(-x * x)`, which is inaccurate near one (relative error 6e-6), and
    which LLVM vectorises to half the width of a CPU.

    Source: the two polynomials of Giles (2010), Approximating the erfinv function.
    """
    w = -jnp.log((1.0 - x) * (1.0 + x))
    in_tail = w >= 5.0
    from_middle = jnp.where(in_tail, jnp.sqrt(w) - 3.0, w - 2.5)
    result = jnp.zeros_like(x)
    for middle, tail in zip(_MIDDLE, _TAIL, strict=True):
        result = result * from_middle + jnp.where(in_tail, np.float32(tail), np.float32(middle))
    return result * x


_MIDDLE = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
_TAIL = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)


def _bits(key: Array, numbers: Array) -> tuple[Array, Array]:
    """Return two independent words of random bits for each number."""
    numbers = numbers.astype(jnp.uint32)
    data = random.key_data(key)
    # another generator's key has another size: hash it to two words
    data = data if data.shape == (2,) else random.bits(key, (2,), jnp.uint32)
    return threefry((data[0], data[1]), jnp.zeros_like(numbers), numbers)


CHAINS_HANG = jax.__version_info__ >= (0, 11)
"""True if LLVM may not terminate on hashes that are chained in one loop: seen with jaxlib 0.12.0.1, not with 0.10.1.
Its loop vectoriser follows every path through the operations (`onlyFirstLaneUsed`), twice as many per round."""

_ROLLED: ContextVar[bool] = ContextVar("rolled", default=False)


@contextmanager
def rolled_hashes() -> Iterator[None]:
    """Trace hashes as JAX's loop inside a `with` block: slower to run but much faster to compile, for single runs."""
    token = _ROLLED.set(True)
    try:
        yield
    finally:
        _ROLLED.reset(token)


def threefry(key: Bits, high: Array, low: Array) -> Bits:
    """Return the Threefry-2x32 hash (20 rounds) of a counter (`high`, `low`) under a key, elementwise.

    The result is JAX's, without JAX's loop over the rounds: XLA cannot fuse a loop with the users of the words, which
    makes it about seven times slower in a compiled step on a CPU.
    """
    rolled = _ROLLED.get() or not Workaround.WRITTEN_OUT_HASH.is_on
    if CHAINS_HANG and Workaround.HASHES_APART.is_on and not rolled:
        key = lax.optimization_barrier(tuple(jnp.asarray(word) for word in key))
    first, second, *keys = jnp.broadcast_arrays(high, low, *key)
    if rolled:
        return tuple(threefry2x32_p.bind(*keys, first, second))
    return _written_out(first, second, *keys)


@jax.jit  # a run hashes in many places: each shape is traced and lowered once
def _written_out(first: Array, second: Array, *keys: Array) -> Bits:
    # the operators on arrays take several times as long to trace
    add = lax.add
    xor = lax.bitwise_xor
    schedule = (*keys, xor(xor(*keys), np.uint32(0x1BD11BDA)))
    first = add(first, schedule[0])
    second = add(second, schedule[1])
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            first = add(first, second)
            left_shift = np.uint32(distance)
            right = np.uint32(32 - distance)
            rotated = lax.bitwise_or(lax.shift_left(second, left_shift), lax.shift_right_logical(second, right))
            second = xor(first, rotated)
        first = add(first, schedule[(group + 1) % 3])
        second = add(add(second, schedule[(group + 2) % 3]), np.uint32(group + 1))
    return first, second


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


class Keys(NamedTuple):
    """The keys of several chains, as words.

    Attributes:
        chain: the key of each chain.
    """

    chain: Bits

    @classmethod
    def of_chains(cls, seed: ArrayLike, chains: ArrayLike) -> Keys:
        """Return the keys of the chains with these numbers."""
        seed = jnp.asarray(seed, jnp.uint32)
        chains = jnp.asarray(chains, jnp.uint32)
        return cls(threefry((jnp.zeros_like(seed), seed), jnp.zeros_like(chains), chains))

    def of_draw(self, draw: ArrayLike) -> Bits:
        """Return the key of one draw of each chain; `draw` is a number, or one for each chain."""
        draw = jnp.asarray(draw, jnp.uint32)
        return threefry(self.chain, jnp.zeros_like(draw), draw)


def as_key(bits: Bits) -> Array:
    """Return words as a JAX key."""
    return random.wrap_key_data(jnp.stack(bits, axis=-1), impl="threefry2x32")


def is_key(leaf: object) -> bool:
    """Return whether an array holds typed JAX keys, which NumPy cannot represent."""
    return jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key)


def check_seed(seed: object) -> None:
    """Raise unless `seed` is a whole number from 0 to 2**32 - 1."""
    if isinstance(seed, Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        raise TypeError("seed must be a whole number, such as seed=0, and not a key: keys are made from it.")
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise ValueError(f"seed must be a whole number from 0 to 2**32 - 1, got {seed!r}.")
