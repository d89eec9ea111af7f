"""Network of the ensemble demo: two convolutions, two dense layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jax import Array

from phalanx.extras import require

if TYPE_CHECKING:
    from flax import nnx


def make_cnn(side: int, classes: int) -> Callable[[nnx.Rngs], nnx.Module]:
    """Return `make(rngs)` of a Flax NNX module for images of `side` x `side` bytes: 32 and 64 channels, 256 units."""
    nnx = require("flax.nnx")
    size = side // 2 // 2

    class CNN(nnx.Module):
        """Convolution and pooling, twice; then two dense layers."""

        def __init__(self, rngs: Any):
            self.first = nnx.Conv(1, 32, kernel_size=(3, 3), rngs=rngs)
            self.second = nnx.Conv(32, 64, kernel_size=(3, 3), rngs=rngs)
            self.hidden = nnx.Linear(size * size * 64, 256, rngs=rngs)
            self.logits = nnx.Linear(256, classes, rngs=rngs)

        def __call__(self, images: Array) -> Array:
            x = images.astype("float32")[..., None] / 255
            for convolution in (self.first, self.second):
                x = nnx.avg_pool(nnx.relu(convolution(x)), window_shape=(2, 2), strides=(2, 2))
            return self.logits(nnx.relu(self.hidden(x.reshape(x.shape[0], -1))))

    return lambda rngs: CNN(rngs)
