"""Couplings: a part of the coordinates stays, and determines shift and scale of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from numpy.typing import ArrayLike
from numpyro.distributions import constraints

from phalanx.flows.networks import Weights, apply_dense, init_dense, shift_and_log_scale
from phalanx.flows.single_pass import SinglePassTransform
from phalanx.mesh.specs import PyTree

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


class Coupling(SinglePassTransform):
    r"""$y = x$ where `stays`, and $y = x e^{s(x_\text{stays})} + m(x_\text{stays})$ elsewhere; one pass either way.

    Args:
        weights: a pytree, from `init`, or of `network`; or a `phx.param` of it.
        stays: mask of the elements of an event that stay, of the event's shape, a vector or an image.
        network: function of the weights and an event `(..., *event)`, which has zeros for the elements that do not
            stay. It returns shift and log scale: two arrays of the event's shape, or both side by side along a last
            axis of twice the length. None is the dense network of `init`, which flattens the event.

    Raises:
        ValueError: when no element stays, or all do.

    Example:
        >>> import jax, jax.numpy as jnp, phalanx as phx
        >>> weights = phx.flows.Coupling.init(jax.random.key(0), 4)
        >>> layer = phx.flows.Coupling(weights, stays=phx.flows.halves(4))
        >>> layer(jnp.ones(4)).tolist()  # it begins as the identity
        [1.0, 1.0, 1.0, 1.0]

    Source:
        Dinh, Sohl-Dickstein, Bengio (2017), Density estimation using Real NVP.
    """

    def __init__(self, weights: PyTree, stays: ArrayLike, network: Callable[[Any, Array], Any] | None = None):
        stays = np.asarray(stays, bool)
        if stays.ndim == 0 or stays.all() or not stays.any():
            raise ValueError(
                f"Coupling: stays must be a mask of an event's elements, True for some and False for others; got "
                f"{stays.tolist()!r}."
            )
        self.weights = weights
        self.network = network
        self.shape = stays.shape
        self.flags = tuple(stays.ravel().tolist())

    @staticmethod
    def init(key: Array, size: int, hidden: Sequence[int] = (32, 32)) -> Weights:
        """Return weights with which the transform is the identity.

        Args:
            key: a JAX key.
            size: number of elements of an event.
            hidden: widths of the network's layers.
        """
        return init_dense(key, size, 2 * size, hidden)

    @property
    def stays(self) -> Bool[np.ndarray, "*event"]:
        """Mask of the elements of an event that stay."""
        return np.array(self.flags).reshape(self.shape)

    @property
    def domain(self) -> constraints.Constraint:
        """Real events of the mask's rank."""
        return constraints.independent(constraints.real, len(self.shape))

    codomain = domain

    def forward_and_log_det(
        self, x: Float[Array | np.ndarray, "*shape"]
    ) -> tuple[Float[Array, "*shape"], Float[Array, "..."]]:
        """Return the image of `x`, and the log determinant, of the shape of the batch."""
        x = jnp.asarray(x)
        shift, log_scale = self._affine(x)
        return x * jnp.exp(log_scale) + shift, self._over_event(log_scale)

    def inverse_and_log_det(
        self, y: Float[Array | np.ndarray, "*shape"]
    ) -> tuple[Float[Array, "*shape"], Float[Array, "..."]]:
        """Return the inverse image of `y`, and the log determinant of the forward direction there."""
        y = jnp.asarray(y)
        shift, log_scale = self._affine(y)
        return (y - shift) * jnp.exp(-log_scale), self._over_event(log_scale)

    def tree_flatten(self) -> tuple[PyTree, PyTree]:
        """Return the weights as the leaves."""
        static_fields = {"network": self.network, "shape": self.shape, "flags": self.flags}
        return (self.weights,), (("weights",), static_fields)

    def _over_event(self, log_scale: Array) -> Array:
        return jnp.sum(log_scale, tuple(range(-len(self.shape), 0)))

    def _affine(self, x: Float[Array | np.ndarray, "*shape"]) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
        """Return shift and log scale, zero for the elements that stay."""
        if self.network is None:
            vector = x.reshape(*x.shape[: -len(self.shape)], -1)
            shift, log_scale = dense_affine(self.weights, self.stays.ravel(), vector)
            return shift.reshape(x.shape), log_scale.reshape(x.shape)
        stays = self.stays.reshape(*(1,) * (x.ndim - len(self.shape)), *self.shape)
        raw = self.network(self.weights, jnp.where(stays, x, 0.0))
        shift, log_scale = shift_and_log_scale(jnp.concatenate(raw, -1) if isinstance(raw, tuple | list) else raw)
        return jnp.where(stays, 0.0, shift), jnp.where(stays, 0.0, log_scale)


