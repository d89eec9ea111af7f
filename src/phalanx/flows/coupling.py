"""Coupling: a part of the coordinates stays, and says how the others are moved and scaled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from numpyro.distributions import constraints

from phalanx.flows.both_at_once import BothAtOnce
from phalanx.flows.networks import Weights, apply_dense, init_dense, shift_and_log_scale


class Coupling(BothAtOnce):
    r"""$y = x$ where `stays`, and $y = x e^{s(x_\text{stays})} + m(x_\text{stays})$ elsewhere; one pass either way.

    Args:
        weights: a pytree, from `init`, or what `network` takes; or a `phx.param` of it.
        stays: which elements of an event stay, True or False each: of the event's shape, a vector or an image.
        network: a function of weights and an event, `(..., *event)`, of which what does not stay is zero, to shift and
            log scale, of the event's shape each or side by side on a last axis of twice the length. None is the dense
            network of `init`, which sees the event as a vector.

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

    def __init__(self, weights: Any, stays: Any, network: Callable[[Any, Array], Any] | None = None):
        stays = np.asarray(stays, bool)
        if stays.ndim == 0 or stays.all() or not stays.any():
            raise ValueError(
                f"Coupling: stays says of each element of an event whether it stays, some do and some do not; got "
                f"{stays.tolist()!r}."
            )
        self.weights, self.network = weights, network
        self.shape, self.flags = stays.shape, tuple(stays.ravel().tolist())

    @staticmethod
    def init(key: Array, size: int, hidden: Sequence[int] = (32, 32)) -> Weights:
        """Weights with which it is the identity.

        Args:
            key: a JAX key.
            size: elements of an event.
            hidden: widths of the network's layers.
        """
        return init_dense(key, size, 2 * size, hidden)

    @property
    def stays(self) -> np.ndarray:
        """Which elements of an event stay."""
        return np.array(self.flags).reshape(self.shape)

    @property
    def domain(self) -> Any:
        """Real events."""
        return constraints.independent(constraints.real, len(self.shape))

    codomain = domain

    def forth(self, x: Array) -> tuple[Array, Array]:
        """Forward, and the log determinant, of the shape of the batch."""
        shift, log_scale = self._affine(x)
        return x * jnp.exp(log_scale) + shift, self._over_event(log_scale)

    def back(self, y: Array) -> tuple[Array, Array]:
        """The inverse, and the log determinant of the way forward."""
        shift, log_scale = self._affine(y)
        return (y - shift) * jnp.exp(-log_scale), self._over_event(log_scale)

    def tree_flatten(self) -> Any:
        """Weights are leaves."""
        fixed = {"network": self.network, "shape": self.shape, "flags": self.flags}
        return (self.weights,), (("weights",), fixed)

    def _over_event(self, log_scale: Array) -> Array:
        return jnp.sum(log_scale, tuple(range(-len(self.shape), 0)))

    def _affine(self, x: Array) -> tuple[Array, Array]:
        """Shift and log scale, zero of what stays."""
        if self.network is None:
            vector = x.reshape(*x.shape[: -len(self.shape)], -1)
            shift, log_scale = dense_affine(self.weights, self.stays.ravel(), vector)
            return shift.reshape(x.shape), log_scale.reshape(x.shape)
        stays = self.stays.reshape(*(1,) * (x.ndim - len(self.shape)), *self.shape)
        raw = self.network(self.weights, jnp.where(stays, x, 0.0))
        shift, log_scale = shift_and_log_scale(jnp.concatenate(raw, -1) if isinstance(raw, tuple | list) else raw)
        return jnp.where(stays, 0.0, shift), jnp.where(stays, 0.0, log_scale)


