"""Transforms of images: pixels that become channels, and a multi-scale transform with outputs at each scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import constraints
from numpyro.distributions.transforms import ComposeTransform, ParameterFreeTransform, Transform

from phalanx.flows.single_pass import SinglePassTransform
from phalanx.mesh.specs import PyTree

if TYPE_CHECKING:
    from jaxtyping import Float

IMAGE = constraints.independent(constraints.real, 3)


class Unsqueeze(ParameterFreeTransform):
    """Transform from `(..., height, width, 4 channels)` to `(..., 2 height, 2 width, channels)`; its inverse squeezes.

    Example:
        >>> import jax.numpy as jnp, phalanx as phx
        >>> phx.flows.Unsqueeze().inv(jnp.zeros((28, 28, 1))).shape
        (14, 14, 4)

    Source:
        Dinh, Sohl-Dickstein, Bengio (2017), Density estimation using Real NVP.
    """

    domain: Any = IMAGE
    codomain: Any = IMAGE

    def __call__(self, x: Array | np.ndarray) -> Array:
        """Turn channels into pixels."""
        *batch, height, width, _ = x.shape
        shape = self.forward_shape(x.shape)
        x = x.reshape(*batch, height, width, 2, 2, shape[-1])
        return jnp.swapaxes(x, -4, -3).reshape(shape)

    def _inverse(self, y: Array | np.ndarray) -> Array:
        shape = self.inverse_shape(y.shape)
        y = y.reshape(*y.shape[:-3], shape[-3], 2, shape[-2], 2, y.shape[-1])
        return jnp.swapaxes(y, -4, -3).reshape(shape)

    def log_abs_det_jacobian(self, x: Array | np.ndarray, y: Array | np.ndarray, intermediates: PyTree = None) -> Array:
        """Return zero, of the shape of the batch."""
        return jnp.zeros(x.shape[:-3], x.dtype)

    def forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of an image twice as high and wide."""
        if shape[-1] % 4:
            raise ValueError(f"Unsqueeze: channels must be a multiple of 4; got an image of shape {shape[-3:]}.")
        return (*shape[:-3], 2 * shape[-3], 2 * shape[-2], shape[-1] // 4)

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of an image half as high and wide."""
        if shape[-3] % 2 or shape[-2] % 2:
            raise ValueError(f"Unsqueeze: height and width must be even; got an image of shape {shape[-3:]}.")
        return (*shape[:-3], shape[-3] // 2, shape[-2] // 2, 4 * shape[-1])


class MultiScale(SinglePassTransform):
    """Transform of a vector of noise to an image, scale by scale, coarse ones first.

    In the inverse direction, each scale squeezes the image and applies the inverse of its transform; half of the
    channels then join the vector, and the others are the image of the next scale. At the last scale all join.

    Args:
        shape: `(height, width, channel)` of the image, height and width multiples of two to the number of scales.
        scales: a transform of images for each scale, of the shapes that `shapes` returns, finest first. Compose layers
            with `numpyro.distributions.transforms.ComposeTransform`.

    Raises:
        ValueError: when `scales` is empty, or the image cannot be halved as often.

    Example:
        >>> import jax, jax.numpy as jnp, phalanx as phx
        >>> shapes = phx.flows.MultiScale.shapes((28, 28, 1), 2)
        >>> shapes
        [(14, 14, 4), (7, 7, 8)]
        >>> def layer(key, shape):
        ...     weights = phx.flows.Coupling.init(key, 14 * 14 * 4 if shape[0] == 14 else 7 * 7 * 8, hidden=(8,))
        ...     return phx.flows.Coupling(weights, stays=phx.flows.channels(shape))
        >>> flow = phx.flows.MultiScale((28, 28, 1), [layer(jax.random.key(0), shape) for shape in shapes])
        >>> flow(jnp.zeros(784)).shape
        (28, 28, 1)

    Source:
        Dinh, Sohl-Dickstein, Bengio (2017), Density estimation using Real NVP.
    """

    domain: Any = constraints.real_vector
    codomain: Any = IMAGE

    def __init__(self, shape: Sequence[int], scales: Sequence[Transform]):
        self.shape = tuple(map(int, shape))
        self.scales = list(scales)
        self._shapes = self.shapes(self.shape, len(self.scales))

    @staticmethod
    def shapes(shape: Sequence[int], count: int) -> list[tuple[int, ...]]:
        """Return the shape of the image at each scale."""
        factor = 2**count
        part = tuple(shape)
        if count < 1 or len(part) != 3 or part[0] % factor or part[1] % factor:
            raise ValueError(
                f"MultiScale: height and width must be multiples of {factor}, to be halved {count} times; got an image "
                f"of shape {part}."
            )
        shapes = []
        for _ in range(count):
            part = Unsqueeze().inverse_shape(part)
            shapes.append(part)
            part = (*part[:-1], part[-1] // 2)
        return shapes

    def inverse_and_log_det(
        self, y: Float[Array | np.ndarray, "*batch height width channel"]
    ) -> tuple[Float[Array, "*batch size"], Float[Array, "*batch"]]:
        """Return the vector of an image, and the log determinant of the forward direction there."""
        pieces = []
        log_det = jnp.zeros(y.shape[:-3], y.dtype)
        for number, scale in enumerate(self.scales, 1):
            y = jnp.asarray(Unsqueeze().inv(y))
            for part in reversed(_parts(scale)):
                x = jnp.asarray(part.inv(y))
                log_det = log_det + part.log_abs_det_jacobian(x, y)
                y = x
            piece, y = (y, y) if number == len(self.scales) else jnp.split(y, 2, -1)
            pieces.append(piece.reshape(*piece.shape[:-3], -1))
        return jnp.concatenate(pieces, -1), log_det

    def forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the image of a vector."""
        return (*shape[:-1], *self.shape)

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the vector of an image."""
        return (*shape[:-3], math.prod(self.shape))

    def tree_flatten(self) -> tuple[PyTree, PyTree]:
        """Return the scales' transforms, which contain the leaves."""
        return (self.scales,), (("scales",), {"shape": self.shape, "_shapes": self._shapes})

    def forward_and_log_det(
        self, x: Float[Array | np.ndarray, "*batch size"]
    ) -> tuple[Float[Array, "*batch height width channel"], Float[Array, "*batch"]]:
        """Return the image of a vector, and the log determinant, of the shape of the batch."""
        pieces = []
        begin = 0
        for number, shape in enumerate(self._shapes):
            whole = number == len(self._shapes) - 1
            part = shape if whole else (*shape[:-1], shape[-1] // 2)
            size = math.prod(part)
            pieces.append(x[..., begin : begin + size].reshape(*x.shape[:-1], *part))
            begin += size
        image = pieces[-1]
        log_det = jnp.zeros(x.shape[:-1], x.dtype)
        for number in reversed(range(len(self.scales))):
            if number < len(self.scales) - 1:
                image = jnp.concatenate([pieces[number], image], -1)
            for part in _parts(self.scales[number]):
                after = jnp.asarray(part(image))
                log_det = log_det + part.log_abs_det_jacobian(image, after)
                image = after
            image = jnp.asarray(Unsqueeze()(image))
        return image, log_det


def _parts(scale: Transform) -> list[Transform]:
    """Return a scale's transforms one by one: the log determinant of a composition would apply them again."""
    return list(scale.parts) if isinstance(scale, ComposeTransform) else [scale]
