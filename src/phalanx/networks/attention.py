"""Causal attention to all earlier positions or to a window of them, at all positions at once or one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

if TYPE_CHECKING:
    from jaxtyping import Float, Int

Implementation = Literal["xla", "cudnn"]


def attend(
    query: Float[Array, "batch length heads width"],
    key: Float[Array, "batch length heads width"],
    value: Float[Array, "batch length heads width"],
    *,
    window: int | None = None,
    implementation: Implementation = "xla",
) -> Float[Array, "batch length heads width"]:
    r"""Return causal attention at all positions: $\sum_{j\le i} \mathrm{softmax}_j(q_i k_j / \sqrt d) v_j$.

    Args:
        query: queries.
        key: keys.
        value: values.
        window: number of earlier positions that each position attends to; None for all. The computation cuts positions
            into blocks of this length, which attend to their own and the previous block: time and memory grow with
            `length * window`.
        implementation: "xla", or "cudnn" on NVIDIA GPUs in half precision. Do not map "cudnn" over members of an
            ensemble with `jax.vmap`.

    Returns:
        The weighted values.

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


def _in_blocks(
    query: Float[Array, "batch length heads width"],
    key: Float[Array, "batch length heads width"],
    value: Float[Array, "batch length heads width"],
    window: int,
) -> Float[Array, "batch length heads width"]:
    length = query.shape[1]
    count = -(-length // window)
    padding = ((0, 0), (0, count * window - length), (0, 0), (0, 0))

    def blocks(x: Array) -> Array:
        return jnp.pad(x, padding).reshape(x.shape[0], count, window, *x.shape[2:])

    def with_block_before(x: Array) -> Array:
        x = blocks(x)
        before = jnp.pad(x, ((0, 0), (1, 0), (0, 0), (0, 0), (0, 0)))[:, :-1]
        return jnp.concatenate([before, x], axis=2)

    here, other = jnp.arange(window)[:, None], jnp.arange(2 * window)[None]
    in_window = (here <= other) & (other <= here + window)
    exists = (jnp.arange(count) > 0)[:, None, None] | (other >= window)[None]
    mask = (in_window[None] & exists)[:, None, None]

    def attend_in_block(q: Array, k: Array, v: Array, mask: Array) -> Array:
        return jax.nn.dot_product_attention(q, k, v, mask=mask)

    found = jax.vmap(attend_in_block, in_axes=(1, 1, 1, 0), out_axes=1)(
        blocks(query), with_block_before(key), with_block_before(value), mask
    )
    return found.reshape(query.shape[0], count * window, *query.shape[2:])[:, :length]


class Cache(NamedTuple):
    """Ring buffer of the keys and values of the positions that later ones attend to.

    Attributes:
        key: keys.
        value: values.
    """

    key: Float[Array, "batch kept heads width"]
    value: Float[Array, "batch kept heads width"]


def empty_cache(batch: int, length: int, heads: int, width: int, *, window: int | None, dtype: DTypeLike) -> Cache:
    """Return the cache before the first of `length` positions."""
    check_window(window)
    kept = length if window is None else min(length, window + 1)
    empty = jnp.zeros((batch, kept, heads, width), dtype)
    return Cache(empty, empty)


def attend_next(
    query: Float[Array, "batch 1 heads width"],
    key: Float[Array, "batch 1 heads width"],
    value: Float[Array, "batch 1 heads width"],
    cache: Cache,
    position: Int[Array, ""],
) -> tuple[Float[Array, "batch 1 heads width"], Cache]:
    """Return the attention of one position to itself and the cached positions.

    Args:
        query: query of the position.
        key: key of the position.
        value: value of the position.
        cache: keys and values of earlier positions.
        position: number of the position, from 0.

    Returns:
        The weighted values, and the cache with this position.
    """
    kept = cache.key.shape[1]
    slot = position % kept
    cache = Cache(
        lax.dynamic_update_slice_in_dim(cache.key, key, slot, axis=1),
        lax.dynamic_update_slice_in_dim(cache.value, value, slot, axis=1),
    )
    # slot s contains position i - (i - s) mod kept, if that is not negative
    written = position >= (position - jnp.arange(kept)) % kept
    found = jax.nn.dot_product_attention(query, *cache, mask=written[None, None, None])
    return found, cache


def check_window(window: int | None) -> None:
    """Raise unless a window is None or contains at least one earlier position."""
    if window is not None and window < 1:
        raise ValueError(f"attention: window must be at least 1, or None for all earlier positions; got {window}.")