class Couplings(BothAtOnce):
    """Couplings of a vector, one after another, as one loop: however many there are, one is compiled.

    Args:
        weights: a pytree, from `init`, each leaf with a leading axis of layers; or a `phx.param` of it.
        stays: which coordinates stay, `(layer, coordinate)`.

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

    def __init__(self, weights: Weights, stays: Any):
        self.weights, self.flags = weights, tuple(map(tuple, np.asarray(stays, bool).tolist()))

    @staticmethod
    def init(key: Array, stays: Any, hidden: Sequence[int] = (32,)) -> Weights:
        """Weights with which it is the identity.

        Args:
            key: a JAX key.
            stays: which coordinates stay, `(layer, coordinate)`.
            hidden: widths of the networks' layers.
        """
        layers, size = np.shape(stays)
        return jax.vmap(lambda key: Coupling.init(key, size, hidden))(random.split(key, layers))

    def forth(self, x: Array) -> tuple[Array, Array]:
        """Forward, and the log determinant, of shape `(...)`."""

        def layer(carry: tuple[Array, Array], given: Any) -> tuple[tuple[Array, Array], None]:
            (x, total), (weights, stays) = carry, given
            shift, log_scale = dense_affine(weights, stays, x)
            return (x * jnp.exp(log_scale) + shift, total + jnp.sum(log_scale, -1)), None

        return lax.scan(layer, (x, jnp.zeros(x.shape[:-1], x.dtype)), self._layers)[0]

    def back(self, y: Array) -> tuple[Array, Array]:
        """The inverse, and the log determinant of the way forward."""

        def layer(carry: tuple[Array, Array], given: Any) -> tuple[tuple[Array, Array], None]:
            (y, total), (weights, stays) = carry, given
            shift, log_scale = dense_affine(weights, stays, y)
            return ((y - shift) * jnp.exp(-log_scale), total + jnp.sum(log_scale, -1)), None

        return lax.scan(layer, (y, jnp.zeros(y.shape[:-1], y.dtype)), self._layers, reverse=True)[0]

    def tree_flatten(self) -> Any:
        """Weights are leaves."""
        return (self.weights,), (("weights",), {"flags": self.flags})

    @property
    def _layers(self) -> tuple[Weights, Array]:
        return self.weights, jnp.array(self.flags)


def dense_affine(weights: Weights, stays: Any, x: Array) -> tuple[Array, Array]:
    """Shift and log scale of a vector by the dense network of what stays; zero of that."""
    stays = stays.reshape(*(1,) * (x.ndim - 1), -1)
    shift, log_scale = shift_and_log_scale(apply_dense(weights, jnp.where(stays, x, 0.0)))
    return jnp.where(stays, 0.0, shift), jnp.where(stays, 0.0, log_scale)


def halves(size: int, second: bool = False) -> np.ndarray:
    """What stays in a coupling of a vector: the first half, or the second.

    Args:
        size: coordinates, two at least.
        second: whether the second half stays.
    """
    return (np.arange(size) >= (size + 1) // 2) == second


def digits(sizes: Sequence[int], within: int | None = None) -> np.ndarray:
    """What stays in couplings by which any of several vectors, side by side, is told by any other.

    The vectors are halved, and their halves, until each is alone, and then so are they themselves. Of each halving
    there are two layers, finest halves first: in the first layer the second half stays, in the other the first. So the
    last of all are those in which what comes first tells what comes after, as in a model that is drawn from.

    Args:
        sizes: of the vectors.
        within: how often vectors themselves are halved; None for as often as it goes, when any coordinate is told by
            any other.

    Returns:
        Of each layer, which coordinates stay: `(layer, coordinate)`.

    Example:
        >>> import phalanx as phx
        >>> phx.flows.digits([1, 2]).astype(int).tolist()
        [[0, 0, 1], [1, 1, 0], [0, 1, 1], [1, 0, 0]]
    """
    deepest = max(map(_length, sizes))
    deep = deepest if within is None else min(within, deepest)
    # the leading digits of a coordinate's number tell halves of its vector, quarters, ...
    codes = [
        _digits(vector, len(sizes)) + _digits(i, size).ljust(deepest, "0")[:deep]
        for vector, size in enumerate(sizes)
        for i in range(size)
    ]
    ones = [np.array([digit == "1" for digit in column]) for column in zip(*codes, strict=True)]
    return np.array([stays for one in reversed(ones) if one.any() for stays in (one, ~one)]).reshape(-1, sum(sizes))


def _length(count: int) -> int:
    """How many binary digits it takes to tell as many things apart."""
    return (count - 1).bit_length()


def _digits(number: int, count: int) -> str:
    """The number in as many digits as numbers below `count` have."""
    return f"{number:0{_length(count)}b}" if count > 1 else ""


def checkerboard(shape: Sequence[int], odd: bool = False) -> np.ndarray:
    """What stays in a coupling of images `(height, width, channel)`: the even pixels of a checkerboard, or the odd."""
    height, width, channels = shape
    flags = (np.add.outer(np.arange(height), np.arange(width)) % 2 == 1) == odd
    return np.broadcast_to(flags[..., None], (height, width, channels))


def channels(shape: Sequence[int], second: bool = False) -> np.ndarray:
    """What stays in a coupling of images `(height, width, channel)`: the first half of the channels, or the second."""
    return np.broadcast_to(halves(shape[-1], second), tuple(shape))
