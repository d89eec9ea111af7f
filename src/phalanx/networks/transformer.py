"""A transformer over the pixels of an image, each given those before it in raster order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array

from phalanx.extras import require
from phalanx.networks.attention import Cache, Implementation, attend, attend_next, check_window, empty_cache

nnx: Any = require("flax.nnx")

LEVELS = 256
"""Of a pixel."""

Attend = Callable[[Array, Array, Array], Array]
"""From queries, keys and values `(batch, positions, heads, width)` to what they find."""


class ImageTransformer(nnx.Module):
    r"""What the distributions of $p(x) = \prod_i p(x_i \mid x_{<i})$ are made of, over pixels in raster order.

    A position is given the pixels near it that come before (left, above and about), where it is, and by attention what
    is further off. Weights say by their metadata how they are laid out over `model`: by heads, and by hidden units.

    Args:
        rows: of an image.
        columns: of an image.
        width: of the representation of a position.
        layers: how many.
        heads: of attention; a divisor of `width`.
        window: how many pixels before its own attention sees; None for all.
        outputs: numbers for each pixel, that its distribution is made from.
        dtype: what is computed in; weights and outputs are float32.
        implementation: of attention, as for `attend`.
        rngs: of `nnx`, where weights come from.

    Raises:
        ValueError: when `width` is no multiple of `heads`, or `window` is less than 1.

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
        self, rows: int, columns: int, *, width: int = 64, layers: int = 3, heads: int = 4, window: int | None = None,
        outputs: int = LEVELS, dtype: Any = jnp.float32, implementation: Implementation = "xla", rngs: Any,
    ):  # fmt: skip
        if width % heads:
            raise ValueError(f"ImageTransformer: width must be a multiple of heads, got {width} and {heads}.")
        check_window(window)
        self.rows, self.columns, self.width, self.heads = rows, columns, width, heads
        self.window, self.dtype = window, dtype
        self.implementation: Implementation = implementation
        self.previous = nnx.Embed(LEVELS, width, embedding_init=_normal(0.02), dtype=dtype, rngs=rngs)
        self.near = nnx.Linear(2 * len(self.offsets), width, dtype=dtype, rngs=rngs)
        self.row = nnx.Embed(rows, width, embedding_init=_normal(0.02), dtype=dtype, rngs=rngs)
        self.column = nnx.Embed(columns, width, embedding_init=_normal(0.02), dtype=dtype, rngs=rngs)
        with nnx.use_eager_sharding(False):  # weights say where they lie; who has a mesh puts them there
            self.blocks = nnx.List([Block(width, heads, layers, dtype=dtype, rngs=rngs) for _ in range(layers)])
        self.norm = nnx.LayerNorm(width, dtype=dtype, rngs=rngs)
        self.out = nnx.Linear(width, outputs, kernel_init=_normal(0.02), dtype=dtype, rngs=rngs)

    @property
    def pixels(self) -> int:
        """Pixels of an image."""
        return self.rows * self.columns

    @property
    def offsets(self) -> tuple[int, ...]:
        """How far back the pixels near a position lie: left, above, left and right above, and two steps."""
        return 1, 2, self.columns, self.columns + 1, self.columns - 1, 2 * self.columns

    def __call__(self, pixels: Array) -> Array:
        """What the distributions of all pixels are made of, each given those before it.

        Args:
            pixels: from 0 to 255, `(batch, rows * columns)`.

        Returns:
            `(batch, rows * columns, outputs)`.

        Raises:
            ValueError: when there are not as many pixels.
            TypeError: when they are no whole numbers.
        """
        return self._outputs(self.features(pixels))

    def features(self, pixels: Array) -> Array:
        """What the last layer makes its outputs from, `(batch, rows * columns, width)`."""
        over_all = partial(attend, window=self.window, implementation=self.implementation)
        return self._features(pixels, jnp.arange(self.pixels), [over_all] * len(self.blocks))

    def next(self, pixels: Array, position: Array, caches: Sequence[Cache]) -> tuple[Array, list[Cache]]:
        """The same of one pixel, `(batch, outputs)`, and the caches with this position.

        Positions are to be asked for one after the other, from 0 on, with `caches` from `self.caches(batch)`.
        """
        found: list[Cache] = []

        def over(cache: Cache, query: Array, key: Array, value: Array) -> Array:
            result, after = attend_next(query, key, value, cache, position)
            found.append(after)
            return result

        features = self._features(pixels, position[None], [partial(over, cache) for cache in caches])
        return self._outputs(features[:, 0]), found

    def caches(self, batch: int) -> list[Cache]:
        """The caches before the first pixel."""
        shape = batch, self.pixels, self.heads, self.width // self.heads
        return [empty_cache(*shape, window=self.window, dtype=self.dtype) for _ in self.blocks]

    def _features(self, pixels: Array, positions: Array, attends: Sequence[Attend]) -> Array:
        x = self._inputs(pixels, positions)
        for block, over in zip(self.blocks, attends, strict=True):
            x = block(x, over)
        return self.norm(x)

    def _outputs(self, features: Array) -> Array:
        return self.out(features).astype(jnp.float32)

    def _inputs(self, pixels: Array, positions: Array) -> Array:
        """What is known at positions, `(batch, positions, width)`: pixels near that come before, and where they are."""
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


class Block(nnx.Module):
    """Attention, then two dense layers, each added to what comes in."""

    def __init__(self, width: int, heads: int, layers: int, *, dtype: Any, rngs: Any):
        self.heads = heads
        self.first = nnx.LayerNorm(width, dtype=dtype, rngs=rngs)
        self.second = nnx.LayerNorm(width, dtype=dtype, rngs=rngs)
        into, back = _normal(width**-0.5), _normal((2 * layers * width) ** -0.5)

        def dense(inputs: Any, outputs: Any, init: Any, *spec: Any, axis: Any = -1) -> Any:
            init = nnx.with_partitioning(init, spec)
            return nnx.LinearGeneral(inputs, outputs, axis=axis, kernel_init=init, dtype=dtype, rngs=rngs)

        self.attended = dense(width, (heads, 3 * (width // heads)), into, None, "model", None)
        self.found = dense((heads, width // heads), width, back, "model", None, None, axis=(-2, -1))
        self.hidden = dense(width, 4 * width, into, None, "model")
        self.shown = dense(4 * width, width, back, "model", None)

    def __call__(self, x: Array, over: Attend) -> Array:
        """What comes in, `(batch, positions, width)`, with what attention and the dense layers add."""
        query, key, value = jnp.split(self.attended(self.first(x)), 3, axis=-1)
        x = x + self.found(over(query, key, value))
        return x + self.shown(nnx.gelu(self.hidden(self.second(x))))


def _normal(scale: float) -> Any:
    return nnx.initializers.normal(scale)
