"""Transformer over the pixels of an image, each given the earlier ones in raster order, and its causal attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from phalanx.extras import require

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Shaped

Implementation = Literal["xla", "cudnn"]

nnx: Any = require("flax.nnx")

LEVELS = 256
"""Number of levels of a pixel."""

Sizes = int | tuple[int, ...]
"""One dimension or several."""

Attend = Callable[[Array, Array, Array], Array]
"""From queries, keys and values `(batch, positions, heads, width)` to the weighted values."""


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

    here = jnp.arange(window)[:, None]
    other = jnp.arange(2 * window)[None]
    in_window = (here <= other) & (other <= here + window)
    exists = (jnp.arange(count) > 0)[:, None, None] | (other >= window)[None]
    mask = (in_window[None] & exists)[:, None, None]

    def attend_in_block(q: Array, k: Array, v: Array, mask: Array) -> Array:
        return jax.nn.dot_product_attention(q, k, v, mask=mask)

    outputs = jax.vmap(attend_in_block, in_axes=(1, 1, 1, 0), out_axes=1)(
        blocks(query), with_block_before(key), with_block_before(value), mask
    )
    return outputs.reshape(query.shape[0], count * window, *query.shape[2:])[:, :length]


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
    num_slots = length if window is None else min(length, window + 1)
    empty = jnp.zeros((batch, num_slots, heads, width), dtype)
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
    num_slots = cache.key.shape[1]
    slot = position % num_slots
    cache = Cache(
        lax.dynamic_update_slice_in_dim(cache.key, key, slot, axis=1),
        lax.dynamic_update_slice_in_dim(cache.value, value, slot, axis=1),
    )
    # slot s contains position i - (i - s) mod kept, if that is not negative
    is_written = position >= (position - jnp.arange(num_slots)) % num_slots
    attended = jax.nn.dot_product_attention(query, *cache, mask=is_written[None, None, None])
    return attended, cache


def check_window(window: int | None) -> None:
    """Raise unless a window is None or contains at least one earlier position."""
    if window is not None and window < 1:
        raise ValueError(f"attention: window must be at least 1, or None for all earlier positions; got {window}.")


class ImageTransformer(nnx.Module):
    r"""Transformer whose outputs are the parameters of $p(x_i \mid x_{<i})$, over pixels $x$ in raster order.

    The inputs at a position are the earlier pixels near it (left and above) and its row and column; attention adds
    pixels further off. The weights' metadata shard them over `model`: by heads, and by hidden units.

    Args:
        rows: rows of an image.
        columns: columns of an image.
        width: width of the representation of a position.
        layers: number of layers.
        heads: number of heads; a divisor of `width`.
        window: number of earlier pixels that attention sees; None for all.
        outputs: number of outputs for each pixel, the parameters of its distribution.
        dtype: type in which it computes; weights and outputs are float32.
        implementation: implementation of attention, as for `attend`.
        rngs: `nnx.Rngs` for the initial weights.

    Raises:
        ValueError: when `width` is not a multiple of `heads`, or `window` is less than 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> network = ImageTransformer(4, 4, width=8, layers=1, heads=2, rngs=nnx.Rngs(0))
        >>> network(jnp.zeros((3, 16), jnp.uint8)).shape
        (3, 16, 256)

    Source:
        Parmar, Vaswani, Uszkoreit, Kaiser, Shazeer, Ku, Tran (2018), Image transformer; Child, Gray, Radford,
        Sutskever (2019), Generating long sequences with sparse transformers.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        *,
        width: int = 64,
        layers: int = 3,
        heads: int = 4,
        window: int | None = None,
        outputs: int = LEVELS,
        dtype: DTypeLike = jnp.float32,
        implementation: Implementation = "xla",
        rngs: Any,
    ):
        if width % heads:
            raise ValueError(f"ImageTransformer: width must be a multiple of heads, got {width} and {heads}.")
        check_window(window)
        self.rows = rows
        self.columns = columns
        self.width = width
        self.heads = heads
        self.window = window
        self.dtype = dtype
        self.implementation: Implementation = implementation
        self.previous = nnx.Embed(LEVELS, width, embedding_init=_normal(0.02), dtype=dtype, rngs=rngs)
        self.near = nnx.Linear(2 * len(self.offsets), width, dtype=dtype, rngs=rngs)
        self.row = nnx.Embed(rows, width, embedding_init=_normal(0.02), dtype=dtype, rngs=rngs)
        self.column = nnx.Embed(columns, width, embedding_init=_normal(0.02), dtype=dtype, rngs=rngs)
        with nnx.use_eager_sharding(False):  # a fit shards the weights later, by their metadata
            self.blocks = nnx.List(
                [AttentionBlock(width, heads, layers, dtype=dtype, rngs=rngs) for _ in range(layers)]
            )
        self.norm = nnx.LayerNorm(width, dtype=dtype, rngs=rngs)
        self.out = nnx.Linear(width, outputs, kernel_init=_normal(0.02), dtype=dtype, rngs=rngs)

    @property
    def pixels(self) -> int:
        """Number of pixels of an image."""
        return self.rows * self.columns

    @property
    def offsets(self) -> tuple[int, ...]:
        """Distances in raster order to nearby pixels: left, two left, above, its neighbours, and two above."""
        return 1, 2, self.columns, self.columns + 1, self.columns - 1, 2 * self.columns

    def __call__(self, pixels: Shaped[Array | np.ndarray, "..."]) -> Float[Array, "batch pixels outputs"]:
        """Return the parameters of the distributions of all pixels, each given the earlier ones.

        Args:
            pixels: from 0 to 255, `(batch, rows * columns)`.

        Returns:
            `(batch, rows * columns, outputs)`.

        Raises:
            ValueError: when the number of pixels is another.
            TypeError: when they are not whole numbers.
        """
        return self._outputs(self.features(pixels))

    def features(self, pixels: Shaped[Array | np.ndarray, "..."]) -> Float[Array, "batch pixels width"]:
        """Return the inputs of the last layer."""
        over_all = partial(attend, window=self.window, implementation=self.implementation)
        return self._features(pixels, jnp.arange(self.pixels), [over_all] * len(self.blocks))

    def next(
        self, pixels: Shaped[Array, "batch ..."], position: Int[Array, ""], caches: Sequence[Cache]
    ) -> tuple[Float[Array, "batch outputs"], list[Cache]]:
        """Return the parameters of the distribution of one pixel, and the caches with this position.

        Call it for one position after the other, from 0 on, starting with `caches` from `self.caches(batch)`.
        """
        next_caches: list[Cache] = []

        def over(cache: Cache, query: Array, key: Array, value: Array) -> Array:
            result, after = attend_next(query, key, value, cache, position)
            next_caches.append(after)
            return result

        features = self._features(pixels, position[None], [partial(over, cache) for cache in caches])
        return self._outputs(features[:, 0]), next_caches

    def caches(self, batch: int) -> list[Cache]:
        """Return the caches before the first pixel."""
        shape = batch, self.pixels, self.heads, self.width // self.heads
        return [empty_cache(*shape, window=self.window, dtype=self.dtype) for _ in self.blocks]

    def _features(self, pixels: Array | np.ndarray, positions: Array, attends: Sequence[Attend]) -> Array:
        x = self._inputs(pixels, positions)
        for block, over in zip(self.blocks, attends, strict=True):
            x = block(x, over)
        return self.norm(x)

    def _outputs(self, features: Array) -> Array:
        return self.out(features).astype(jnp.float32)

    def _inputs(
        self, pixels: Shaped[Array | np.ndarray, "..."], positions: Int[Array, "positions"]
    ) -> Float[Array, "batch positions width"]:
        """Return the inputs at positions: embeddings of nearby earlier pixels, rows and columns."""
        if pixels.ndim != 2 or pixels.shape[1] != self.pixels:
            raise ValueError(
                f"ImageTransformer: pixels must be (images, {self.pixels}), of {self.rows} rows and {self.columns} "
                f"columns; got {pixels.shape}. Reshape images to rows: images.reshape(len(images), -1)."
            )
        if not jnp.issubdtype(pixels.dtype, jnp.integer):
            raise TypeError(
                f"ImageTransformer: pixels must be whole numbers from 0 to 255; got {pixels.dtype}. Give grey levels "
                f"as bytes, as in (255 * images).astype(np.uint8)."
            )
        reach = max(self.offsets)
        before = jnp.pad(pixels, ((0, 0), (reach, 0)))
        near = before[:, positions[:, None] + reach - jnp.asarray(self.offsets)[None]]
        features = jnp.concatenate([near / 255, near > 0], axis=-1).astype(self.dtype)
        place = self.row(positions // self.columns) + self.column(positions % self.columns)
        return self.previous(near[..., 0].astype(jnp.int32)) + self.near(features) + place[None]


class AttentionBlock(nnx.Module):
    """Residual block: attention, then two dense layers, each added to its inputs."""

    def __init__(self, width: int, heads: int, layers: int, *, dtype: DTypeLike, rngs: Any):
        self.heads = heads
        self.first = nnx.LayerNorm(width, dtype=dtype, rngs=rngs)
        self.second = nnx.LayerNorm(width, dtype=dtype, rngs=rngs)
        into = _normal(width**-0.5)
        back = _normal((2 * layers * width) ** -0.5)

        def dense(inputs: Sizes, outputs: Sizes, init: Any, *spec: str | None, axis: Sizes = -1) -> Any:
            init = nnx.with_partitioning(init, spec)
            return nnx.LinearGeneral(inputs, outputs, axis=axis, kernel_init=init, dtype=dtype, rngs=rngs)

        self.attended = dense(width, (heads, 3 * (width // heads)), into, None, "model", None)
        self.found = dense((heads, width // heads), width, back, "model", None, None, axis=(-2, -1))
        self.hidden = dense(width, 4 * width, into, None, "model")
        self.shown = dense(4 * width, width, back, "model", None)

    def __call__(self, x: Float[Array, "batch positions width"], over: Attend) -> Float[Array, "batch positions width"]:
        """Return the inputs plus the outputs of attention and of the dense layers."""
        query, key, value = jnp.split(self.attended(self.first(x)), 3, axis=-1)
        x = x + self.found(over(query, key, value))
        return x + self.shown(nnx.gelu(self.hidden(self.second(x))))


def _normal(scale: float) -> Any:
    return nnx.initializers.normal(scale)