class Couplings(SinglePassTransform):
    """Composition of couplings of a vector in a loop, so that a single layer is compiled.

    Args:
        weights: a pytree, from `init`, each leaf with a leading axis of layers; or a `phx.param` of it.
        stays: mask of the coordinates that stay, `(layer, coordinate)`.

    Example:
        >>> import jax, jax.numpy as jnp, phalanx as phx
        >>> stays = phx.flows.digits([4])
        >>> weights = phx.flows.Couplings.init(jax.random.key(0), stays)
        >>> phx.flows.Couplings(weights, stays)(jnp.ones(4)).tolist()  # it begins as the identity
        [1.0, 1.0, 1.0, 1.0]

    Source:
        Dinh, Sohl-Dickstein, Bengio (2017), Density estimation using Real NVP.
    """

    domain: Any = constraints.real_vector
    codomain: Any = constraints.real_vector

    def __init__(self, weights: Weights, stays: ArrayLike):
        self.weights = weights
        self.flags = tuple(map(tuple, np.asarray(stays, bool).tolist()))

    @staticmethod
    def init(key: Array, stays: ArrayLike, hidden: Sequence[int] = (32,)) -> Weights:
        """Return weights with which the transform is the identity.

        Args:
            key: a JAX key.
            stays: mask of the coordinates that stay, `(layer, coordinate)`.
            hidden: widths of the networks' layers.
        """
        if np.ndim(stays) != 2:
            raise ValueError(
                f"Couplings.init: stays must be a mask of the coordinates that stay in each layer, (layer, "
                f"coordinate), such as phx.flows.digits([size]); got {stays!r}."
            )
        layers, size = np.shape(stays)
        return jax.vmap(lambda key: Coupling.init(key, size, hidden))(random.split(key, layers))

    def forward_and_log_det(
        self, x: Float[Array | np.ndarray, "*batch size"]
    ) -> tuple[Float[Array, "*batch size"], Float[Array, "*batch"]]:
        """Return the image of `x`, and the log determinant, of shape `(...)`."""
        x = jnp.asarray(x)

        def layer(carry: tuple[Array, Array], layer_inputs: tuple[Weights, Array]) -> tuple[tuple[Array, Array], None]:
            (x, total), (weights, stays) = carry, layer_inputs
            shift, log_scale = dense_affine(weights, stays, x)
            return (x * jnp.exp(log_scale) + shift, total + jnp.sum(log_scale, -1)), None

        return lax.scan(layer, (x, jnp.zeros(x.shape[:-1], x.dtype)), self._layers)[0]

    def inverse_and_log_det(
        self, y: Float[Array | np.ndarray, "*batch size"]
    ) -> tuple[Float[Array, "*batch size"], Float[Array, "*batch"]]:
        """Return the inverse image of `y`, and the log determinant of the forward direction there."""
        y = jnp.asarray(y)

        def layer(carry: tuple[Array, Array], layer_inputs: tuple[Weights, Array]) -> tuple[tuple[Array, Array], None]:
            (y, total), (weights, stays) = carry, layer_inputs
            shift, log_scale = dense_affine(weights, stays, y)
            return ((y - shift) * jnp.exp(-log_scale), total + jnp.sum(log_scale, -1)), None

        return lax.scan(layer, (y, jnp.zeros(y.shape[:-1], y.dtype)), self._layers, reverse=True)[0]

    def tree_flatten(self) -> tuple[PyTree, PyTree]:
        """Return the weights as the leaves."""
        return (self.weights,), (("weights",), {"flags": self.flags})

    @property
    def _layers(self) -> tuple[Weights, Array]:
        return self.weights, jnp.array(self.flags)


