"""Causal attention: to all that came before or to a window of it, at all positions at once or one after another."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

Implementation = Literal["xla", "cudnn"]


def attend(
    query: Array, key: Array, value: Array, *, window: int | None = None, implementation: Implementation = "xla"
) -> Array:  # fmt: skip
    r"""Each position's attention to itself and those before: $\sum_{j\le i} \mathrm{softmax}_j(q_i k_j / \sqrt d) v_j$.

    Args:
        query: `(batch, length, heads, width)`.
        key: of the same shape.
        value: of the same shape.
        window: how many positions before its own each sees; None for all. Windows are worked on in blocks of as many
            positions, which see their own and the block before: time and memory grow with `length * window`.
        implementation: "xla", or "cudnn" on NVIDIA GPUs in half precision. Do not map "cudnn" over members of an
            ensemble with `jax.vmap`.

    Returns:
        As `query`.

    Raises:
        ValueError: when `window` is less than 1.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.ones((2, 9, 4, 8))
        >>> attend(x, x, x, window=3).shape
        (2, 9, 4, 8)

    Source:
        Vaswani, Shazeer, Parmar, Uszkoreit, Jones, Gomez, Kaiser, Polosukhin (2017), Attention is all you need; Parmar,
        Vaswani, Uszkoreit, Kaiser, Shazeer, Ku, Tran (2018), Image transformer.
    """
    check_window(window)
    length = query.shape[1]
    if window is None or window >= length - 1:
        return jax.nn.dot_product_attention(query, key, value, is_causal=True, implementation=implementation)
    if implementation == "cudnn":
        return jax.nn.dot_product_attention(
            query, key, value, is_causal=True, local_window_size=(window, 0), implementation="cudnn"
        )
    return _in_blocks(query, key, value, window)


def _in_blocks(query: Array, key: Array, value: Array, window: int) -> Array:
    length = query.shape[1]
    count = -(-length // window)
    padding = ((0, 0), (0, count * window - length), (0, 0), (0, 0))

    def blocks(x: Array) -> Array:
        return jnp.pad(x, padding).reshape(x.shape[0], count, window, *x.shape[2:])

    def with_block_before(x: Array) -> Array:
        x = blocks(x)
        before = jnp.pad(x, ((0, 0), (1, 0), (0, 0), (0, 0), (0, 0)))[:, :-1]
        return jnp.concatenate([before, x], axis=2)

    here, seen = jnp.arange(window)[:, None], jnp.arange(2 * window)[None]
    in_window = (here <= seen) & (seen <= here + window)
    exists = (jnp.arange(count) > 0)[:, None, None] | (seen >= window)[None]
    mask = (in_window[None] & exists)[:, None, None]

    def of_block(q: Array, k: Array, v: Array, mask: Array) -> Array:
        return jax.nn.dot_product_attention(q, k, v, mask=mask)

    found = jax.vmap(of_block, in_axes=(1, 1, 1, 0), out_axes=1)(
        blocks(query), with_block_before(key), with_block_before(value), mask
    )
    return found.reshape(query.shape[0], count * window, *query.shape[2:])[:, :length]


class Cache(NamedTuple):
    """Keys and values of the positions that are still seen, the newest in the place of the oldest.

    Attributes:
        key: `(batch, kept, heads, width)`.
        value: of the same shape.
    """

    key: Array
    value: Array


def empty_cache(batch: int, length: int, heads: int, width: int, *, window: int | None, dtype: jnp.dtype) -> Cache:
    """The cache before the first of `length` positions."""
    check_window(window)
    kept = length if window is None else min(length, window + 1)
    nothing = jnp.zeros((batch, kept, heads, width), dtype)
    return Cache(nothing, nothing)


def attend_next(query: Array, key: Array, value: Array, cache: Cache, position: Array) -> tuple[Array, Cache]:
    """Attention of one position to itself and what the cache holds of those before it.

    Args:
        query: `(batch, 1, heads, width)`.
        key: of the same shape.
        value: of the same shape.
        cache: of the positions before.
        position: which this is, counted from 0.

    Returns:
        As `query`, and the cache with this position.
    """
    kept = cache.key.shape[1]
    place = position % kept
    cache = Cache(
        lax.dynamic_update_slice_in_dim(cache.key, key, place, axis=1),
        lax.dynamic_update_slice_in_dim(cache.value, value, place, axis=1),
    )
    # the place s holds the position i - (i - s) mod kept, if that has been
    written = position >= (position - jnp.arange(kept)) % kept
    found = jax.nn.dot_product_attention(query, *cache, mask=written[None, None, None])
    return found, cache


def check_window(window: int | None) -> None:
    """Refuse a window in which nothing before is seen."""
    if window is not None and window < 1:
        raise ValueError(f"attention: window must be at least 1, or None to see all that came before; got {window}.")