def dense_affine(
    weights: Weights, stays: Bool[Array | np.ndarray, "size"], x: Float[Array | np.ndarray, "*batch size"]
) -> tuple[Float[Array, "*batch size"], Float[Array, "*batch size"]]:
    """Return shift and log scale of a vector by the dense network of the coordinates that stay; zero for those."""
    stays = stays.reshape(*(1,) * (x.ndim - 1), -1)
    shift, log_scale = shift_and_log_scale(apply_dense(weights, jnp.where(stays, x, 0.0)))
    return jnp.where(stays, 0.0, shift), jnp.where(stays, 0.0, log_scale)


def halves(size: int, second: bool = False) -> Bool[np.ndarray, "size"]:
    """Return the mask for a coupling of a vector in which the first half stays, or the second.

    Args:
        size: number of coordinates, at least two.
        second: whether the second half stays.

    Example:
        >>> import phalanx as phx
        >>> phx.flows.halves(3).tolist()
        [True, True, False]
    """
    return (np.arange(size) >= (size + 1) // 2) == second


def digits(sizes: Sequence[int], within: int | None = None) -> Bool[np.ndarray, "layers size"]:
    """Return masks for couplings in which each of several vectors, side by side, conditions every other.

    The sequence of vectors is halved, and its halves, until each is a single vector; then each vector is halved in the
    same way. Each halving gives two layers: in one the second half stays, in the next the first half. The finest halves
    come first, so in the last layer earlier vectors determine later ones, as in the order of a model's draws.

    Args:
        sizes: sizes of the vectors.
        within: number of times that vectors themselves are halved; None halves down to single coordinates, so that each
            coordinate conditions every other.

    Returns:
        The coordinates that stay in each layer: `(layer, coordinate)`.

    Example:
        >>> import phalanx as phx
        >>> phx.flows.digits([1, 2]).astype(int).tolist()
        [[0, 0, 1], [1, 1, 0], [0, 1, 1], [1, 0, 0]]
    """
    deepest = max(map(_length, sizes))
    deep = deepest if within is None else min(within, deepest)
    # the leading binary digits of a coordinate's number determine its half of the vector, its quarter, ...
    codes = [
        _digits(vector, len(sizes)) + _digits(i, size).ljust(deepest, "0")[:deep]
        for vector, size in enumerate(sizes)
        for i in range(size)
    ]
    ones = [np.array([digit == "1" for digit in column]) for column in zip(*codes, strict=True)]
    layers = [stays for one in reversed(ones) if one.any() for stays in (one, ~one)]
    return np.array(layers, bool).reshape(-1, sum(sizes))


def _length(count: int) -> int:
    """Return the number of binary digits that distinguish `count` things."""
    return (count - 1).bit_length()


def _digits(number: int, count: int) -> str:
    """Return a number in binary, with as many digits as the numbers below `count` need."""
    return f"{number:0{_length(count)}b}" if count > 1 else ""


def checkerboard(shape: Sequence[int], odd: bool = False) -> Bool[np.ndarray, "height width channel"]:
    """Return the mask for a coupling of images `(height, width, channel)`: the even squares of a checkerboard, or odd.

    Example:
        >>> import phalanx as phx
        >>> phx.flows.checkerboard((2, 2, 1))[..., 0].tolist()
        [[True, False], [False, True]]
    """
    height, width, channels = shape
    flags = (np.add.outer(np.arange(height), np.arange(width)) % 2 == 1) == odd
    return np.broadcast_to(flags[..., None], (height, width, channels))


def channels(shape: Sequence[int], second: bool = False) -> Bool[np.ndarray, "height width channel"]:
    """Return the mask for a coupling of images `(height, width, channel)`: the first half of the channels, or second.

    Example:
        >>> import phalanx as phx
        >>> phx.flows.channels((1, 1, 4)).tolist()
        [[[True, True, False, False]]]
    """
    return np.broadcast_to(halves(shape[-1], second), tuple(shape))
